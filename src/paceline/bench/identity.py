"""Is a text plain decoding's? Equal, different at a near-tie, or truly different.

Floating-point sums depend on how many rows are computed together, so two ways of computing the same scores may
disagree in the last bits, and the draw with them. Such a place, a near-tie, is recognised by recomputing it: on the
common prefix, by a plain pass of the same target, the two largest perturbed scores (log p + noise; logits at
temperature 0) lie within a tolerance of each other, or a boundary of top-k, top-p or min-p is that close to moving.
Everything else is a defect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from paceline.core.component import TARGET
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.core.rows import RowsBuilder
from paceline.engine.loop import Engine

TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "bfloat16": 0.15, "float16": 0.15}
"""Differences of scores that rounding in this type explains."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts first differ: `position` in the output, the two tokens there (None: the text has ended), the
    gap of the top two perturbed scores, and the distance to the nearest filter boundary (None: no filter in use)."""

    position: int
    plain: int | None
    other: int | None
    margin: float
    boundary: float | None
    near_tie: bool


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first position at which two texts differ, also where only one has ended; None when they are equal."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


class Referee:
    """Judges texts by the target model of an idle engine."""

    def __init__(self, engine: Engine, dtype: str) -> None:
        self.engine, self.tolerance = engine, TOLERANCE[dtype]

    def difference(
        self, prompt: Sequence[int], params: SamplingParams, plain: Sequence[int], other: Sequence[int]
    ) -> Difference | None:
        """None when equal. `params` are resolved and carry the seed both texts were made with."""
        at = first_difference(plain, other)
        if at is None:
            return None
        here = [text[at] if at < len(text) else None for text in (plain, other)]
        margin, boundary = self._margins(prompt, params, list(plain[:at]))
        near_tie = None not in here and min(margin, boundary) <= self.tolerance
        return Difference(at, here[0], here[1], margin, boundary if isfinite(boundary) else None, near_tie)

    def _margins(self, prompt: Sequence[int], params: SamplingParams, common: list[int]) -> tuple[float, float]:
        """Score gap and boundary distance of the token that follows prompt + common."""
        assert params.seed is not None
        sampler = self.engine.judge.sampler
        request = Request(-1, list(prompt), params, params.seed, self.engine.session.eos, output=common)
        logits = next_logits(self.engine, request.tokens)
        sampler.admit(request)
        try:
            refs = [(request, ())]
            key = request.target_noise.key(request.index())
            margin = sampler.margin(refs, sampler.scores(refs, logits), [key])[0]
            return margin, sampler.boundary_margin(refs, logits)[0]
        finally:
            sampler.drop(request)


def next_logits(engine: Engine, tokens: Sequence[int]) -> Tensor:
    """Raw logits [1, V] after `tokens`, by plain passes of an idle engine's target."""
    assert not engine.busy
    cache, chunk = engine.cache, engine.config.row_budget
    lease = cache.open([], groups=(TARGET,))
    logits: Tensor
    try:
        for start in range(0, len(tokens), chunk):
            run = list(tokens[start : start + chunk])
            txn = cache.begin(lease, len(run), 0)
            builder = RowsBuilder()
            builder.add(run, txn.slots, txn.table, start)
            logits = engine.model.forward(builder.build(engine.model.device)).logits
            txn.commit([], run)
    finally:
        cache.close(lease)
    return logits
