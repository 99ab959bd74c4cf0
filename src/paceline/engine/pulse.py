"""Is a thread hung, or does a busy machine keep it from running? Its processor time tells."""

import time
from dataclasses import dataclass

SHARE = 0.01
"""A thread that had at least this part of a processor since the last look is on its way."""
MOST_GAP_S = 15.0
"""Seconds that count of the time between two looks. A longer one says that nobody looked, or that the whole process was
stopped, as when its machine sleeps."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The beginning of a step: by the clock, and by the thread's processor time. Seconds."""

    at: float
    used: float


class Pulse:
    """Progress of one thread, which calls `beat` and `rest`; any thread may call `stuck`."""

    def __init__(self) -> None:
        self._begun: Beat | None = None
        self._seen: tuple[Beat, Beat, float] | None = None
        """(the step, the last look, seconds without a sign of life until then)"""

    def beat(self) -> None:
        """A step begins."""
        self._begun = Beat(time.monotonic(), time.thread_time())

    def rest(self) -> None:
        """There is nothing to do."""
        self._begun = None

    def stuck(self, thread: int | None) -> float:
        """Seconds without a sign of life; 0 at rest. `thread`: its `ident`. What counts is the time between two looks
        in which the thread hardly ran, so it should be looked at every few seconds."""
        begun = self._begun
        if begun is None:
            return 0.0
        now = Beat(time.monotonic(), begun.used if thread is None else processor_time(thread))
        _, last, silent = self._seen if self._seen is not None and self._seen[0] is begun else (begun, begun, 0.0)
        gap = now.at - last.at
        silent = 0.0 if now.used - last.used > SHARE * gap else silent + min(gap, MOST_GAP_S)
        self._seen = begun, now, silent
        return max(silent, now.used - begun.used)


def processor_time(thread: int) -> float:
    """Seconds of a processor that a thread of this process has had; 0 where the system does not tell, and then a thread
    that was not at rest counts as hung."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    except (AttributeError, OSError):
        return 0.0
