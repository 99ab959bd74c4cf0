"""A case: the bars that a decision may see, and those after it, which only the back-test reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .backtest import Future
from .bars import Bars

LOOKBACK = 45
QUANT_HORIZON = 3
WALK = "random walk"
"""The name of the made asset, which is no part of "all"."""


@dataclass(frozen=True)
class QuantCase:
    """`past` ends at the decision; `future` begins behind it. They share no memory."""

    asset: str
    window: str
    past: Bars
    future: Bars


def cases(asset: str, windows: Mapping[str, Bars], count: int | None, lookback: int, horizon: int) -> list[QuantCase]:
    """One case a window, its future the window's last bars. Raises ValueError for a window that is too short."""
    found = []
    for name, bars in list(windows.items())[:count]:
        at = len(bars) - horizon
        if at < lookback:
            raise ValueError(
                f"{asset}, window {name} has {len(bars)} bars; {lookback} to look back on and {horizon} to trade need "
                f"{lookback + horizon}."
            )
        found.append(QuantCase(asset, name, bars.part(at - lookback, at), bars.part(at, len(bars))))
    return found


def futures(rows: Sequence[QuantCase]) -> Future:
    """The bars after all decisions, [n, h]."""

    def stacked(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.stack([getattr(case.future, name) for case in rows])

    return Future(stacked("open"), stacked("high"), stacked("low"), stacked("close"))


def random_walk(count: int, bars: int, seed: int) -> dict[str, Bars]:
    """Windows of a walk whose next step is up or down with equal chance: no method can be better than one half on
    it."""
    draw = np.random.default_rng(seed)
    made = {}
    for window in range(count):
        steps = np.exp(np.cumsum(0.004 * draw.standard_normal((bars, 8)).ravel())).reshape(bars, 8) * 100
        opened = np.concatenate([[100.0], steps[:-1, -1]])
        high, low = np.maximum(opened, steps.max(axis=1)), np.minimum(opened, steps.min(axis=1))
        made[str(window + 1)] = Bars(tuple(str(i) for i in range(bars)), opened, high, low, steps[:, -1].copy())
    return made
