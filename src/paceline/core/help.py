"""What an option is for, written once: flags, environment, settings files and pages take it from there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Help:
    """What a setting does, in one sentence or two, and under which heading it is listed."""

    text: str
    panel: str
    flag: str | None = None
    """Name of the flag where it is not the field's, as for a list that is given value by value."""
    commands: bool = True
    """Do all commands with this group of options have the flag? Else only those that serve, by their own group."""
