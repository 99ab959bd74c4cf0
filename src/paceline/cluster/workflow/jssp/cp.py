"""A constraint model of intervals and its propagation: where the environment's rules come from, and its slow twin."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from paceline.cluster.workflow.jssp.problem import Problem, Schedule
from paceline.core.errors import IntegrityError


@dataclass(slots=True)
class Interval:
    """A variable: it starts within [start, latest] and lasts `length`."""

    length: int
    start: int = 0
    latest: int = 1 << 40
    fixed: bool = False

    @property
    def end(self) -> int:
        """The earliest."""
        return self.start + self.length


class EndBeforeStart(NamedTuple):
    """One interval ends before another starts."""

    before: Interval
    after: Interval

    def propagate(self) -> bool:
        return _raise(self.after, self.before.end) | _lower(self.before, self.after.latest - self.before.length)


@dataclass(slots=True)
class NoOverlap:
    """At most one of the intervals at a time."""

    intervals: list[Interval] = field(default_factory=list)

    def propagate(self) -> bool:
        """Propagate over all pairs: if one operation cannot go before the other, it goes after. Returns whether
        anything changed."""
        changed = False
        for a in self.intervals:
            for b in self.intervals:
                if a is not b and b.end > a.latest:
                    changed |= _raise(b, a.end) | _lower(a, b.latest - a.length)
        return changed


def _raise(interval: Interval, start: int) -> bool:
    if start <= interval.start:
        return False
    if interval.fixed or start > interval.latest:
        raise IntegrityError("The constraints contradict each other.")
    interval.start = start
    return True


def _lower(interval: Interval, latest: int) -> bool:
    if latest >= interval.latest:
        return False
    interval.latest = latest
    return True


class JobShopModel:
    """The generic model of a problem, propagated to its fixed point after each decision."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.jobs = [[Interval(took) for took in row] for row in problem.durations]
        self.constraints: list[EndBeforeStart | NoOverlap] = []
        self.next = [0] * problem.jobs
        machines = [NoOverlap() for _ in range(problem.count)]
        for machine, hold in zip(machines, problem.holds):
            machine.intervals.append(Interval(hold, latest=0, fixed=True))
        for row, order in zip(self.jobs, problem.machines):
            self.constraints += [EndBeforeStart(a, b) for a, b in pairwise(row)]
            for interval, at in zip(row, order):
                machines[at].intervals.append(interval)
        for row, release in zip(self.jobs, problem.releases):
            self.constraints.append(EndBeforeStart(Interval(release, latest=0, fixed=True), row[0]))
        self.constraints += machines
        self.propagate()

    def propagate(self) -> None:
        while sum(constraint.propagate() for constraint in self.constraints):
            pass

    def frontier(self) -> dict[int, int]:
        """The earliest start of each job's next operation."""
        return {job: row[self.next[job]].start for job, row in enumerate(self.jobs) if self.next[job] < len(row)}

    @property
    def now(self) -> int:
        return min(self.frontier().values())

    def legal(self) -> list[int]:
        """Jobs whose next operation can start now; -1 for No-Op, where a later start exists."""
        frontier = self.frontier()
        ready = [job for job, start in frontier.items() if start == min(frontier.values())]
        return ready + ([-1] if len(set(frontier.values())) > 1 else [])

    def act(self, job: int) -> None:
        """Start a job's next operation now; -1 (No-Op): nothing starts before the next time at which one could."""
        frontier = self.frontier()
        if job < 0:
            later = sorted(set(frontier.values()))[1]
            for each in frontier:
                _raise(self.jobs[each][self.next[each]], later)
        else:
            interval = self.jobs[job][self.next[job]]
            interval.latest, interval.fixed = interval.start, True
            self.next[job] += 1
        self.propagate()

    def schedule(self) -> Schedule:
        return Schedule(tuple(tuple(interval.start for interval in row) for row in self.jobs))
