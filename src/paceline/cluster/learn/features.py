"""What the order network sees: ready and waiting calls of all open workflows, as numbers about 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from paceline.cluster.workflow.predict import mean
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task, Workflow

FEATURES, RANK_PLACE, LEFT_PLACE = 8, 2, 3
"""Numbers a call: its mean and least seconds, its rank, what its workflow has left and how long it is there, how long
the call waited, is it running, the share of busy slots. Then the places of rank and of what is left."""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The calls of several workflows that have not finished."""

    features: Tensor
    """float32 [N, FEATURES]."""
    parents: Tensor
    """int64 [E]: rows of parents; their children are in `children`, in the same order."""
    children: Tensor
    levels: tuple[Tensor, ...]
    """For each height above the leaves, from 1 on: places in `parents` of the edges whose parent has that height."""
    workflow: Tensor
    """int64 [N]: which workflow."""
    decision: Tensor
    """int64 [W]: of each workflow, which decision; there are several once graphs are joined."""
    ready: Tensor
    """int64 [R]: rows of the calls to order."""
    ranks: Tensor
    """float32 [R]: their upward ranks, in the unit of `features`."""


def graph(ready: Sequence[Task], instances: Sequence[Instance], predictor: CallPredictor, now: float) -> CallGraph:
    """The graph around the ready calls. Times are in units of the mean call's, so that the network does not depend on
    how fast the cluster is."""
    workflows = list(dict.fromkeys(task.workflow for task in ready))
    tasks = [task for workflow in workflows for task in workflow.tasks if task.finished is None]
    row = {task.id: number for number, task in enumerate(tasks)}
    took = [[predictor.seconds(task.work, each) for each in instances] for task in tasks]
    means = [sum(times) / len(times) for times in took]
    unit = sum(means) / len(means)
    busy = sum(len(each.running) for each in instances) / sum(each.slots for each in instances)
    left = {id(w): sum(means[row[t.id]] for t in w.tasks if t.finished is None) + _later(w, instances, predictor)
            for w in workflows}  # fmt: skip
    features = [
        [
            average / unit, min(times) / unit, 0.2 * task.rank / unit, 0.1 * left[id(task.workflow)] / unit,
            0.1 * (now - task.workflow.arrival) / unit,
            0.1 * (now - (now if task.ready is None else task.ready)) / unit, float(task.started is not None), busy,
        ]
        for task, times, average in zip(tasks, took, means)
    ]  # fmt: skip
    pairs = [(row[task.id], row[child.id]) for task in tasks for child in task.children]
    index = {id(workflow): number for number, workflow in enumerate(workflows)}
    return CallGraph(
        torch.tensor(features),
        torch.tensor([parent for parent, _ in pairs], dtype=torch.int64),
        torch.tensor([child for _, child in pairs], dtype=torch.int64),
        _levels(tasks, pairs),
        torch.tensor([index[id(task.workflow)] for task in tasks]),
        torch.zeros(len(workflows), dtype=torch.int64),
        torch.tensor([row[task.id] for task in ready]),
        torch.tensor([task.rank / unit for task in ready]),
    )


def join(graphs: Sequence[CallGraph]) -> CallGraph:
    """Graphs side by side, for one pass over many decisions."""
    rows = list(accumulate((len(g.features) for g in graphs), initial=0))
    edges = list(accumulate((len(g.parents) for g in graphs), initial=0))
    workflows = list(accumulate((len(g.decision) for g in graphs), initial=0))
    deepest = max(len(g.levels) for g in graphs)
    levels = [
        torch.cat([g.levels[h] + edges[n] for n, g in enumerate(graphs) if h < len(g.levels)]) for h in range(deepest)
    ]
    return CallGraph(
        torch.cat([g.features for g in graphs]),
        torch.cat([g.parents + rows[n] for n, g in enumerate(graphs)]),
        torch.cat([g.children + rows[n] for n, g in enumerate(graphs)]),
        tuple(levels),
        torch.cat([g.workflow + workflows[n] for n, g in enumerate(graphs)]),
        torch.cat([torch.full_like(g.decision, n) for n, g in enumerate(graphs)]),
        torch.cat([g.ready + rows[n] for n, g in enumerate(graphs)]),
        torch.cat([g.ranks for g in graphs]),
    )


def _later(workflow: Workflow, instances: Sequence[Instance], predictor: CallPredictor) -> float:
    return sum(mean(predictor, work, instances) for work in workflow.expected)


def _levels(tasks: Sequence[Task], pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    height: dict[str, int] = {}
    for task in reversed(tasks):
        height[task.id] = max((height[child.id] + 1 for child in task.children), default=0)
    levels: list[list[int]] = [[] for _ in range(max(height.values(), default=0))]
    for place, (parent, _) in enumerate(pairs):
        levels[height[tasks[parent].id] - 1].append(place)
    return tuple(torch.tensor(places) for places in levels)
