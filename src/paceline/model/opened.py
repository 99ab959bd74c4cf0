"""Files of checkpoints that are open: while an engine is built, each is opened once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_open: ContextVar[dict[Path, Any] | None] = ContextVar("open", default=None)
"""What was made of each path; None: nothing is kept."""


@contextmanager
def opened_once() -> Iterator[None]:
    """Within it each file of a checkpoint is opened once, however many ask for what it says."""
    token = _open.set({})
    try:
        yield
    finally:
        _open.reset(token)


def once(path: Path, make: Callable[[], T]) -> T:
    """What `make` makes of this path; within `opened_once` what it made the first time."""
    kept = _open.get()
    if kept is None:
        return make()
    if path not in kept:
        kept[path] = make()
    made: T = kept[path]
    return made


def let_go(path: Path) -> None:
    """A checkpoint has been loaded: its files need not stay mapped."""
    (_open.get() or {}).pop(path, None)
