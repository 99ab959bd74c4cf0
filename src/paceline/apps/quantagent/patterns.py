"""Chart patterns and candle codes as text features, each found by one explicit rule.

The rules read pivots (turning points) and the two trend lines. A pattern's `lean` is the direction in which it usually
breaks: +1 up, -1 down, 0 either way. Whether that "usually" holds is for the back-test to say.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .bars import Bars, Floats
from .indicators import atr
from .trend import Trend, trend


@dataclass(frozen=True)
class Pivot:
    """A turning point of the closes: its bar, its price, and whether it is a peak."""

    bar: int
    price: float
    peak: bool


@dataclass(frozen=True)
class Pattern:
    name: str
    lean: int
    why: str


@dataclass(frozen=True)
class QuantPatternsView:
    """What the rules look at."""

    bars: Bars
    pivots: tuple[Pivot, ...]
    lines: Trend
    unit: float
    """The typical range of a bar, in units of price; differences below it are no differences."""

    def peaks(self) -> list[Pivot]:
        return [pivot for pivot in self.pivots if pivot.peak]

    def troughs(self) -> list[Pivot]:
        return [pivot for pivot in self.pivots if not pivot.peak]


def pivots(close: Floats, move: float) -> tuple[Pivot, ...]:
    """Turning points after which the closes went back by at least `move` (a zigzag), alternating, oldest first."""
    found: list[Pivot] = []
    low = high = 0
    rising: bool | None = None
    for i in range(len(close)):
        high = i if close[i] >= close[high] else high
        low = i if close[i] <= close[low] else low
        if rising is not False and close[high] - close[i] >= move:
            if high > 0:
                found.append(Pivot(high, float(close[high]), True))
            rising, low = False, i
        elif rising is not True and close[i] - close[low] >= move:
            if low > 0:
                found.append(Pivot(low, float(close[low]), False))
            rising, high = True, i
    return tuple(found)


def view(bars: Bars) -> QuantPatternsView:
    """What there is to see in a window of bars, two at least."""
    if len(bars) < 2:
        raise ValueError(f"patterns need 2 bars or more, not {len(bars)}; give a longer window.")
    true = atr(bars, min(14, len(bars) - 1))
    unit = max(float(true[-1]), 1e-9 * float(bars.close[-1]))
    return QuantPatternsView(bars, pivots(bars.close, 1.5 * unit), trend(bars), unit)


def find(bars: Bars) -> list[Pattern]:
    """Every pattern whose rule holds, in the order of the catalogue."""
    seen = view(bars)
    return [Pattern(name, lean, why) for name, (lean, rule) in QUANT_CATALOGUE.items() if (why := rule(seen))]


def _double_bottom(v: QuantPatternsView) -> str:
    ends = v.troughs()[-2:]
    if len(ends) < 2 or abs(ends[0].price - ends[1].price) > v.unit:
        return ""
    return f"lows of {ends[0].price:.6g} and {ends[1].price:.6g} at bars {ends[0].bar} and {ends[1].bar}"


def _double_top(v: QuantPatternsView) -> str:
    ends = v.peaks()[-2:]
    if len(ends) < 2 or abs(ends[0].price - ends[1].price) > v.unit:
        return ""
    return f"highs of {ends[0].price:.6g} and {ends[1].price:.6g} at bars {ends[0].bar} and {ends[1].bar}"


def _shoulders(points: list[Pivot], sign: float, unit: float) -> str:
    three = points[-3:]
    if len(three) < 3 or abs(three[0].price - three[2].price) > 2 * unit:
        return ""
    if sign * (three[1].price - max(sign * three[0].price, sign * three[2].price) * sign) < unit:
        return ""
    return f"shoulders at bars {three[0].bar} and {three[2].bar}, head at bar {three[1].bar}"


def _slopes(v: QuantPatternsView) -> tuple[float, float]:
    """Slopes of support and resistance in units of a bar's range over the whole window."""
    scale = (len(v.bars) - 1) / v.unit
    return v.lines.support.slope * scale, v.lines.resistance.slope * scale


FLAT, QUANT_STEEP = 1.0, 2.0
"""A line is level below one bar's range over the window, and goes somewhere from two on."""


def _lines(test: Callable[[float, float, float], bool]) -> Callable[[QuantPatternsView], str]:
    def rule(v: QuantPatternsView) -> str:
        low, high = _slopes(v)
        enough = min(v.lines.support.touches, v.lines.resistance.touches) >= 2
        return (
            f"support {low:+.1f}, resistance {high:+.1f} ranges"
            if enough and test(low, high, v.lines.narrowing)
            else ""
        )

    return rule


def _rounded(v: QuantPatternsView, sign: float) -> str:
    x = np.linspace(-1, 1, len(v.bars))
    bend, slope, level = np.polyfit(x, v.bars.close, 2)
    rest = v.bars.close - (bend * x * x + slope * x + level)
    spread = float(np.var(v.bars.close))
    share = 1 - float(np.var(rest)) / spread if spread > 0 else 0.0
    return (
        f"a parabola explains {share:.0%}"
        if sign * bend > 2 * v.unit and abs(slope) < abs(bend) and share > 0.7
        else ""
    )


def _turn(v: QuantPatternsView, sign: float) -> str:
    """A steep way one way and a steep way back, within the last ten bars."""
    close = sign * v.bars.close[-10:]
    low = int(np.argmin(close))
    sharp = 3 * v.unit
    turned = 2 <= low <= len(close) - 3 and close[0] - close[low] > sharp and close[-1] - close[low] > sharp
    return f"turned {len(close) - 1 - low} bars ago" if turned else ""


def _flag(v: QuantPatternsView, sign: float) -> str:
    """A pole of five bars, then at least five bars that give back less than half of it."""
    close = sign * v.bars.close[-20:]
    if len(close) < 12:
        return ""
    pole = close[5:-5] - close[:-10]
    at = int(np.argmax(pole))
    rest = close[at + 5 :]
    height = float(pole[at])
    kept = height > 4 * v.unit and 0 <= rest[0] - rest[-1] < height / 2 and rest.max() - rest[0] < v.unit
    return f"a pole of {height:.6g}, then {len(rest)} quiet bars" if kept else ""


def _island(v: QuantPatternsView, up: bool) -> str:
    """Bars of the last ten cut off by a gap on each side."""
    high, low = v.bars.high[-10:], v.bars.low[-10:]
    for start in range(1, len(high) - 1):
        for stop in range(start + 1, len(high)):
            span = slice(start, stop)
            below = max(high[span]) < min(low[start - 1], low[stop])
            above = min(low[span]) > max(high[start - 1], high[stop])
            if below if up else above:
                return f"{stop - start} bars between two gaps"
    return ""


QUANT_CATALOGUE: dict[str, tuple[int, Callable[[QuantPatternsView], str]]] = {
    "double bottom": (1, _double_bottom),
    "double top": (-1, _double_top),
    "inverse head and shoulders": (1, lambda v: _shoulders(v.troughs(), -1.0, v.unit)),
    "head and shoulders": (-1, lambda v: _shoulders(v.peaks(), 1.0, v.unit)),
    "ascending triangle": (1, _lines(lambda low, high, n: low > QUANT_STEEP and abs(high) < FLAT and n < 0.8)),
    "descending triangle": (-1, _lines(lambda low, high, n: high < -QUANT_STEEP and abs(low) < FLAT and n < 0.8)),
    "symmetrical triangle": (0, _lines(lambda low, high, n: low > FLAT and high < -FLAT and n < 0.8)),
    "expanding triangle": (0, _lines(lambda low, high, n: low < -FLAT and high > FLAT and n > 1.25)),
    "falling wedge": (1, _lines(lambda low, high, n: high < low < -FLAT and n < 0.8)),
    "rising wedge": (-1, _lines(lambda low, high, n: low > high > FLAT and n < 0.8)),
    "rectangle": (0, _lines(lambda low, high, n: max(abs(low), abs(high)) < FLAT)),
    "bullish flag": (1, lambda v: _flag(v, 1.0)),
    "bearish flag": (-1, lambda v: _flag(v, -1.0)),
    "V reversal": (1, lambda v: _turn(v, 1.0)),
    "inverted V reversal": (-1, lambda v: _turn(v, -1.0)),
    "rounded bottom": (1, lambda v: _rounded(v, 1.0)),
    "rounded top": (-1, lambda v: _rounded(v, -1.0)),
    "island bottom": (1, lambda v: _island(v, up=True)),
    "island top": (-1, lambda v: _island(v, up=False)),
}
"""Each pattern: where it leans, and a rule that says why it holds ("" where it does not)."""


def candle(bars: Bars, i: int) -> str:
    """A code for bar `i`: doji, hammer, shooting star, marubozu, engulfing or plain, with + (up), - (down) or =."""
    o, h, l, c = (float(x[i]) for x in (bars.open, bars.high, bars.low, bars.close))  # noqa: E741
    whole, body = h - l, abs(c - o)
    sign = "+" if c > o else "-" if c < o else "="
    if whole == 0 or body <= 0.1 * whole:
        return "doji" + sign
    if i and body > abs(bars.close[i - 1] - bars.open[i - 1]) and (c - o) * (bars.close[i - 1] - bars.open[i - 1]) < 0:
        before = sorted((float(bars.open[i - 1]), float(bars.close[i - 1])))
        if min(o, c) <= before[0] and max(o, c) >= before[1]:
            return "engulfing" + sign
    if body >= 0.9 * whole:
        return "marubozu" + sign
    if min(o, c) - l >= 0.6 * whole:
        return "hammer" + sign
    if h - max(o, c) >= 0.6 * whole:
        return "star" + sign
    return "plain" + sign


def describe(bars: Bars, candles: int = 8) -> str:
    """Pivots, candles and patterns as a few lines of text, for a model that reads no pictures."""
    seen = view(bars)
    turns = " ".join(f"{'peak' if p.peak else 'trough'}@{p.bar}={p.price:.6g}" for p in seen.pivots[-6:]) or "none"
    codes = " ".join(candle(bars, i) for i in range(max(0, len(bars) - candles), len(bars)))
    named = "; ".join(f"{p.name} ({p.why})" for p in find(bars)) or "none"
    return f"turning points: {turns}\ncandles, oldest first: {codes}\npatterns by rule: {named}"
