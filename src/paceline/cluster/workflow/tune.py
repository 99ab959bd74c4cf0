"""Alpha of HexGen, tuned in the background: the last workflows, simulated with the policy's own code for each value."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.cluster.workflow.hexgen import HexGen
from paceline.cluster.workflow.log import Event, jobs
from paceline.cluster.workflow.simulate import SimulatedJob, SimulatedRun

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
Try = Callable[[float, Sequence[SimulatedJob]], SimulatedRun]
"""Simulates jobs under an alpha."""


def best(attempt: Try, work: Sequence[SimulatedJob], grid: Sequence[float] = GRID) -> float:
    """The alpha under which most of the workflows are in time; among equals, the one with the least P95, then the
    smallest. The same jobs give the same value."""
    tried = {alpha: attempt(alpha, work) for alpha in grid}
    return min(grid, key=lambda alpha: (-tried[alpha].attainment(), tried[alpha].percentile(0.95), alpha))


@dataclass(slots=True)
class Tuner:
    """Keeps the last `window` workflows of a recorder's events, and says each time `every` more have ended that it is
    time to look for a better alpha of `planner`. `sink` is the recorder's."""

    planner: HexGen
    window: int = 100
    every: int = 50
    recent: deque[list[Event]] = field(default_factory=deque)
    ended: int = 0
    _open: dict[str, list[Event]] = field(default_factory=dict)

    def sink(self, event: Event) -> None:
        if event["event"] in ("submit", "extend", "close"):
            self._open.setdefault(event["id"], []).append(event)
        elif event["event"] == "finish":
            self._open[event["workflow"]].append(event)
        if event["event"] == "close":
            self.recent.append(self._open.pop(event["id"]))
            self.ended += 1
            if len(self.recent) > self.window:
                self.recent.popleft()

    @property
    def due(self) -> bool:
        """Have enough workflows ended since the last look?"""
        return self.ended >= self.every

    def take(self) -> list[SimulatedJob]:
        """The window's workflows; the count restarts."""
        self.ended = 0
        made = [job for events in self.recent for job in jobs(events)]
        return sorted(made, key=lambda job: job.arrival)
