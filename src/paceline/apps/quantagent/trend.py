"""Trend lines: the support below and the resistance above a window of bars."""

from dataclasses import dataclass

import numpy as np

from .bars import Bars, Floats

QUANT_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Line:
    """A straight line by bar: `slope` in price per bar through (`pivot`, its price)."""

    slope: float
    intercept: float
    pivot: int
    touches: int
    """Bars within a tenth of the window's range of it: a line that few bars touch says little."""

    def at(self, bar: float) -> float:
        return self.intercept + self.slope * bar


@dataclass(frozen=True)
class Trend:
    """Support and resistance of one window, and what they say together."""

    support: Line
    resistance: Line
    support_slope: float
    """Per cent of the last close a bar."""
    resistance_slope: float
    room_below: float
    """Per cent from the last close down to support."""
    room_above: float
    kappa: float
    """The mean of both slopes: the trend's direction and strength, per cent a bar."""
    narrowing: float
    """The channel's width at the end over that at the start: below 1 the lines converge."""


def slope_of(values: Floats) -> float:
    """Least-squares slope by index."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    return float(x @ values / (x @ x)) if len(values) > 1 else 0.0


def fit(values: Floats, guide: float, above: bool) -> Line:
    """The tightest line that no value lies above (`above`) or below, through the value furthest from the slope `guide`.

    The squared gap is quadratic in the slope and the legal slopes are an interval, so the best is the free optimum,
    clipped to it.
    """
    sign = 1.0 if above else -1.0
    x = np.arange(len(values), dtype=np.float64)
    pivot = int(np.argmax(sign * (values - guide * x)))
    run, rise = x - x[pivot], values - values[pivot]
    best = float(run @ rise / (run @ run)) if len(values) > 1 else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = rise / run
    right, left = steep[pivot + 1 :], steep[:pivot]
    if above:  # sign * (rise - slope * run) <= 0 for every value
        lowest, highest = np.max(right, initial=-np.inf), np.min(left, initial=np.inf)
    else:
        lowest, highest = np.max(left, initial=-np.inf), np.min(right, initial=np.inf)
    slope = float(np.clip(best, lowest, highest))
    near = 0.1 * float(np.ptp(values))
    touches = int(np.sum(np.abs(values - (values[pivot] + slope * run)) <= near))
    return Line(slope, float(values[pivot] - slope * pivot), pivot, touches)


def trend(bars: Bars) -> Trend:
    """Both lines over highs and lows; the closes' least-squares slope is the guide."""
    guide = slope_of(bars.close)
    support, resistance = fit(bars.low, guide, above=False), fit(bars.high, guide, above=True)
    end, price = len(bars) - 1, float(bars.close[-1])
    first, last = resistance.at(0) - support.at(0), resistance.at(end) - support.at(end)
    low, high = 100 * support.slope / price, 100 * resistance.slope / price
    return Trend(
        support,
        resistance,
        low,
        high,
        100 * (price - support.at(end)) / price,
        100 * (resistance.at(end) - price) / price,
        (low + high) / 2,
        last / first if first > 0 else 1.0,
    )


def describe(found: Trend) -> str:
    """The lines as a few lines of text, for a model that reads no pictures."""
    shape = "converging" if found.narrowing < 0.8 else "diverging" if found.narrowing > 1.25 else "parallel"
    return (
        f"support: slope {found.support_slope:+.3f} % a bar, {found.room_below:.2f} % below the close, "
        f"{found.support.touches} touches\n"
        f"resistance: slope {found.resistance_slope:+.3f} % a bar, {found.room_above:.2f} % above the close, "
        f"{found.resistance.touches} touches\n"
        f"lines: {shape}, mean slope {found.kappa:+.3f} % a bar"
    )
