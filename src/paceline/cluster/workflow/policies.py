"""Planners with their queues, by name; and what a dispatcher is made from, as data."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from paceline.cluster.workflow.baselines import ArrivalOrder, Balanced, Planned, RoundRobin, ShortestQueue
from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.heft import EFT, Order, Ranks
from paceline.cluster.workflow.hexgen import HexGen, Urgency
from paceline.cluster.workflow.predict import Corrected, FittedPredictor
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Queue, WorkflowPlanner
from paceline.core.errors import InputError

DISPATCHER_NAMES = (
    "hexgen",
    "hexgen+fcfs",
    "rr+fcfs",
    "rr+urgency",
    "shortest+fcfs",
    "balanced+fcfs",
    "balanced+urgency",
    "heft",
    "learned",
)
"""Dispatch, and the order of local queues where it is not the planner's own."""

MakeOrder = Callable[[CallPredictor], Order]


def policy(
    name: str, predictor: CallPredictor, *, alpha: float = 0.3, patience: float = inf, order: MakeOrder | None = None
) -> tuple[WorkflowPlanner, Queue]:
    """The planner and queue of a name of `DISPATCHER_NAMES`. `order` makes the trained one for `learned`."""
    if name not in DISPATCHER_NAMES:
        raise InputError(f"Unknown workflow planner {name!r}; known are {', '.join(DISPATCHER_NAMES)}.")
    if name == "learned" and order is None:
        raise InputError("Planner 'learned' needs a trained order; make one with `paceline train workflow-order`.")
    if not 0.0 <= alpha <= 1.0:
        raise InputError(f"alpha is {alpha}, but it must be from 0 to 1.")
    if name in ("heft", "learned"):
        return EFT(order(predictor) if name == "learned" and order is not None else Ranks(), predictor), Planned()
    dispatch, _, queue = name.partition("+")
    planner: WorkflowPlanner = HexGen(predictor, alpha)
    if dispatch != "hexgen":
        others: dict[str, WorkflowPlanner] = {"rr": RoundRobin(), "shortest": ShortestQueue()}
        planner = others.get(dispatch) or Balanced(predictor)
    return planner, ArrivalOrder() if queue == "fcfs" else Urgency(predictor, patience)


@dataclass(frozen=True, slots=True)
class DispatcherSetup:
    """A dispatcher before its first workflow."""

    policy: str
    instances: tuple[tuple[str, str, int], ...]
    """(name, kind, slots)."""
    prior: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """By kind: seconds a call, a 1,000 prompt tokens, a 1,000 output tokens."""
    alpha: float = 0.3
    patience: float = inf

    def dispatcher(self, order: MakeOrder | None = None) -> Dispatcher:
        predictor = Corrected(FittedPredictor(self.prior))
        planner, queue = policy(self.policy, predictor, alpha=self.alpha, patience=self.patience, order=order)
        instances = {name: Instance(name, kind, slots) for name, kind, slots in self.instances}
        return Dispatcher(instances, planner, queue, predictor)

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "DispatcherSetup":
        """InputError for data that is no setup."""
        try:
            instances = tuple((name, kind, slots) for name, kind, slots in data["instances"])
            prior = {kind: (w[0], w[1], w[2]) for kind, w in data["prior"].items()}
            return cls(data["policy"], instances, prior, data["alpha"], data["patience"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError("The log's setup is damaged, or of another version; record it again.") from error
