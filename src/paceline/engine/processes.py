"""Checks that the options which split a model over processes share."""

from collections.abc import Mapping

from paceline.core.errors import InputError, RefusalError


def check_processes(
    option: str, count: int, most: int, others: Mapping[str, bool], only: Mapping[str, object] | None = None
) -> bool:
    """Whether `option` splits the model, that is `count` > 1. Raise InputError for a count out of range, or for options
    {name: value} of `only`, which mean nothing for one process; RefusalError for another option {name: whether it is
    given} that it cannot be combined with."""
    if not 1 <= count <= most:
        raise InputError(f"{option} is {count}, but it must be 1 to {most} processes.")
    if count == 1:
        for name, value in (only or {}).items():
            if value is not None:
                raise InputError(f"{name} is given, but {option} is 1; say how many processes there are.")
        return False
    if wrong := [name for name, given in others.items() if given]:
        raise RefusalError(f"{option} and {wrong[0]} cannot be combined; leave one of them out.")
    return True
