"""Calls and results of futures posted to the event loop of another thread."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Call `function` in the loop's thread. Returns False if the loop is closed, which must not end the engine."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True


def done(future: asyncio.Future[T], result: T) -> None:
    """Complete a future, unless its caller gave it up."""
    if not future.cancelled():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Raise an error in the waiter of a future, unless it was cancelled."""
    if not future.cancelled():
        future.set_exception(error)
