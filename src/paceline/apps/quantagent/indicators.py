"""Technical indicators over prices, float64 [n] to float64 [n]: not a number until the first full window.

They follow TA-Lib's definitions and defaults (its seeds for exponential averages, and 0 where a range is empty), so
that readings can be compared. A missing reading stays missing: filling it with 0 would read as an extreme.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .bars import Bars, Floats


def sma(values: Floats, period: int) -> Floats:
    """Simple moving average of `period` values."""
    out = np.full(len(values), np.nan)
    if len(values) >= period:
        out[period - 1 :] = sliding_window_view(values, period).mean(axis=-1)
    return out


def ema(values: Floats, period: int, first: int | None = None) -> Floats:
    """Exponential average, factor 2 / (period + 1), seeded with the plain mean of the window ending at `first`."""
    first = period - 1 if first is None else first
    out = np.full(len(values), np.nan)
    if len(values) <= first:
        return out
    factor = 2.0 / (period + 1)
    out[first] = values[first - period + 1 : first + 1].mean()
    for i in range(first + 1, len(values)):
        out[i] = out[i - 1] + factor * (values[i] - out[i - 1])
    return out


def rsi(close: Floats, period: int = 14) -> Floats:
    """Relative strength index in [0, 100], with Wilder's smoothing."""
    out = np.full(len(close), np.nan)
    if len(close) <= period:
        return out
    change = np.diff(close)
    up, down = np.maximum(change, 0.0), np.maximum(-change, 0.0)
    gain, loss = up[:period].mean(), down[:period].mean()
    for i in range(period, len(close)):
        if i > period:
            gain = (gain * (period - 1) + up[i - 1]) / period
            loss = (loss * (period - 1) + down[i - 1]) / period
        out[i] = 100.0 * gain / (gain + loss) if gain + loss > 0 else 0.0
    return out


def macd(close: Floats, fast: int = 12, slow: int = 26, signal: int = 9) -> tuple[Floats, Floats, Floats]:
    """Moving average convergence and divergence: line, signal and histogram, all from bar slow + signal - 2 on."""
    line = ema(close, fast, slow - 1) - ema(close, slow)
    start = slow + signal - 2
    average = np.full(len(close), np.nan)
    if len(close) > start:
        average[slow - 1 :] = ema(line[slow - 1 :], signal)
    line = np.where(np.arange(len(close)) < start, np.nan, line)
    return line, average, line - average


def roc(close: Floats, period: int = 10) -> Floats:
    """Rate of change over `period` bars, in per cent."""
    out = np.full(len(close), np.nan)
    out[period:] = 100.0 * (close[period:] / close[:-period] - 1.0) if len(close) > period else []
    return out


def _range(bars: Bars, period: int) -> tuple[Floats, Floats]:
    """Highest high and lowest low of the last `period` bars."""
    high, low = np.full(len(bars), np.nan), np.full(len(bars), np.nan)
    if len(bars) >= period:
        high[period - 1 :] = sliding_window_view(bars.high, period).max(axis=-1)
        low[period - 1 :] = sliding_window_view(bars.low, period).min(axis=-1)
    return high, low


def _share(part: Floats, whole: Floats) -> Floats:
    """100 * part / whole; 0 where the whole is 0."""
    safe = np.where(whole == 0.0, 1.0, whole)
    return np.where(whole == 0.0, 0.0, 100.0 * part / safe)


def stochastic(bars: Bars, period: int = 14, slow: int = 3, signal: int = 3) -> tuple[Floats, Floats]:
    """Slow stochastic oscillator, %K and %D in [0, 100], smoothed by simple averages."""
    high, low = _range(bars, period)
    fast = _share(bars.close - low, high - low)
    k, d = np.full(len(bars), np.nan), np.full(len(bars), np.nan)
    start = period + slow + signal - 3
    if len(bars) > start:
        k[period - 1 :] = sma(fast[period - 1 :], slow)
        d[period + slow - 2 :] = sma(k[period + slow - 2 :], signal)
        k[:start] = np.nan
    return k, d


def williams_r(bars: Bars, period: int = 14) -> Floats:
    """Williams' %R in [-100, 0]."""
    high, low = _range(bars, period)
    return -_share(high - bars.close, high - low)


def atr(bars: Bars, period: int = 14) -> Floats:
    """Average true range in units of price, with Wilder's smoothing."""
    out = np.full(len(bars), np.nan)
    if len(bars) <= period:
        return out
    before = bars.close[:-1]
    true = np.maximum(bars.high[1:], before) - np.minimum(bars.low[1:], before)
    out[period] = true[:period].mean()
    for i in range(period + 1, len(bars)):
        out[i] = (out[i - 1] * (period - 1) + true[i - 1]) / period
    return out


@dataclass(frozen=True)
class QuantReading:
    """One indicator: its name, its last values oldest first, and where it says prices are going (+1, 0 or -1)."""

    name: str
    values: tuple[float, ...]
    lean: int

    def __str__(self) -> str:
        shown = " ".join(f"{value:.2f}" for value in self.values) or "missing"
        return f"{self.name}: {shown}"


def readings(bars: Bars, keep: int = 5) -> list[QuantReading]:
    """The last `keep` values of each indicator; one that lacks bars has none, and leans nowhere."""
    line, signal, histogram = macd(bars.close)
    k, d = stochastic(bars)
    strength, change, percent = rsi(bars.close), roc(bars.close), williams_r(bars)
    return [
        _reading("RSI(14)", strength, keep, _extreme(strength, 30, 70)),
        _reading("MACD line", line, keep, _sign(line)),
        _reading("MACD signal", signal, keep, 0),
        _reading("MACD histogram", histogram, keep, _sign(histogram)),
        _reading("ROC(10) %", change, keep, _sign(change)),
        _reading("Stochastic %K", k, keep, _extreme(k, 20, 80)),
        _reading("Stochastic %D", d, keep, 0),
        _reading("Williams %R", percent, keep, _extreme(percent, -80, -20)),
    ]


def _reading(name: str, values: Floats, keep: int, lean: int) -> QuantReading:
    tail = values[-keep:]
    return QuantReading(name, tuple(float(value) for value in tail[np.isfinite(tail)]), lean)


def _sign(values: Floats) -> int:
    return int(np.sign(values[-1])) if len(values) and np.isfinite(values[-1]) else 0


def _extreme(values: Floats, low: float, high: float) -> int:
    """+1 when oversold, -1 when overbought."""
    if not len(values) or not np.isfinite(values[-1]):
        return 0
    return int(values[-1] < low) - int(values[-1] > high)
