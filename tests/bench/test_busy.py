from collections import namedtuple
from typing import Any

import psutil
import pytest

from paceline.bench.busy import CpuWatch, warning

Times = namedtuple("Times", "user system idle iowait guest guest_nice")
Own = namedtuple("Own", "user system")


class Clock:
    """Stands in for the system's counters: wall seconds, CPU seconds of all and of this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall = self.all = self.own = 0.0
        patch.setattr("paceline.bench.busy.perf_counter", lambda: self.wall)
        patch.setattr(psutil, "cpu_count", lambda: 4)
        patch.setattr(psutil, "cpu_times", lambda: Times(self.all, 0.0, 4 * self.wall - self.all, 1.0, 0.0, 0.0))
        patch.setattr(psutil.Process, "cpu_times", lambda process: Own(self.own, 0.0))

    def run(self, wall: float, all: float, own: float) -> None:
        self.wall, self.all, self.own = self.wall + wall, self.all + all, self.own + own


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    return Clock(monkeypatch)


def test_what_this_process_uses_is_no_disturbance(clock: Clock) -> None:
    watch = CpuWatch()
    clock.run(wall=10, all=31, own=30)
    assert watch.read() == pytest.approx(0.1)
    clock.run(wall=10, all=30, own=30)
    assert watch.during() is None


def test_others_are_told(clock: Clock) -> None:
    watch = CpuWatch()
    clock.run(wall=10, all=35, own=20)
    told = watch.during()
    assert told and "busy during the run: other processes used 1.5 of 4 cores" in told


def test_before_names_who(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: clock.run(interval, 3 * interval, 0))
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda process: 80.0)
    told = CpuWatch().before()
    assert told and "before the run: other processes used 3.0 of 4 cores (most: " in told


def test_a_few_percent_are_let_pass() -> None:
    assert warning(0.1, 4, "now") is None
    assert warning(0.3, 4, "now")
