"""What installed packages add by entry points: the groups `paceline.drafters`, `.heads`, `.verifiers`, `.trainers`,
`.evictions`, `.orders` and `.schedules`."""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from paceline.core.errors import InputError

T = TypeVar("T")


def of(kind: str) -> list[tuple[str, Any]]:
    """(name, object) of every entry point of a kind, by name. InputError for one that cannot be loaded."""
    return [(point.name, load(kind, point)) for point in points(f"paceline.{kind}s", tuple(sys.path))]


@cache
def points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of a group, of all packages on `path`, which is `sys.path`: metadata is read once, not by engine."""
    return tuple(sorted(entry_points(group=group)))


def load(kind: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except InputError:
        raise
    except Exception as error:
        package = point.dist.name if point.dist else "an installed package"
        raise InputError(
            f"The {kind} {point.name!r} of {package} cannot be loaded ({type(error).__name__}: {error}); mend or "
            "uninstall it."
        ) from error


def joined(kind: str, own: Mapping[str, T]) -> dict[str, T]:
    """Ours and those of installed packages, by name. InputError for a name that two have."""
    found: dict[str, T] = dict(own)
    for name, plugin in of(kind):
        if name in found:
            raise duplicate(kind, name, found[name], plugin)
        found[name] = plugin
    return found


def duplicate(kind: str, name: str, first: Any, second: Any) -> InputError:
    return InputError(f"The {kind} {name!r} is there twice, as {at(first)} and as {at(second)}; rename or remove one.")


def at(plugin: Any) -> str:
    """Module and name of a plug-in, for error messages."""
    return f"{getattr(plugin, '__module__', '?')}.{getattr(plugin, '__qualname__', repr(plugin))}"
