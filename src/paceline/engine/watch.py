"""How long calls take on their device: on a CPU by the clock, on a GPU, where a call returns before its kernels ran, by
events between them."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")
Seconds = Callable[[], float]
"""How long a call took; waits until that is known."""


class Watch(Protocol):
    def time(self, call: Callable[..., T], *args: Any) -> tuple[T, Seconds]:
        """Result of a call, and how long it takes."""


class HostWatch:
    """By a clock in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def time(self, call: Callable[..., T], *args: Any) -> tuple[T, Seconds]:
        started = self.clock()
        out = call(*args)
        seconds = self.clock() - started
        return out, lambda: seconds


class Event(Protocol):
    """The part of `torch.cuda.Event` that is needed."""

    def record(self) -> None:
        """Take the time when the device has come to here."""

    def synchronize(self) -> None:
        """Wait until then."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds to another event."""


class EventWatch:
    """By events in the stream of the call."""

    def __init__(self, make: Callable[[], Event]) -> None:
        self.make = make

    def time(self, call: Callable[..., T], *args: Any) -> tuple[T, Seconds]:
        begin, end = self.make(), self.make()
        begin.record()
        out = call(*args)
        end.record()

        def seconds() -> float:
            end.synchronize()
            return begin.elapsed_time(end) / 1e3

        return out, seconds


def watch_for(device: "torch.device | str", clock: Callable[[], float]) -> Watch:
    """Timer of calls on this device. `clock`: the host's."""
    if torch.device(device).type == "cuda":
        return EventWatch(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
    return HostWatch(clock)
