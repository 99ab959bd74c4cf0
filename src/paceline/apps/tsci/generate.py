"""Series made from a seed, with what real ones have: trend, seasons, gaps, outliers, moving levels."""

import numpy as np

from .series import Floats, Series


def retail(count: int = 2400, seed: int = 0) -> Series:
    """A rising series with a daily season, noise and 3 % of values missing."""
    draw = np.random.default_rng(seed)
    x = np.arange(count)
    values = 50 + 0.01 * x + 8 * np.sin(2 * np.pi * x / 24) + 3 * np.cos(4 * np.pi * x / 24) + draw.normal(0, 2, count)
    values[draw.random(count) < 0.03] = np.nan
    return _named("retail", values)


def load(count: int = 2400, seed: int = 1) -> Series:
    """A daily season that a weekly one bends, over a level that wanders."""
    draw = np.random.default_rng(seed)
    x = np.arange(count)
    week = 1 + 0.4 * np.sin(2 * np.pi * x / 168)
    level = np.cumsum(draw.normal(0, 0.15, count))
    return _named("load", 20 + level + 6 * week * np.sin(2 * np.pi * x / 24) + draw.normal(0, 1, count))


def sensor(count: int = 2400, seed: int = 2) -> Series:
    """A stationary AR(2) around a season of 48 below zero, with 1 % of outliers ten deviations away."""
    draw = np.random.default_rng(seed)
    rest = np.zeros(count)
    noise = draw.normal(0, 1, count)
    for i in range(2, count):
        rest[i] = 1.2 * rest[i - 1] - 0.4 * rest[i - 2] + noise[i]
    values = -30 + 5 * np.sin(2 * np.pi * np.arange(count) / 48) + rest
    at = draw.random(count) < 0.01
    values[at] += draw.choice([-1.0, 1.0], int(at.sum())) * 30
    return _named("sensor", values)


def random_walk(count: int = 2400, seed: int = 3) -> Series:
    return _named("walk", np.cumsum(np.random.default_rng(seed).normal(0, 1, count)))


def _named(name: str, values: Floats) -> Series:
    return Series(name, values, tuple(str(i) for i in range(len(values))))


MAKERS = {"retail": retail, "load": load, "sensor": sensor, "walk": random_walk}
