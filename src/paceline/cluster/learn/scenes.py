"""Streams of random graphs on unlike processors: what orders are trained and compared on."""

from dataclasses import dataclass

import numpy as np

from paceline.cluster.workflow.baselines import Planned
from paceline.cluster.workflow.dags import random_graph, random_table
from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.heft import EFT, Order
from paceline.cluster.workflow.models import Predicted
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import SimulatedJob, SimulatedRun, Simulation
from paceline.cluster.workflow.tasks import Instance

SCENE_KINDS = ("P1", "P2", "P3")


@dataclass(frozen=True, slots=True)
class Scene:
    """Graphs that arrive, and the processors' tables. The same scene is the same down to the noise."""

    table: SecondsTable
    jobs: tuple[SimulatedJob, ...]

    def play(self, order: Order) -> SimulatedRun:
        """Run it with an order and earliest-finish placement."""
        instances = {kind: Instance(kind, kind) for kind in SCENE_KINDS}
        models = {name: Predicted(self.table, each) for name, each in instances.items()}
        dispatcher = Dispatcher(instances, EFT(order, self.table), Planned(), self.table)
        return Simulation(dispatcher, dict(models), self.jobs).run()


def scene(
    rng: np.random.Generator, jobs: int = 20, every: float = 42.0, noise: float = 0.0, *, spread: float = 1.0
) -> Scene:
    """`jobs` graphs of 6 to 14 calls from four templates, a Poisson stream with a mean of `every` seconds between two;
    three processors, with `spread` 1 as unlike as in Topcuoglu's example, with 0 alike."""
    graphs = [random_graph(rng, f"g{n}t", int(rng.integers(6, 15)), 4, 8.0) for n in range(4)]
    table = random_table(rng, tuple(step for graph in graphs for step in graph.steps), SCENE_KINDS, spread)
    at, made = 0.0, []
    for _ in range(jobs):
        at += float(rng.exponential(every))
        made.append(SimulatedJob(at, (graphs[int(rng.integers(len(graphs)))].calls(rng, noise),)))
    return Scene(table, tuple(made))
