"""A baseline without a model: the sign of what indicators, trend lines and patterns lean to."""

from collections.abc import Sequence

import numpy as np

from .backtest import Ints
from .bars import Bars
from .cases import QuantCase
from .indicators import readings
from .patterns import find
from .trend import trend


def lean(bars: Bars) -> int:
    """+1 or -1: the trend's direction counts as much as all indicators together, patterns one each."""
    momentum = sum(reading.lean for reading in readings(bars) if reading.name in ("MACD line", "ROC(10) %"))
    total = 2 * np.sign(trend(bars).kappa) + momentum + sum(pattern.lean for pattern in find(bars))
    return 1 if total > 0 or (total == 0 and bars.close[-1] >= bars.close[0]) else -1


def by_rule(rows: Sequence[QuantCase]) -> Ints:
    """The rule's side for each case, [n]."""
    return np.array([lean(case.past) for case in rows], np.int64)
