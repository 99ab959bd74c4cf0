"""The learned order against HEFT and simple orders: mean completion of graphs on three unlike processors.

    python bench/studies/workflow_order.py --order order.safetensors [--seeds 5]

Each seed is a stream of 60 random graphs; figures are mean completion over HEFT's on the same stream, with and without
noise in the times. `random` and `least left` (the workflow with the least mean seconds left first) show what any other
order than the rank brings.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from paceline.cluster.learn.order import LearnedOrder, load
from paceline.cluster.learn.scenes import Scene, scene
from paceline.cluster.workflow.heft import Order, Ranks
from paceline.cluster.workflow.tasks import Instance, Task


class Random:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        return [ready[at] for at in self._rng.permutation(len(ready))]


class First:
    """The workflow that came first; within it, the rank."""

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        return sorted(ready, key=lambda task: (task.workflow.arrival, -task.rank))


class Least:
    """The workflow with the least mean seconds left; within it, the rank."""

    def __init__(self, given: Scene) -> None:
        self._table = given.table

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        def left(task: Task) -> float:
            open = (t for t in task.workflow.tasks if t.finished is None)
            return sum(self._table.seconds(t.work, each) for t in open for each in instances)

        return sorted(ready, key=lambda task: (left(task), -task.rank))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    network = load(given.order)
    orders: dict[str, Callable[[Scene], Order]] = {
        "learned": lambda s: LearnedOrder(network, s.table),
        "random": lambda s: Random(0),
        "first come": lambda s: First(),
        "least left": Least,
    }
    for every in (60.0, 42.0, 36.0):
        for noise in (0.0, 0.3):
            scenes = [scene(np.random.default_rng([90, seed]), 60, every, noise) for seed in range(given.seeds)]
            heft = [each.play(Ranks()).mean() for each in scenes]
            print(f"a graph every {every:.0f} s, noise {noise}: HEFT {np.mean(heft):.1f} s", end="")
            for name, order in orders.items():
                ratios = [each.play(order(each)).mean() / base for each, base in zip(scenes, heft)]
                half = stats.t.ppf(0.975, len(ratios) - 1) * stats.sem(ratios)
                print(f"; {name} {np.mean(ratios):.3f} (+- {half:.3f}, most {max(ratios):.3f})", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
