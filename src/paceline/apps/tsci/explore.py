"""Facts about a series that a planner needs: level, gaps, outliers, trend, stationarity and season."""

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .clean import DETECT, interpolate
from .series import Floats


@dataclass(frozen=True)
class TsciFacts:
    count: int
    missing: int
    mean: float
    std: float
    least: float
    most: float
    outliers: dict[str, int]
    """By each way to detect them."""
    trend: float
    """Least-squares change over the whole series, in standard deviations."""
    unit_root_p: float
    """Augmented Dickey-Fuller: small means stationary."""
    period: int
    """The season's length; 1 where there is none."""
    season: float
    """The season's strength in [0, 1], from an STL decomposition."""
    zeros: float
    """Share of values that are exactly 0: intermittent demand."""

    def row(self) -> dict[str, Any]:
        return asdict(self)


def explore(values: Floats, longest: int = 200) -> TsciFacts:
    """Facts of one series, gaps bridged by straight lines for what needs all values."""
    full = interpolate(values)
    period = find_period(full, longest)
    spread = float(full.std())
    return TsciFacts(
        len(values),
        int(np.sum(~np.isfinite(values))),
        float(full.mean()),
        spread,
        float(full.min()),
        float(full.max()),
        {name: int(rule(full).sum()) for name, rule in DETECT.items() if name != "none"},
        float(np.polyfit(np.arange(len(full)), full, 1)[0] * len(full) / spread) if spread > 0 else 0.0,
        unit_root(full),
        period,
        season_strength(full, period),
        float(np.mean(full == 0)),
    )


def autocorrelation(values: Floats) -> Floats:
    """By lag [n], of the series without its straight line and cut at three deviations; zeros of a line."""
    n = len(values)
    x = np.arange(n)
    rest = values - np.polyval(np.polyfit(x, values, 1), x)
    if float(rest @ rest) <= 1e-12 * max(1.0, float(values @ values)):
        return np.zeros(n)
    rest = np.clip(rest, -3 * rest.std(), 3 * rest.std())
    spectrum = np.fft.rfft(rest, 2 * n)
    found = np.fft.irfft(spectrum * np.conj(spectrum))[:n]
    return np.asarray(found / found[0] * n / np.maximum(n - x, 1))


def find_period(values: Floats, longest: int) -> int:
    """The first lag whose autocorrelation peaks about as high as any does, if that is above chance; else 1."""
    corr = autocorrelation(values)
    n, chance = len(values), max(0.2, 2.0 / np.sqrt(len(values)))
    lags = range(2, min(longest, n // 3) + 1)
    strong = [
        k
        for k in lags
        if corr[k - 1] < corr[k] >= corr[k + 1] and corr[k] > max(chance, float(corr[1 : k + 1].min()) + 0.1)
    ]
    if not strong:
        return 1
    best = max(corr[k] for k in strong)
    first = next(k for k in strong if corr[k] >= 0.9 * best)
    return max(range(max(2, first - 2), first + 3), key=lambda k: _at_multiples(corr, k))


def _at_multiples(corr: Floats, lag: int) -> float:
    """The mean over the lag's multiples in the first two thirds: noise moves one peak, not all of them."""
    return float(corr[lag : max(2 * len(corr) // 3, lag + 1) : lag].mean())


def season_strength(values: Floats, period: int) -> float:
    """1 - var(rest) / var(season + rest) after STL, at least 0 (Wang, Smith and Hyndman 2006)."""
    if period < 2 or len(values) < 2 * period + 1:
        return 0.0
    from statsmodels.tsa.seasonal import STL

    parts = STL(values, period=period, robust=True).fit()
    both = float(np.var(parts.seasonal + parts.resid))
    return max(0.0, 1 - float(np.var(parts.resid)) / both) if both > 0 else 0.0


def unit_root(values: Floats) -> float:
    """The p-value of the augmented Dickey-Fuller test; 0 of a constant series, which is stationary."""
    from statsmodels.tsa.stattools import adfuller

    if np.ptp(values) == 0 or len(values) < 12:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(adfuller(values)[1])
