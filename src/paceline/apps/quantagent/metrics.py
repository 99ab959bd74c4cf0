"""Share of right directions, with intervals, compared with always-long and coin tosses."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .backtest import Ints
from .bars import Floats


@dataclass(frozen=True)
class Score:
    """Hits of one rule: a share with its exact 95 % binomial interval (Clopper and Pearson)."""

    name: str
    hits: int
    count: int
    share: float
    low: float
    high: float
    gain: float | None = None
    """The mean return a trade after costs, per cent."""

    @property
    def says(self) -> str:
        """What the interval allows to be said: whether it holds one half."""
        if not self.count:
            return "no decision to judge"
        if self.low > 0.5:
            return "better than one half"
        if self.high < 0.5:
            return "worse than one half"
        return "not distinguishable from one half"

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "says": self.says}


def interval(hits: int, count: int) -> tuple[float, float]:
    """The exact 95 % interval of a share; [0, 1] of nothing."""
    from scipy.stats import binomtest

    if not count:
        return 0.0, 1.0
    found = binomtest(hits, count).proportion_ci(0.95, method="exact")
    return float(found.low), float(found.high)


def score(name: str, side: Ints, move: Floats, gain: Floats | None = None) -> Score:
    """Decisions [n] (+1, -1, or 0 for none) against price moves [n]; a flat move or no decision is not counted."""
    judged = (side != 0) & (move != 0)
    hits, count = int(np.sum(judged & (side == np.sign(move)))), int(judged.sum())
    low, high = interval(hits, count)
    traded = side != 0
    mean = 100 * float(gain[traded].mean()) if gain is not None and traded.any() else None
    return Score(name, hits, count, hits / count if count else 0.0, low, high, mean)


def coins(count: int, seed: int) -> Ints:
    """Decisions by fair coin tosses."""
    return np.random.default_rng(seed).choice(np.array([-1, 1], np.int64), count)


def ahead_of(ours: Ints, theirs: Ints, move: Floats) -> float:
    """McNemar's exact p-value that both rules are right equally often, from the windows where one alone was right."""
    from scipy.stats import binomtest

    judged = (ours != 0) & (theirs != 0) & (move != 0)
    right, other = ours == np.sign(move), theirs == np.sign(move)
    only, they = int(np.sum(judged & right & ~other)), int(np.sum(judged & ~right & other))
    return float(binomtest(only, only + they).pvalue) if only + they else 1.0
