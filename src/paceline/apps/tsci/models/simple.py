"""Models of a few lines: (history [n], horizon, period) to a forecast [horizon]."""

import itertools

import numpy as np

from ..series import Floats


def naive(history: Floats, horizon: int, period: int) -> Floats:
    return np.full(horizon, history[-1])


def seasonal_naive(history: Floats, horizon: int, period: int) -> Floats:
    """The last season again and again; without a season, the last value."""
    return np.resize(history[-min(period, len(history)) :], horizon)


def seasonal_mean(history: Floats, horizon: int, period: int, seasons: int) -> Floats:
    """The mean of the last `seasons` seasons, phase by phase."""
    whole = max(1, min(seasons, len(history) // period))
    return np.resize(history[-whole * period :].reshape(whole, period).mean(axis=0), horizon)


def drift(history: Floats, horizon: int, period: int) -> Floats:
    slope = (history[-1] - history[0]) / max(1, len(history) - 1)
    return np.asarray(history[-1] + slope * np.arange(1, horizon + 1))


def moving_average(history: Floats, horizon: int, period: int, width: int) -> Floats:
    return np.full(horizon, history[-width:].mean())


def croston(history: Floats, horizon: int, period: int, alpha: float) -> Floats:
    """Croston 1972, corrected by Syntetos and Boylan: smoothed size over smoothed interval of non-zero demand."""
    at = np.flatnonzero(history)
    if len(at) < 2:
        raise ValueError("Croston's method needs two values that are not 0.")
    size, gap = float(history[at[0]]), float(at[1] - at[0])
    for before, now in itertools.pairwise(at):
        size += alpha * (history[now] - size)
        gap += alpha * ((now - before) - gap)
    return np.full(horizon, (1 - alpha / 2) * size / gap)
