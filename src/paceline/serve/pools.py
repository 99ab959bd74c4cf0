"""Host work outside the event loop and the engine: threads of its own, a queue with a limit, the smallest piece first.

The threads are daemons, so that a piece that takes long does not hold up the end of the process; what no caller waits
for any more is not begun.
"""

import asyncio
import ctypes
import gc
import heapq
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from paceline.core.errors import PacelineError
from paceline.serve.errors import ApiError

T = TypeVar("T")
SMALL_PIECE_BYTES = 16_384
"""Bytes or characters up to which a piece of work is small: one thread does nothing else."""
TRIM = 1 << 18
"""Size from which on the memory that a piece took is given back to the system."""
TIDY_S = 0.5
BUSY_S = 2
Piece = tuple[int, int, Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class WorkerPool:
    """Two threads, one for small pieces alone. At most `most` pieces wait; the next is rejected and may retry later."""

    def __init__(self, name: str, most: int = 256, large: int = 16) -> None:
        """`large`: how many of them may be large ones."""
        self.name, self.most, self.large = name, most, large
        self._pieces: list[Piece] = []
        self._sizes = 0
        """Large ones, waiting and at work."""
        self._order = count()
        self._changed = threading.Condition()
        self._threads = 0
        self._closed = False

    async def run(self, work: Callable[[], T], size: int = 0) -> T:
        """What `work` returns or raises, done in a thread. ApiError 429 where too much waits. Cancelling the caller
        takes it out of the queue."""
        return await self.post(work, size)

    def post(self, work: Callable[[], T], size: int = 0) -> "asyncio.Future[T]":
        """Queue `work` for a thread and return its future, without waiting. Raises ApiError 429 if too much is queued.
        For the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        large = size > SMALL_PIECE_BYTES
        with self._changed:
            if len(self._pieces) >= self.most or (large and self._sizes >= self.large):
                raise ApiError(
                    429,
                    f"Too many requests wait for the server's {self.name}; try again in {BUSY_S} s.",
                    code="host_busy",
                    headers={"Retry-After": str(BUSY_S)},
                )
            self._sizes += large
            heapq.heappush(self._pieces, (size, next(self._order), work, future, loop))
            self._start()
            self._changed.notify_all()
        return future

    def _start(self) -> None:
        while self._threads < 2:
            target = self._small if self._threads else self._any
            threading.Thread(target=target, name=f"paceline-{self.name}", daemon=True).start()
            self._threads += 1

    def _any(self) -> None:
        self._serve(lambda: bool(self._pieces))

    def _small(self) -> None:
        self._serve(lambda: bool(self._pieces) and self._pieces[0][0] <= SMALL_PIECE_BYTES)

    def _serve(self, there_is: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or there_is())
                if self._closed:
                    return
                size, _, work, future, loop = heapq.heappop(self._pieces)
            if future.cancelled():
                self._ended(size)
            else:
                self._do(work, future, loop, size)
            del work, future
            if size > TRIM:
                give_back()

    def _ended(self, size: int) -> None:
        with self._changed:
            self._sizes -= size > SMALL_PIECE_BYTES

    def _do(
        self, work: Callable[[], Any], future: "asyncio.Future[Any]", loop: asyncio.AbstractEventLoop, size: int
    ) -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as fault:  # also the panics of libraries in other languages
            error = fault if isinstance(fault, Exception) else RuntimeError(str(fault))
            if isinstance(error, PacelineError | ApiError):  # sent to the client: its frames would hold what they held
                error.__traceback__ = error.__context__ = None
        self._ended(size)  # before its answer, which may bring the next
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(_settle, future, value, error)
        del value, error

    def close(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def give_back(generation: int = 2) -> None:
    """Return freed memory to the system, where its C library can: else a large request leaves its mark for ever."""
    gc.collect(generation)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _settle(future: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class Pools:
    """The pools of one server, by what they do: none waits for another's work."""

    def __init__(self, crowd: int = 0) -> None:
        """`crowd`: requests that may wait for the engine; as many small pieces may wait here, and never under 256."""
        most = max(256, crowd)
        self.bodies = WorkerPool("bodies", most)
        self.texts = WorkerPool("tokenizer", most)
        self.grammars = WorkerPool("grammars", 64)
        self.answers = WorkerPool("long answers", 64)
        self._tidying = False

    def tidy(self) -> None:
        """Give memory back to the system, soon and not too often; for the event loop."""
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    def _tidy(self) -> None:
        self._tidying = False
        with suppress(ApiError):
            self.answers.post(give_back)

    def close(self) -> None:
        for pool in (self.bodies, self.texts, self.grammars, self.answers):
            pool.close()
