"""Small clusters and workflows for tests."""

from collections.abc import Sequence
from math import inf

from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.models import Batched, Predicted, Speed
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.predict import SecondsTable
from paceline.cluster.workflow.simulate import Fault, SimulatedCall, SimulatedJob, SimulatedRun, Simulation
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from paceline.cluster.workflow.text2sql import SPEEDS

TABLE = {"fast": {"a": 1.0, "b": 2.0, "c": 4.0}, "slow": {"a": 2.0, "b": 4.0, "c": 8.0}}
PRIOR = {kind: (0.0, 1e3 * speed.prefill, 1e3 * speed.decode) for kind, speed in SPEEDS.items()}


def table() -> SecondsTable:
    return SecondsTable({kind: dict(row) for kind, row in TABLE.items()})


def pair(slots: int = 1) -> dict[str, Instance]:
    return {"f": Instance("f", "fast", slots), "s": Instance("s", "slow", slots)}


def task(
    step: str, *, ready: float = 0.0, budget: float = inf, deadline: float = inf, rank: float = 0.0, name: str = ""
) -> Task:
    made = Task(name or step, Workflow("w", 0.0, deadline), CallWork(step), rank=rank, ready=ready, budget=budget)
    made.workflow.tasks.append(made)
    return made


def stages(*widths: tuple[str, int]) -> tuple[tuple[SimulatedCall, ...], ...]:
    return tuple(tuple(SimulatedCall(CallWork(step), 0.0, 0.0) for _ in range(width)) for step, width in widths)


def setup(
    policy: str, kinds: Sequence[str] = ("A100", "L40S", "A6000"), slots: int = 4, alpha: float = 0.3
) -> DispatcherSetup:
    return DispatcherSetup(policy, tuple((f"{kind}-{n}", kind, slots) for n, kind in enumerate(kinds)), PRIOR, alpha)


def play(made: Dispatcher, jobs: Sequence[SimulatedJob], faults: Sequence[Fault] = ()) -> SimulatedRun:
    """Over engines that decode batches."""
    models = {name: Batched(SPEEDS[each.kind]) for name, each in made.instances.items()}
    return Simulation(made, dict(models), jobs, faults).run()


def exact(made: Dispatcher, jobs: Sequence[SimulatedJob], faults: Sequence[Fault] = ()) -> SimulatedRun:
    """Over instances that take what the dispatcher predicts."""
    models = {name: Predicted(made.predictor, each) for name, each in made.instances.items()}
    return Simulation(made, dict(models), jobs, faults).run()


ONE = Speed(0.0, 1.0)
