"""Batches of workflows whose calls are bound to instances, as a job shop: solved whole, followed as calls finish."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.cluster.workflow.jssp.problem import Problem, Schedule
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task, Workflow
from paceline.core.errors import InputError

TIME_UNIT_S = 1e-3
"""Seconds of a problem's unit of time."""
Solver = Callable[[Problem], Schedule]
"""A rule, a learned rule or CP-SAT."""


@dataclass(slots=True)
class BatchPlanner:
    """A planner for chains of pinned calls on instances with one slot. Starts follow the schedule's order on each
    instance, so a call may wait for one that is not ready yet; it is solved again when workflows come, or when an
    instance was lost."""

    predictor: CallPredictor
    solver: Solver
    replans: bool = True
    order: dict[str, float] = field(default_factory=dict)
    """Planned start by call."""
    solved: int = 0
    _alive: frozenset[str] = frozenset()

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        flows = list(dict.fromkeys(task.workflow for task in ready))
        flows += [w for w in dict.fromkeys(t.workflow for i in instances for t in i.running.values()) if w not in flows]
        alive = frozenset(each.name for each in instances)
        if alive != self._alive or any(t.id not in self.order for flow in flows for t in flow.tasks):
            self._alive = alive
            self._solve(flows, instances, now)
        waiting = [t for flow in flows for t in flow.tasks if t.started is None and t.finished is None]
        out = []
        for task in ready:
            at = next(each for each in instances if each.name == task.pinned)
            task.planned = self.order[task.id]
            if not any(t.pinned == task.pinned and self.order[t.id] < task.planned for t in waiting):
                out.append((task, at))
        return out

    def _solve(self, flows: Sequence[Workflow], instances: Sequence[Instance], now: float) -> None:
        chains = [chain for flow in flows if (chain := _chain(flow))]
        number = {each.name: n for n, each in enumerate(instances)}
        if any(each.slots != 1 for each in instances):
            raise InputError("A batch planner needs instances of one slot; start them with slots 1.")
        left = {t.id: each.left(t, now, self.predictor) for each in instances for t in each.running.values()}
        lost = len(instances)
        """Stands for every instance that is not alive."""
        machines = tuple(tuple(number.get(t.pinned or "", lost) for t in chain) for chain in chains)
        took = tuple(tuple(self._units(task, instances) for task in chain) for chain in chains)
        holds = tuple(_int(sum(left.get(id, 0.0) for id in each.running)) for each in instances)
        releases = tuple(_int(sum(left.get(t.id, 0.0) for t in chain[0].workflow.tasks)) for chain in chains)
        found = self.solver(Problem("batch", machines, took, holds=holds, releases=releases))
        self.solved += 1
        for flow in flows:
            self.order.update((task.id, -1.0) for task in flow.tasks if task.id not in self.order)
        for chain, starts in zip(chains, found.starts):
            self.order.update((task.id, now + TIME_UNIT_S * start) for task, start in zip(chain, starts))

    def _units(self, task: Task, instances: Sequence[Instance]) -> int:
        at = next((each for each in instances if each.name == task.pinned), instances[0])
        return max(1, _int(self.predictor.seconds(task.work, at)))


def _int(seconds: float) -> int:
    return round(seconds / TIME_UNIT_S)


def _chain(flow: Workflow) -> list[Task]:
    """Calls that have not started, one after the other. InputError where they are no chain, or not pinned."""
    chain = [task for task in flow.tasks if task.started is None and task.finished is None]
    for before, task in zip([None, *flow.tasks], flow.tasks):
        if task.pinned is None or task.after != (() if before is None else (before,)):
            raise InputError(f"Workflow {flow.id!r} is not a chain of pinned calls, which a batch planner needs.")
    return chain
