"""Pace of a computation next to calls, in a thread of the same process."""

import threading
from time import thread_time

REHEARSAL_REST, REHEARSAL_SLICE_S = 9.0, 0.002
"""Rests of a rehearsal, as a multiple of what it computes, and CPU seconds between two of them: it takes a tenth of a
core from the calls, and holds the interpreter for a moment only."""


class RehearsalStopped(Exception):
    """Nobody wants the rehearsal's result any more."""


class SparePace:
    """Slows a thread of computation down to a share of its core: to be called often. `stop` makes the next call raise
    RehearsalStopped."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._last: float | None = None

    def __call__(self, now: float = 0.0) -> None:
        spent = thread_time() - (thread_time() if self._last is None else self._last)
        if self._last is None or spent >= REHEARSAL_SLICE_S:
            if self._stop.wait(REHEARSAL_REST * spent):
                raise RehearsalStopped
            self._last = thread_time()

    def stop(self) -> None:
        self._stop.set()
