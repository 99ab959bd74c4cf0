"""The learned order against HEFT and simple orders: mean completion of graphs on three unlike processors.

    python bench/studies/workflow_order.py [--order order.safetensors] [--seeds 5] [--graphs 60]

Each seed is a stream of random graphs; figures are mean completion over HEFT's on the same stream, swept over the rate
of arrivals, the noise of times and how unlike the processors are, each about the middle of the other two. `--order` is
by default the shipped one; the row `untrained` is the rule that the network begins with. `random` and `least left` (the
workflow with the least mean seconds left first) show what any other order than the rank brings.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from paceline.cluster.learn.order import SHIPPED_ORDER, LearnedOrder, OrderNetwork, load
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
    parser.add_argument("--order", type=Path, default=SHIPPED_ORDER)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--graphs", type=int, default=60)
    given = parser.parse_args()
    torch.manual_seed(0)
    networks = {"untrained": OrderNetwork(), "learned": load(given.order)}
    orders: dict[str, Callable[[Scene], Order]] = {
        "random": lambda s: Random(0),
        "first come": lambda s: First(),
        "least left": Least,
        **{name: partial(_learned, network) for name, network in networks.items()},
    }
    middle = {"every": 42.0, "noise": 0.3, "spread": 1.0}
    sweeps = {"every": (60.0, 42.0, 36.0, 30.0), "noise": (0.0, 0.3, 0.6, 1.0), "spread": (0.0, 0.5, 1.0, 1.5)}
    for name, values in sweeps.items():
        for value in values:
            compare({**middle, name: value}, f"{name} {value}", orders, given)


def _learned(network: OrderNetwork, given: Scene) -> Order:
    return LearnedOrder(network, given.table)


def compare(
    at: dict[str, float], title: str, orders: dict[str, Callable[[Scene], Order]], given: argparse.Namespace
) -> None:
    scenes = [
        scene(np.random.default_rng([90, seed]), given.graphs, at["every"], at["noise"], spread=at["spread"])
        for seed in range(given.seeds)
    ]
    heft = [each.play(Ranks()).mean() for each in scenes]
    print(f"{title}: HEFT {np.mean(heft):.1f} s", end="")
    rows: dict[str, list[float]] = {}
    for name, order in orders.items():
        rows[name] = ratios = [each.play(order(each)).mean() / base for each, base in zip(scenes, heft)]
        half = stats.t.ppf(0.975, len(ratios) - 1) * stats.sem(ratios)
        print(f"; {name} {np.mean(ratios):.3f} (+- {half:.3f})", end="", flush=True)
    lead = [b - a for a, b in zip(rows["least left"], rows[list(rows)[-1]])]
    half = stats.t.ppf(0.975, len(lead) - 1) * stats.sem(lead)
    print(f"; {list(rows)[-1]} - least left {np.mean(lead):+.4f} (+- {half:.4f})")


if __name__ == "__main__":
    main()
