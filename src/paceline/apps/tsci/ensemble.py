"""Several forecasts made one, and which way of doing so the validation prefers."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .series import Floats


def simple_mean(forecasts: Floats) -> Floats:
    """[models, horizon] to [horizon]."""
    return np.asarray(forecasts.mean(axis=0))


def median(forecasts: Floats) -> Floats:
    return np.asarray(np.median(forecasts, axis=0))


def trimmed_mean(forecasts: Floats, share: float = 0.1) -> Floats:
    """The mean without the lowest and highest `share` of the models at each step (all models below 1 / share)."""
    cut = int(share * len(forecasts))
    ordered = np.sort(forecasts, axis=0)
    return np.asarray(ordered[cut : len(forecasts) - cut].mean(axis=0))


def weighted(forecasts: Floats, weights: Floats) -> Floats:
    """Weights [models], not negative, sum to one: `normalised` makes them so."""
    if len(weights) != len(forecasts) or (weights < 0).any() or abs(weights.sum() - 1) > 1e-9:
        raise ValueError(f"{len(forecasts)} forecasts need as many weights that are not negative and sum to 1.")
    return np.asarray(weights @ forecasts)


def normalised(points: dict[str, float]) -> dict[str, float]:
    """Points as weights that sum to one; equal weights where no point was given."""
    if any(not np.isfinite(value) or value < 0 for value in points.values()):
        raise ValueError("Points are finite and not negative; give 0 to leave a model out.")
    total = sum(points.values())
    return {name: value / total if total > 0 else 1 / len(points) for name, value in points.items()}


def by_error(mae: dict[str, float], points: dict[str, float] | None = None) -> dict[str, float]:
    """Weights by the inverse square of the error over the folds. `points` from 0 to 10 of a forecaster move each by
    half at most: what was measured counts more than what is thought."""
    floor = 1e-9 + 1e-6 * max(mae.values())
    moved = {name: 0.5 + (5.0 if points is None else min(10.0, points[name])) / 10.0 for name in mae}
    return normalised({name: moved[name] / max(value, floor) ** 2 for name, value in mae.items()})


@dataclass(frozen=True)
class Combined:
    """The chosen way, its validation MAE next to those of all ways, and the forecast it makes."""

    way: str
    mae: dict[str, float]
    forecast: Floats


def ways(forecasts: dict[str, Floats], weights: dict[str, float], best: str) -> dict[str, Floats]:
    """Each way's forecast from those of the models; `best` is the single model that the validation prefers."""
    rows = np.stack(list(forecasts.values()))
    return {
        "best single": forecasts[best],
        "weighted": weighted(rows, np.array([weights[name] for name in forecasts])),
        "mean": simple_mean(rows),
        "median": median(rows),
        "trimmed mean": trimmed_mean(rows),
    }


def combine(
    held: list[dict[str, Floats]], truth: list[Floats], forecasts: dict[str, Floats], weights: dict[str, float]
) -> Combined:
    """The way that validation prefers over the folds (`held`: forecasts of each fold), applied to `forecasts`.

    That is the way with the least MAE among those better than the weighted mean on every fold, else the weighted mean:
    a few folds cannot tell a good model from a lucky one, and weights by error leave a bad one little.
    """
    single = {
        name: float(np.mean([np.abs(fold[name] - true).mean() for fold, true in zip(held, truth, strict=True)]))
        for name in forecasts
    }
    best = min(single, key=lambda name: single[name])
    made = [ways({name: fold[name] for name in forecasts}, weights, best) for fold in held]
    by_fold = {
        way: np.array([np.abs(fold[way] - true).mean() for fold, true in zip(made, truth, strict=True)])
        for way in made[0]
    }
    mae = {way: float(errors.mean()) for way, errors in by_fold.items()}
    sure = [way for way, errors in by_fold.items() if (errors < by_fold["weighted"]).all()]
    way = min(sure, key=lambda name: mae[name]) if sure else "weighted"
    return Combined(way, mae, ways(forecasts, weights, best)[way])


BAND_LEVELS = (80, 90, 95)
WIDER = 1.15
"""Errors of the models that validation chose are smaller in validation than after it."""


def intervals(held: list[Floats], truth: list[Floats], forecast: Floats) -> dict[str, tuple[Floats, Floats]]:
    """Bands of 80, 90 and 95 % around a forecast, from the validation errors of the way that made it.

    The reach at step h is that of all errors, scaled by h to the power that their growth shows, from 0 to 0.75: a
    random walk's is 0.5, and what always comes back to its season has 0.
    """
    gaps = np.abs(np.stack(held) - np.stack(truth))
    curve = rising(gaps.mean(axis=0))
    shares = (gaps / curve).ravel()
    bands = {}
    for level in BAND_LEVELS:
        reach = WIDER * float(np.quantile(shares, min(1.0, level / 100 * (1 + 1 / len(shares))))) * curve
        bands[f"{level}"] = (forecast - reach, forecast + reach)
    return bands


def rising(errors: Floats) -> Floats:
    """h ** power for each step h of mean absolute errors [horizon], the power by least squares on their logarithms over
    parts of the horizon that double."""
    steps = np.arange(1, len(errors) + 1)
    edges = [0, *(2**n for n in range(int(np.log2(len(errors))) + 1) if 2**n < len(errors)), len(errors)]
    means = np.array([errors[a:b].mean() for a, b in pairwise(edges)])
    middles = np.array([steps[a:b].mean() for a, b in pairwise(edges)])
    counts = np.diff(edges)
    if len(means) < 2 or not (means > 0).all():
        return np.ones(len(errors))
    power = np.polyfit(np.log(middles), np.log(means), 1, w=np.sqrt(counts))[0]
    return np.asarray(steps ** float(np.clip(power, 0.0, 0.75)), np.float64)


def covered(bands: dict[str, tuple[Floats, Floats]], truth: Floats) -> dict[str, float]:
    """Share of the true values inside each band, missing ones left out."""
    known = np.isfinite(truth)
    return {
        level: float(np.mean((truth[known] >= low[known]) & (truth[known] <= high[known])))
        for level, (low, high) in bands.items()
    }
