"""Predictors of a call's seconds: a table by step, a line fitted on-line, and a correction by what came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import TypeVar

from paceline.cluster.workflow.tasks import CallPredictor, CallWork, Instance
from paceline.core.errors import InputError

T = TypeVar("T")
MOST_STEPS = 1024


@dataclass(slots=True)
class SecondsTable:
    """Seconds by kind of instance and step; each observation moves an entry by `rate` of the difference. A step that
    was never seen has the mean of its kind, until it is."""

    entries: dict[str, dict[str, float]]
    rate: float = 0.0

    def seconds(self, work: CallWork, instance: Instance) -> float:
        row = self.entries.get(instance.kind)
        if not row:
            known = ", ".join(sorted(self.entries)) or "none"
            raise InputError(f"No seconds are known for instances of kind {instance.kind!r}; known are {known}.")
        return row.get(work.step) or sum(row.values()) / len(row)

    def learn(self, work: CallWork, instance: Instance, seconds: float) -> None:
        if self.rate:
            row = self.entries.setdefault(instance.kind, {})
            row[work.step] = row.get(work.step, seconds) + self.rate * (seconds - row.get(work.step, seconds))


@dataclass(slots=True)
class FittedLine:
    """One kind's seconds: fixed + per prompt token + per output token, by recursive least squares with forgetting.
    Three weights: plain floats are faster than arrays."""

    weights: list[float]
    spread: list[list[float]] = field(default_factory=lambda: [[float(i == j) for j in range(3)] for i in range(3)])
    """Covariance of the weights, up to a factor."""

    def __call__(self, work: CallWork) -> float:
        fixed, prompt, output = self.weights
        return fixed + prompt * work.tokens_in / 1e3 + output * work.tokens_out / 1e3

    def learn(self, work: CallWork, seconds: float, keep: float) -> None:
        row = (1.0, work.tokens_in / 1e3, work.tokens_out / 1e3)
        across = [sum(p * x for p, x in zip(line, row)) for line in self.spread]
        scale = keep + sum(x * a for x, a in zip(row, across))
        off = (seconds - self(work)) / scale
        self.weights = [w + a * off for w, a in zip(self.weights, across)]
        self.spread = [
            [min((p - a * b / scale) / keep, 1e6) for p, b in zip(line, across)] for line, a in zip(self.spread, across)
        ]


class FittedPredictor:
    """A line a kind, fitted on-line. `prior` has (seconds, seconds per 1,000 prompt tokens, seconds per 1,000 output
    tokens) by kind; observations of the last `1 / (1 - keep)` calls count."""

    def __init__(self, prior: Mapping[str, Sequence[float]], keep: float = 0.995) -> None:
        self._lines = {kind: FittedLine(list(weights)) for kind, weights in prior.items()}
        self._keep = keep

    def seconds(self, work: CallWork, instance: Instance) -> float:
        return max(1e-6, self._line(instance)(work))

    def learn(self, work: CallWork, instance: Instance, seconds: float) -> None:
        self._line(instance).learn(work, seconds, self._keep)

    def _line(self, instance: Instance) -> FittedLine:
        if instance.kind not in self._lines:
            self._lines[instance.kind] = FittedLine([0.0, 0.1, 10.0])
        return self._lines[instance.kind]


@dataclass(slots=True)
class Corrected:
    """Another predictor times what came over what it said, by instance and step: geometric means that forget. So an
    instance that is shared, throttled or crowded is known as slow after some calls."""

    base: CallPredictor
    rate: float = 0.1
    factors: dict[str, dict[str, float]] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)

    def seconds(self, work: CallWork, instance: Instance) -> float:
        return self.base.seconds(work, instance) * self._factor(work, instance)

    def learn(self, work: CallWork, instance: Instance, seconds: float) -> None:
        ratio = min(max(seconds / self.base.seconds(work, instance), 1e-3), 1e3)
        steps = self.factors.setdefault(instance.name, {})
        factor = self._factor(work, instance) ** (1 - self.rate) * ratio**self.rate
        keep(steps, work.step, factor)
        self.means[instance.name] = exp(sum(map(log, steps.values())) / len(steps))
        self.base.learn(work, instance, seconds)

    def _factor(self, work: CallWork, instance: Instance) -> float:
        """Factor of a step on this instance; if the step was not seen there, the mean over the steps that were."""
        found = self.factors.get(instance.name, {}).get(work.step)
        return self.means.get(instance.name, 1.0) if found is None else found


def keep(steps: dict[str, T], step: str, value: T) -> None:
    """Note the value of a step. Programs name their steps, so the one that was noted longest ago is forgotten for one
    too many."""
    steps.pop(step, None)
    steps[step] = value
    if len(steps) > MOST_STEPS:
        del steps[next(iter(steps))]


def mean(predictor: CallPredictor, work: CallWork, instances: Sequence[Instance]) -> float:
    """Mean seconds over instances."""
    return sum(predictor.seconds(work, each) for each in instances) / len(instances)
