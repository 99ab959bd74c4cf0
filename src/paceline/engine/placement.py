"""Placements: how a pass of the target and what drafters do meanwhile share the machine. The code that starts a pass
and collects it is the same for all of them."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch

from paceline.core.errors import InputError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
NO_PLACEMENT, STREAM, SHARED = "none", "stream", "shared"
PLACEMENT_NAMES = "none, shared, T+D (threads of the target and of the draft, as 3+1) or stream (on a GPU)"


class Ticket(Protocol[T_co]):
    """A call that was started."""

    def wait(self) -> None:
        """Until it has come to its end, whatever that is."""

    def collect(self) -> T_co:
        """Wait for it: its result, or what it raised."""


class Placement(Protocol):
    overlaps: bool
    """Does anything run at once?"""

    def start(self, call: Callable[[], T]) -> Ticket[T]:
        """Start a call that computes with the target. One at a time."""

    def beside(self) -> AbstractContextManager[None]:
        """Where the drafters compute meanwhile, as a context."""


class Done(Generic[T]):
    """A call that has come to its end; its error is raised when it is collected."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.value: T | None = None
        self.error: Exception | None = None
        try:
            self.value = call()
        except Exception as error:
            self.error = error

    def wait(self) -> None:
        pass

    def collect(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Serial:
    """Drafting and the pass one after the other: the reference form of the other placements."""

    overlaps = False

    def start(self, call: Callable[[], T]) -> Done[T]:
        return Done(call)

    @contextmanager
    def beside(self) -> Iterator[None]:
        yield


class Threads:
    """The target's pass in a thread of this process. A native call, or PyTorch's, releases the interpreter.

    `target`, `draft`: threads of each; both None: each has all, and they share the cores.
    """

    overlaps = True

    def __init__(self, target: int | None = None, draft: int | None = None) -> None:
        self.target, self.draft = target, draft
        self.pool: ThreadPoolExecutor | None = None

    def start(self, call: Callable[[], T]) -> "Ticket[T]":
        if self.pool is None:
            self.pool = ThreadPoolExecutor(1, "paceline-target", self._begin, (self.target or torch.get_num_threads(),))
        return Pending(self.pool.submit(call))

    @staticmethod
    def _begin(threads: int) -> None:
        """In the pool's thread: the number is one of each thread that computes."""
        torch.set_num_threads(threads)

    @contextmanager
    def beside(self) -> Iterator[None]:
        usual = torch.get_num_threads()
        if self.draft is None or self.draft == usual:
            yield
            return
        torch.set_num_threads(self.draft)
        try:
            yield
        finally:
            torch.set_num_threads(usual)


class Pending(Generic[T]):
    """A call in another thread."""

    def __init__(self, future: "Future[T]") -> None:
        self.future = future

    def wait(self) -> None:
        wait([self.future])

    def collect(self) -> T:
        return self.future.result()


class Streams:
    """The target's pass in a CUDA stream of its own; the drafters go on in the usual one, or on the CPU."""

    overlaps = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, call: Callable[[], T]) -> "Ticket[T]":
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            done = Done(call)
        return Streamed(done, self)

    @contextmanager
    def beside(self) -> Iterator[None]:
        yield


class Streamed(Generic[T]):
    """A call whose kernels are in a stream. What it has allocated there is not given back before the next call begins,
    which waits for its reader (`Streams.start`)."""

    def __init__(self, done: Done[T], where: Streams) -> None:
        self.done, self.where = done, where

    def wait(self) -> None:
        self.where.stream.synchronize()

    def collect(self) -> T:
        self.wait()
        return self.done.collect()


def placement(name: str, device: "torch.device | str" = "cpu") -> Placement:
    """The placement of this name, for a target on this device. InputError where there is none."""
    if name == NO_PLACEMENT:
        return Serial()
    device = torch.device(device)
    if name == STREAM and device.type == "cuda":
        return Streams(device)
    if name == SHARED:
        return Threads()
    counts = name.split("+")
    if len(counts) == 2 and all(each.isdecimal() and int(each) > 0 for each in counts):
        return Threads(int(counts[0]), int(counts[1]))
    raise InputError(f"overlap is {name!r} for a target on {device.type}, but it must be {PLACEMENT_NAMES}.")
