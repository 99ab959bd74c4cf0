"""What planners are compared with: round robin, the shortest queue or backlog, and first come, first served."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task


@dataclass(slots=True)
class RoundRobin:
    """The next instance in turn."""

    replans: bool = False
    turn: int = 0

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        out = []
        for task in ready:
            out.append((task, own(task, instances) or instances[self.turn % len(instances)]))
            self.turn += 1
        return out


@dataclass(slots=True)
class ShortestQueue:
    """The instance with the fewest calls, queued and running, for its slots; it needs no predictor."""

    replans: bool = False

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        load = {each.name: (len(each.queue) + len(each.running)) / each.slots for each in instances}
        out = []
        for task in ready:
            best = own(task, instances) or min(instances, key=lambda each: load[each.name])
            load[best.name] += 1.0 / best.slots
            out.append((task, best))
        return out


@dataclass(slots=True)
class Balanced:
    """The instance with the least predicted backlog."""

    predictor: CallPredictor
    replans: bool = False

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        load = {each.name: each.backlog(now, self.predictor) for each in instances}
        out = []
        for task in ready:
            best = own(task, instances) or min(instances, key=lambda each: load[each.name])
            load[best.name] += self.predictor.seconds(task.work, best) / best.slots
            out.append((task, best))
        return out


class ArrivalOrder:
    """First come, first served, by call."""

    def key(self, task: Task, instance: Instance, now: float) -> tuple[float, ...]:
        return (task.ready or 0.0,)


class Planned:
    """In the order in which the planner means them to start."""

    def key(self, task: Task, instance: Instance, now: float) -> tuple[float, ...]:
        return (task.planned,)


def own(task: Task, instances: Sequence[Instance]) -> Instance | None:
    """The instance to which a call is pinned."""
    return next((each for each in instances if each.name == task.pinned), None)
