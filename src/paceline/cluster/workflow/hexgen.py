"""HexGen-Text2SQL (arXiv 2505.05286): dispatch by suitability against backlog, local queues by urgency."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from paceline.cluster.workflow.baselines import own
from paceline.cluster.workflow.tasks import CallPredictor, Instance, Task


@dataclass(slots=True)
class HexGen:
    """Section 4.2: the instance with the largest `alpha * t(base) / t(e) - (1 - alpha) * W_e / W_base`. `base` is the
    instance that is quickest for the call; while it has no backlog, it gets it. `alpha` 1 looks at speed alone, 0 at
    balance alone. Scaling all times leaves the choice as it is."""

    predictor: CallPredictor
    alpha: float = 0.3
    replans: bool = False

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        load = {each.name: each.backlog(now, self.predictor) for each in instances}
        out = []
        for task in sorted(ready, key=lambda t: (slack(t, now), t.ready or 0.0, t.id)):
            chosen = own(task, instances) or self._best(task, instances, load)
            load[chosen.name] += self.predictor.seconds(task.work, chosen) / chosen.slots
            out.append((task, chosen))
        return out

    def _best(self, task: Task, instances: Sequence[Instance], load: dict[str, float]) -> Instance:
        took = {each.name: self.predictor.seconds(task.work, each) for each in instances}
        base = min(instances, key=lambda each: (took[each.name], load[each.name]))
        if load[base.name] <= 0.0:
            return base

        def score(each: Instance) -> float:
            suits, heavy = took[base.name] / took[each.name], load[each.name] / load[base.name]
            return self.alpha * suits - (1.0 - self.alpha) * heavy

        return max(instances, key=score)


@dataclass(slots=True)
class Urgency:
    """Section 4.3: the least slack first, `budget - waited - t(e, step)`.

    The paper's order starves: once deadlines are missed, hopeless calls stay the most urgent, and under load a patient
    one waits forever. Here a call whose workflow cannot be in time any more goes behind those that can, and one that
    has waited for `patience` seconds goes first, the oldest before the others. `paper`: without both.
    """

    predictor: CallPredictor
    patience: float = inf
    paper: bool = False

    def key(self, task: Task, instance: Instance, now: float) -> tuple[float, ...]:
        took = self.predictor.seconds(task.work, instance)
        urgency = slack(task, now) - took
        if self.paper:
            return (0.0, urgency)
        waited = now - (task.ready or 0.0)
        if waited >= self.patience:
            return (0.0, task.ready or 0.0)
        return (2.0 if now + task.rank > task.workflow.deadline else 1.0, urgency)


def slack(task: Task, now: float) -> float:
    """Seconds until a call's budget is spent; after that, negative."""
    return task.budget - (now - (task.ready or 0.0))
