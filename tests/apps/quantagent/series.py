"""Price bars made for tests."""

import numpy as np

from paceline.apps.quantagent.bars import Bars, Floats


def bars_from(close: Floats, seed: int = 0, wick: float = 0.3) -> Bars:
    """Bars whose closes are given; each opens at the close before it, with random wicks."""
    draw = np.random.default_rng(seed)
    opened = np.concatenate([close[:1], close[:-1]])
    high = np.maximum(opened, close) + wick * draw.random(len(close))
    low = np.minimum(opened, close) - wick * draw.random(len(close))
    return Bars(tuple(str(i) for i in range(len(close))), opened, high, low, close)


def walk(count: int, seed: int = 0, drift: float = 0.0, scale: float = 1.0) -> Bars:
    """A random walk around 100 with `drift` a bar."""
    draw = np.random.default_rng(seed)
    steps = drift + scale * 0.5 * draw.standard_normal(count)
    return bars_from(200.0 + np.cumsum(steps), seed)
