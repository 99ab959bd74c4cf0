"""HEFT (Topcuoglu et al., 2002): order by upward rank, place by earliest finish with insertion; once, or as calls
become ready. The order is a part of its own, so that a learned one can take its place (DeepSoCS, arXiv 2005.07666)."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from paceline.cluster.workflow.baselines import own
from paceline.cluster.workflow.dispatch import moved
from paceline.cluster.workflow.predict import mean
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task


class Span(NamedTuple):
    """Occupied time."""

    start: float
    end: float


@dataclass(slots=True)
class Timeline:
    """What a processor is occupied with."""

    spans: list[Span] = field(default_factory=list)

    def fit(self, ready: float, seconds: float) -> float:
        """The start of the first gap from `ready` on that is long enough (insertion)."""
        free = ready
        for span in self.spans:
            if free + seconds <= span.start:
                break
            free = max(free, span.end)
        return free

    def add(self, start: float, seconds: float) -> None:
        insort(self.spans, Span(start, start + seconds))


class Placed(NamedTuple):
    """Placement of one call in a schedule."""

    instance: Instance
    start: float
    end: float


class Order(Protocol):
    """Which ready calls go first."""

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        """All of `ready`, the first first."""
        ...


class Ranks:
    """Decreasing upward rank."""

    def order(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[Task]:
        return sorted(ready, key=lambda task: (-task.rank, task.id))


def rank(tasks: Sequence[Task], instances: Sequence[Instance], predictor: CallPredictor) -> None:
    """Upward ranks of calls that stand after their predecessors: mean seconds plus the longest way below, transfers
    included."""
    for task in reversed(tasks):
        below = (moved(task, child) + child.rank for child in task.children)
        task.rank = mean(predictor, task.work, instances) + max(below, default=0.0)


def schedule(tasks: Sequence[Task], instances: Sequence[Instance], predictor: CallPredictor) -> dict[str, Placed]:
    """The whole of HEFT for a graph that is known at once, on idle instances: start and end of each call."""
    rank(tasks, instances, predictor)
    lines = {each.name: [Timeline() for _ in range(each.slots)] for each in instances}
    place = {task.id: at for at, task in enumerate(tasks)}
    out: dict[str, Placed] = {}
    for task in sorted(tasks, key=lambda t: (-t.rank, place[t.id])):
        best: tuple[float, Placed, Timeline] | None = None
        for each in [own(task, instances)] if task.pinned else instances:
            assert each is not None
            ready = max((_arrives(parent, task, out[parent.id], each) for parent in task.after), default=0.0)
            seconds = predictor.seconds(task.work, each)
            for line in lines[each.name]:
                start = line.fit(ready, seconds)
                if best is None or start + seconds < best[0]:
                    best = (start + seconds, Placed(each, start, start + seconds), line)
        assert best is not None
        out[task.id] = best[1]
        best[2].add(best[1].start, best[1].end - best[1].start)
    return out


def _arrives(parent: Task, task: Task, placed: Placed, at: Instance) -> float:
    return placed.end + (0.0 if placed.instance is at else moved(parent, task))


@dataclass(slots=True)
class EFT:
    """A streaming planner: at each decision all calls that are ready and not started, of all workflows, are put in
    order and placed one by one where each would finish first, between what runs. Nothing is bound before it starts, so
    a later decision corrects an earlier one. With `Ranks` it is HEFT over the merged graphs."""

    ranking: Order
    predictor: CallPredictor
    replans: bool = True

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        lines = {each.name: self._lines(each, now) for each in instances}
        out = []
        for task in self.ranking.order(ready, instances, now):
            best: tuple[float, float, Instance, Timeline] | None = None
            pinned = own(task, instances)
            for each in instances if pinned is None else [pinned]:
                seconds = self.predictor.seconds(task.work, each)
                for line in lines[each.name]:
                    start = line.fit(max(now, task.available(each.name)), seconds)
                    if best is None or start + seconds < best[0]:
                        best = (start + seconds, start, each, line)
            assert best is not None
            end, task.planned, chosen, line = best
            line.add(task.planned, end - task.planned)
            out.append((task, chosen))
        return out

    def _lines(self, instance: Instance, now: float) -> list[Timeline]:
        """A timeline a slot, with what runs."""
        left = (instance.left(task, now, self.predictor) for task in instance.running.values())
        running = [Timeline([Span(-inf, now + each)]) for each in left]
        return running + [Timeline() for _ in range(instance.slots - len(running))]
