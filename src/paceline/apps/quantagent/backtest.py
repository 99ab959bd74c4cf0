"""A back-test of one trade a window, vectorised over windows.

Intrabar order is not known from bars, so the worse is assumed: a bar that touches stop and target was stopped, and one
that opens beyond the stop is filled at its open.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .bars import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Future:
    """The bars after each of n windows, float64 [n, h]: what a decision must not have seen."""

    open: Floats
    high: Floats
    low: Floats
    close: Floats


@dataclass(frozen=True)
class Orders:
    """One order a window, [n]: +1 long, -1 short, 0 none; prices of entry, stop and target."""

    side: Ints
    entry: Floats
    stop: Floats
    target: Floats


@dataclass(frozen=True)
class Fills:
    """How each order ended, [n]: price and bar of the exit, return after costs, "stop", "target", "close" or "none"."""

    price: Floats
    bar: Ints
    gain: Floats
    reason: NDArray[np.str_]


def levels(side: Ints, entry: Floats, distance: Floats, ratio: Floats) -> tuple[Floats, Floats]:
    """Stop and target prices: `distance` is the stop's, as a share of the price; the target is `ratio` times as far."""
    return entry * (1 - side * distance), entry * (1 + side * distance * ratio)


def run(orders: Orders, future: Future, cost: float) -> Fills:
    """Each order from its entry to the first touch within h bars, else to the last close; `cost` is a share a side."""
    side = orders.side[:, None].astype(np.float64)
    stop, target = orders.stop[:, None], orders.target[:, None]
    worst = np.where(side > 0, future.low, future.high)
    best = np.where(side > 0, future.high, future.low)
    stopped, reached = side * (worst - stop) <= 0, side * (best - target) >= 0
    touched = stopped | reached
    rows, last = np.arange(len(orders.side)), future.close.shape[1] - 1
    bar = np.where(touched.any(axis=1), touched.argmax(axis=1), last)
    opened = future.open[rows, bar]
    at_stop = orders.side * np.minimum(orders.side * orders.stop, orders.side * opened)
    by_stop, by_target = stopped[rows, bar], reached[rows, bar]
    price = np.where(by_stop, at_stop, np.where(by_target, orders.target, future.close[rows, bar]))
    traded = orders.side != 0
    gain = orders.side * (price / orders.entry - 1) - cost * (1 + price / orders.entry)
    reason = np.where(by_stop, "stop", np.where(by_target, "target", "close"))
    return Fills(
        np.where(traded, price, orders.entry),
        np.where(traded, bar, -1),
        np.where(traded, gain, 0.0),
        np.where(traded, reason, "none"),
    )
