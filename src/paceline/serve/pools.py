"""Host work outside the event loop and the engine: threads of its own, a queue with a limit. Small pieces come first,
and among those the client whose last turn is longest ago; of one client the smallest.

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
from functools import partial
from itertools import count
from typing import Any, TypeVar

from paceline.core.errors import PacelineError
from paceline.core.stacks import start_roomy
from paceline.core.trial import TRIAL_CLIENT, TrialClient
from paceline.engine.door import DOOR
from paceline.serve.admission import Budget
from paceline.serve.errors import ApiError

T = TypeVar("T")
SMALL_PIECE_BYTES = 16_384
"""Bytes or characters up to which a piece of work is small: one thread does nothing else."""
TRIM = 1 << 18
"""Size from which on the memory that a piece took is given back to the system."""
TIDY_S = 3.0
"""Seconds between two times at which memory is given back, at least."""
MOST_PUT_OFF = 20
"""How often the search for garbage waits; then there is none. What is free goes back without one, at once."""
BUSY_S = 2
Piece = tuple[int, int, tuple[str, str], Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class WorkerPool:
    """Two threads, one for small pieces alone. At most `most` pieces wait; the next is rejected and may retry later."""

    def __init__(self, name: str, most: int = 256, large: int = 16, parted: bool = False) -> None:
        """`large`: how many of them may be large ones; `parted`: clients have a share of both each."""
        self.name, self.most = name, most
        self._parted = parted
        self._pieces: dict[str, list[Piece]] = {}
        """A heap for each client, or one for all."""
        self._turns: dict[str, int] = {}
        """When a client had its last turn."""
        self._waiting, self._large = Budget(most, parted), Budget(large, parted)
        """The latter: waiting and at work."""
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
        large, owner, tenant = int(size > SMALL_PIECE_BYTES), owner_now(), tenant_now()
        with self._changed:
            if not self._waiting.fits(owner, 1) or not self._large.fits(owner, large):
                raise ApiError(
                    429,
                    f"Too many requests wait for the server's {self.name}; try again in {BUSY_S} s.",
                    code="host_busy",
                    headers={"Retry-After": str(BUSY_S)},
                )
            self._waiting.take(owner, 1)
            self._large.take(owner, large)
            lane = owner if self._parted else ""
            piece = size, next(self._order), (owner, tenant), work, future, loop
            heapq.heappush(self._pieces.setdefault(lane, []), piece)
            self._start()
            self._changed.notify_all()
        return future

    def _start(self) -> None:
        while self._threads < 2:
            target = self._small if self._threads else self._any
            start_roomy(threading.Thread(target=target, name=f"paceline-{self.name}", daemon=True))
            self._threads += 1

    def _any(self) -> None:
        self._serve(lambda: bool(self._pieces))

    def _small(self) -> None:
        self._serve(lambda: any(heap[0][0] <= SMALL_PIECE_BYTES for heap in self._pieces.values()))

    def _serve(self, there_is: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or there_is())
                if self._closed:
                    return
                size, _, (owner, tenant), work, future, loop = self._next()
                self._waiting.give(owner, 1)
            ended = partial(self._ended, owner, size)
            if future.cancelled():
                ended()
            else:
                TRIAL_CLIENT.set(TrialClient(owner, future.cancelled, tenant))
                self._do(work, future, loop, ended)
            del work, future

    def _next(self) -> Piece:
        """Take out the piece whose turn it is."""
        lane = min(self._pieces, key=self._rank)
        heap = self._pieces[lane]
        piece = heapq.heappop(heap)
        if not heap:
            del self._pieces[lane]
        self._turns.pop(lane, None)
        self._turns[lane] = next(self._order)
        if len(self._turns) > self.most:
            del self._turns[next(iter(self._turns))]
        return piece

    def _rank(self, lane: str) -> tuple[bool, int, int]:
        size, order = self._pieces[lane][0][:2]
        return size > SMALL_PIECE_BYTES, self._turns.get(lane, 0), order

    def _ended(self, owner: str, size: int) -> None:
        if size > SMALL_PIECE_BYTES:
            with self._changed:
                self._large.give(owner, 1)

    def _do(
        self,
        work: Callable[[], Any],
        future: "asyncio.Future[Any]",
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[], None],
    ) -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as fault:  # also the panics of libraries in other languages
            error = fault if isinstance(fault, Exception) else RuntimeError(str(fault))
            if isinstance(error, PacelineError | ApiError):  # sent to the client: its frames would hold what they held
                error.__traceback__ = error.__context__ = None
        ended()  # before its answer, which may bring the next
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(_settle, future, value, error)
        del value, error

    def close(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def owner_now() -> str:
    """Client of the request that is being served."""
    return str(getattr(DOOR.get(), "owner", ""))


def tenant_now() -> str:
    """Tenant of that client; empty where all share."""
    return str(getattr(DOOR.get(), "tenant", ""))


class Uncollected:
    """Within it no search for garbage begins, in no thread: what a parser makes has no circles, and it would be looked
    through again and again while it grows."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            gc.disable()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                gc.enable()


UNCOLLECTED = Uncollected()


def give_back(search: bool = True) -> None:
    """Return freed memory to the system, where its C library can: else a large request leaves its mark for ever.
    `search` for garbage before, which stops all threads for a while."""
    if search:
        gc.collect()
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

    def __init__(self, crowd: int = 0, parted: bool = False) -> None:
        """`crowd`: requests that may wait for the engine; as many small pieces may wait here, and never under 256.
        `parted`: clients have a share each."""
        most = max(256, crowd)
        self.bodies = WorkerPool("bodies", most, parted=parted)
        self.texts = WorkerPool("tokenizer", most, parted=parted)
        self.grammars = WorkerPool("grammars", 64, parted=parted)
        self.answers = WorkerPool("long answers", 64, parted=parted)
        self.busy: Callable[[], bool] = lambda: False
        """Are requests served?"""
        self._tidying, self._put_off = False, 0
        self._more = False
        """Has something been freed since memory was last given back?"""

    def tidy(self) -> None:
        """Give memory back to the system, soon and not too often; for the event loop."""
        self._more = True
        if not self._tidying:
            self._tidying, self._put_off = True, 0
            asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    def _tidy(self) -> None:
        idle = not self.busy()
        if idle or self._more or self._put_off == MOST_PUT_OFF:
            self._more = False
            with suppress(ApiError):
                self.answers.post(partial(give_back, idle))
        self._tidying = not idle and self._put_off < MOST_PUT_OFF
        if self._tidying:
            self._put_off += 1
            asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    def close(self) -> None:
        for pool in (self.bodies, self.texts, self.grammars, self.answers):
            pool.close()
