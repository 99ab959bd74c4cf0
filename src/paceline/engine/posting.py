"""What a thread does in an event loop of another thread: calls, and the ends of futures."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Call `function` in the loop's thread; False when the loop is closed, which is no reason for an engine to die."""
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
    """Raise an error in who waits for a future, unless its caller gave it up."""
    if not future.cancelled():
        future.set_exception(error)
