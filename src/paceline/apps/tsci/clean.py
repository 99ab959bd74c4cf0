"""Missing values and outliers: each strategy a function of its own that leaves its input as it was.

Dropping values is not offered: it would move all later ones and break the season.
"""

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .series import Floats

Mask = NDArray[np.bool_]


def _known(values: Floats) -> Floats:
    known = values[np.isfinite(values)]
    if not len(known):
        raise ValueError("The series has no value at all; give one with values.")
    return known


def interpolate(values: Floats) -> Floats:
    """Straight lines over the gaps; the first and last known values beyond the ends."""
    _known(values)
    at = np.flatnonzero(np.isfinite(values))
    return np.interp(np.arange(len(values)), at, values[at])


def forward_fill(values: Floats) -> Floats:
    """The last known value; the first known one before it."""
    _known(values)
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return values[np.where(last < 0, int(np.argmax(known)), last)]


def backward_fill(values: Floats) -> Floats:
    return forward_fill(values[::-1])[::-1].copy()


FILL: dict[str, Callable[[Floats], Floats]] = {
    "interpolate": interpolate,
    "forward_fill": forward_fill,
    "backward_fill": backward_fill,
    "mean": lambda v: np.where(np.isfinite(v), v, _known(v).mean()),
    "median": lambda v: np.where(np.isfinite(v), v, np.median(_known(v))),
    "zero": lambda v: np.where(np.isfinite(v), v, 0.0),
}
"""What to write where values are missing."""


def rolling(values: Floats, width: int) -> Floats:
    """Centred windows [n, width], the ends repeated."""
    left = width // 2
    return sliding_window_view(np.pad(values, (left, width - 1 - left), mode="edge"), width)


def _iqr(values: Floats) -> Mask:
    """Beyond 1.5 quartile ranges of a centred window of 24: a level that moves is no outlier."""
    low, high = np.percentile(rolling(values, min(24, len(values))), [25, 75], axis=-1)
    reach = 1.5 * (high - low)
    return np.asarray((values < low - reach) | (values > high + reach))


def _zscore(values: Floats) -> Mask:
    spread = values.std()
    return np.asarray(np.abs(values - values.mean()) > 3 * spread if spread > 0 else np.zeros(len(values), bool))


def _percentile(values: Floats) -> Mask:
    low, high = np.percentile(values, [1, 99])
    return np.asarray((values < low) | (values > high))


DETECT: dict[str, Callable[[Floats], Mask]] = {
    "iqr": _iqr,
    "zscore": _zscore,
    "percentile": _percentile,
    "none": lambda v: np.zeros(len(v), bool),
}
"""Which values are outliers; no value may be missing."""


def _clip(values: Floats, bad: Mask) -> Floats:
    return np.clip(values, values[~bad].min(), values[~bad].max())


def _smooth(values: Floats, bad: Mask) -> Floats:
    """The mean of the good values among the five around; of all good ones where there is none."""
    filled = np.where(bad, np.nan, values)
    around = rolling(filled, 5)
    count = np.isfinite(around).sum(axis=-1)
    mean = np.where(count > 0, np.nansum(around, axis=-1) / np.maximum(count, 1), np.nanmean(filled))
    return np.where(bad, mean, values)


def _refill(fill: str) -> Callable[[Floats, Mask], Floats]:
    return lambda values, bad: FILL[fill](np.where(bad, np.nan, values))


HANDLE: dict[str, Callable[[Floats, Mask], Floats]] = {
    "clip": _clip,
    "smooth": _smooth,
    **{name: _refill(name) for name in FILL if name != "zero"},
}
"""What to write in place of outliers."""


def clean(values: Floats, fill: str, detect: str, handle: str) -> tuple[Floats, int]:
    """The series without gaps and outliers, and how many outliers there were; all of it outlying is left as it is."""
    full = FILL[fill](values)
    bad = DETECT[detect](full)
    if not bad.any() or bad.all():
        return full, 0
    return HANDLE[handle](full, bad), int(bad.sum())
