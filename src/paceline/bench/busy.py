"""Is something else using this machine? Timings taken then say little."""

import os
from time import perf_counter

import psutil

BUSY_SHARE = 0.05
"""Share of all cores that others may use without a warning."""


def warning(others: float, cores: int, when: str, culprit: str = "") -> str | None:
    """A sentence when other processes used more than BUSY_SHARE of the cores; else None."""
    if others <= BUSY_SHARE * cores:
        return None
    return (
        f"The machine was busy {when}: other processes used {others:.1f} of {cores} cores{culprit}; timings may be off."
    )


class CpuWatch:
    """CPU time of everyone else since it was made (or last read), from the system's own counters."""

    def __init__(self) -> None:
        self.cores = psutil.cpu_count() or 1
        self._own = psutil.Process()
        self._start = self._read()

    def _read(self) -> tuple[float, float, float]:
        times, own = psutil.cpu_times(), self._own.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # part of user time already
        return perf_counter(), sum(times) - idle - guest, own.user + own.system

    def read(self) -> float:
        """Cores that others used on average since the last read."""
        before, self._start = self._start, self._read()
        wall, busy, own = (now - then for now, then in zip(self._start, before))
        return max(0.0, (busy - own) / wall) if wall > 0 else 0.0

    def before(self, seconds: float = 0.5) -> str | None:
        """Watch for a moment while this process does nothing, and name the busy processes."""
        processes = [p for p in psutil.process_iter() if p.pid != os.getpid()]
        for process in processes:
            _percent(process)
        self.read()
        psutil.cpu_percent(interval=seconds)
        others = self.read()
        percent, culprit = max(((_percent(p), p) for p in processes), key=lambda pair: pair[0], default=(0.0, None))
        name = f" (most: {_name(culprit)}, process {culprit.pid})" if culprit and percent > 5 else ""
        return warning(others, self.cores, "before the run", name)

    def during(self) -> str | None:
        return warning(self.read(), self.cores, "during the run")


def _percent(process: psutil.Process) -> float:
    """CPU use since the last call, in percent of one core; 0 for processes that are gone or not ours to see."""
    try:
        return float(process.cpu_percent())
    except psutil.Error:
        return 0.0


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "unknown"
