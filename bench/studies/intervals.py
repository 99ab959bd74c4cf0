"""Means with intervals, for studies of applications: a seeded bootstrap over items."""

from collections.abc import Sequence

import numpy as np

BOOTSTRAPS = 4000


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): 95 %, by resampling the items."""
    array = np.asarray(values, np.float64)
    rows = np.random.default_rng(seed).integers(0, len(array), (BOOTSTRAPS, len(array)))
    low, high = np.percentile(array[rows].mean(1), (2.5, 97.5))
    return float(array.mean()), float(low), float(high)


def shown(values: Sequence[float], digits: int = 3) -> str:
    mean, low, high = interval(values)
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def paired(ours: Sequence[float], theirs: Sequence[float], digits: int = 3) -> str:
    """The mean difference, item by item, with its interval."""
    return shown([a - b for a, b in zip(ours, theirs, strict=True)], digits)


def share(right: int, of: int) -> str:
    """A share of counts with Wilson's 95 % interval."""
    if not of:
        return f"none of {of}"
    z, p = 1.96, right / of
    middle, half = p + z * z / (2 * of), z * ((p * (1 - p) + z * z / (4 * of)) / of) ** 0.5
    low, high = ((middle + sign * half) / (1 + z * z / of) for sign in (-1, 1))
    return f"{p:.3f} ({low:.3f} to {high:.3f}; {right} of {of})"
