"""HEFT: the golden example, feasible schedules, and the streaming form."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from paceline.cluster.learn.scenes import SCENE_KINDS, scene
from paceline.cluster.workflow.dags import StepGraph, random_graph, random_table, read_job, read_processors
from paceline.cluster.workflow.dispatch import moved
from paceline.cluster.workflow.heft import Ranks, Span, Timeline, schedule
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.tasks import Instance, Task, Workflow
from paceline.core.errors import InputError

SHARED = Path(os.environ.get("PACELINE_SHARED", "../shared")) / "data" / "dag"
TIMES = ((14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10), (13, 16, 9), (7, 15, 11), (5, 11, 14),
         (18, 12, 20), (21, 7, 16))  # fmt: skip
EDGES = {(0, 1): 18, (0, 2): 12, (0, 3): 9, (0, 4): 11, (0, 5): 14, (1, 7): 19, (1, 8): 16, (2, 6): 23, (3, 7): 27,
         (3, 8): 23, (4, 8): 13, (5, 7): 15, (6, 9): 17, (7, 9): 11, (8, 9): 13}  # fmt: skip
RANKS = [108.0, 77.0, 80.0, 80.0, 69.0, 63.33, 42.67, 35.67, 44.33, 14.67]
PLACES = ["P3", "P1", "P3", "P2", "P3", "P2", "P3", "P1", "P2", "P2"]


def topcuoglu() -> tuple[StepGraph, list[Instance], SecondsTable]:
    after = tuple(tuple(a for a, b in EDGES if b == n) for n in range(10))
    volume = tuple(tuple(float(EDGES[a, n]) for a in parents) for n, parents in enumerate(after))
    steps = tuple(f"task_{n + 1}" for n in range(10))
    kinds = ("P1", "P2", "P3")
    entries = {kind: {step: float(TIMES[n][k]) for n, step in enumerate(steps)} for k, kind in enumerate(kinds)}
    return StepGraph(steps, after, volume), [Instance(kind, kind) for kind in kinds], SecondsTable(entries)


def check_golden(graph: StepGraph, instances: list[Instance], table: SecondsTable) -> None:
    tasks = graph.tasks(Workflow("w", 0.0))
    made = schedule(tasks, instances, table)
    assert [round(task.rank, 2) for task in tasks] == RANKS
    assert max(placed.end for placed in made.values()) == 80.0
    assert [made[task.id].instance.name for task in tasks] == PLACES


def test_golden_example() -> None:
    check_golden(*topcuoglu())


def test_golden_example_from_the_files() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here")
    check_golden(read_job(SHARED / "job_Top.txt"), *read_processors(SHARED / "DASH.SoC.Top.txt"))


def test_schedules_are_feasible_and_ranks_fall_along_edges() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        graph = random_graph(rng, "s", int(rng.integers(2, 30)), 4, 8.0)
        table, instances = random_table(rng, graph.steps, SCENE_KINDS), [Instance(kind, kind) for kind in SCENE_KINDS]
        tasks = graph.tasks(Workflow("w", 0.0))
        made = schedule(tasks, instances, table)
        for task in tasks:
            for parent in task.after:
                assert parent.rank > task.rank
                same = made[parent.id].instance is made[task.id].instance
                assert made[task.id].start >= made[parent.id].end + (0.0 if same else moved(parent, task)) - 1e-9
        for instance in instances:
            spans = sorted((p.start, p.end) for p in made.values() if p.instance is instance)
            assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(spans))


def test_a_gap_is_used_if_it_is_long_enough() -> None:
    line = Timeline([Span(0.0, 2.0), Span(5.0, 9.0)])
    assert line.fit(0.0, 3.0) == 2.0 and line.fit(0.0, 3.5) == 9.0 and line.fit(3.0, 2.0) == 3.0


class Logits:
    """An order by numbers given from outside."""

    def order(self, ready: list[Task], instances: list[Instance], now: float) -> list[Task]:
        return sorted(ready, key=lambda task: (-task.rank, task.id))


def test_an_order_by_ranks_is_heft_to_the_last_start() -> None:
    given = scene(np.random.default_rng(5), jobs=12, noise=0.2)
    assert given.play(Logits()).finished == given.play(Ranks()).finished  # type: ignore[arg-type]
    assert given.play(Ranks()).finished == given.play(Ranks()).finished, "and it repeats"


@pytest.mark.parametrize(
    "text", ["", "task_1 x", "task_1 0 4\ntask_2 1", "comm_vol 0 1 5\ntask_1 0\ntask_2 1 0\ntask_3 2 1"]
)
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.txt"
    path.write_text(text)
    if text:
        with pytest.raises(InputError, match="job file"):
            read_job(path)
    with pytest.raises(InputError, match="job file"):
        read_job(tmp_path / "absent")
