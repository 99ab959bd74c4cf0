"""Graphs of calls to plan: files of DS3 (DeepSoCS's simulator), and random layered graphs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import SimulatedCall
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from paceline.core.errors import InputError


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Steps in an order in which each stands after its predecessors."""

    steps: tuple[str, ...]
    after: tuple[tuple[int, ...], ...]
    volume: tuple[tuple[float, ...], ...]
    """Seconds of each transfer, one per entry of `after`."""

    def tasks(self, workflow: Workflow) -> list[Task]:
        made: list[Task] = []
        for number, step in enumerate(self.steps):
            parents = tuple(made[each] for each in self.after[number])
            task = Task(f"{workflow.id}.{number}", workflow, CallWork(step), parents, self.volume[number])
            for parent in parents:
                parent.children.append(task)
            made.append(task)
        return made

    def calls(self, rng: np.random.Generator, noise: float) -> tuple[SimulatedCall, ...]:
        """One run: seconds vary by Normal(1, noise), but by a tenth of the table at least."""
        luck = np.maximum(0.1, rng.normal(1.0, noise, len(self.steps))) if noise else np.ones(len(self.steps))
        return tuple(
            SimulatedCall(CallWork(step), 0.0, 0.0, self.after[n], self.volume[n], noise=float(luck[n]))
            for n, step in enumerate(self.steps)
        )


def read_job(path: Path) -> StepGraph:
    """A job file of DS3. InputError for a file that is none."""
    names: dict[int, str] = {}
    after: dict[int, list[int]] = {}
    volume: dict[tuple[int, int], float] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if not words or words[0].startswith("#") or words[0] in ("job_name", "add_new_tasks"):
                continue
            if words[0] == "comm_vol":
                volume[int(words[1]), int(words[2])] = float(words[3])
            elif words[1] in ("HEAD", "TAIL", "earliest_start"):
                continue
            else:
                names[int(words[1])], after[int(words[1])] = words[0], [int(each) for each in words[2:]]
        count = range(len(names))
        order = tuple(tuple(after[n]) for n in count)
        if any(parent >= n for n in count for parent in order[n]):
            raise ValueError("a task stands before its predecessor")
        times = tuple(tuple(volume[parent, n] for parent in order[n]) for n in count)
        return StepGraph(tuple(names[n] for n in count), order, times)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise InputError(f"{path} is not a job file of DS3: {error}.") from error


def read_processors(path: Path) -> tuple[list[Instance], SecondsTable]:
    """Processors of a resource file of DS3, and each step's seconds on each. InputError for a file that is none."""
    entries: dict[str, dict[str, float]] = {}
    row: dict[str, float] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if not words or words[0].startswith("#") or words[0] in ("opp", "comm_band"):
                continue
            if words[0] == "add_new_resource":
                row = entries.setdefault(words[2], {})
            else:
                row[words[0]] = float(words[1])
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path} is not a resource file of DS3: {error}.") from error
    found = {name: row for name, row in entries.items() if any(row.values())}
    return [Instance(name, name) for name in found], SecondsTable(found)


def random_graph(rng: np.random.Generator, prefix: str, size: int, width: int, transfer: float) -> StepGraph:
    """Layers of up to `width` calls; each call follows one to three of the layer before."""
    layers: list[list[int]] = []
    after: list[tuple[int, ...]] = []
    while len(after) < size:
        wide = min(size - len(after), int(rng.integers(1, width + 1)))
        before = layers[-1] if layers else []
        layers.append(list(range(len(after), len(after) + wide)))
        for _ in range(wide):
            count = min(len(before), int(rng.integers(1, 4)))
            after.append(
                tuple(sorted(int(each) for each in rng.choice(before, count, replace=False))) if before else ()
            )
    volume = tuple(tuple(float(rng.uniform(0.0, 2.0 * transfer)) for _ in parents) for parents in after)
    return StepGraph(tuple(f"{prefix}{n}" for n in range(size)), tuple(after), volume)


def random_table(
    rng: np.random.Generator, steps: tuple[str, ...], kinds: tuple[str, ...], spread: float = 1.0
) -> SecondsTable:
    """Seconds from 13 - 8 `spread` to 13 + 8 `spread`, each step on each kind by itself: 5 to 21 as in Topcuoglu's
    example, all equal at 0. InputError for a spread from 1.6 on, where times would end."""
    if not 0.0 <= spread < 1.6:
        raise InputError(f"spread is {spread}, but it must be from 0 to under 1.6.")
    low, high = 13.0 - 8.0 * spread, 13.0 + 8.0 * spread
    return SecondsTable({kind: {step: float(rng.uniform(low, high)) for step in steps} for kind in kinds})
