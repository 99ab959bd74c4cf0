"""Several forecasts made one, and which way of doing so the validation prefers."""

from dataclasses import dataclass

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


def by_error(mae: dict[str, float]) -> dict[str, float]:
    """Weights by the inverse of the validation error."""
    floor = 1e-9 + 1e-6 * max(mae.values())
    return normalised({name: 1 / max(value, floor) for name, value in mae.items()})


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

    That is the way with the least MAE among those better than the simple mean on every fold, else the mean: a few folds
    cannot tell a good model from a lucky one, and the mean is hard to beat.
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
    sure = [way for way, errors in by_fold.items() if (errors < by_fold["mean"]).all()]
    way = min(sure, key=lambda name: mae[name]) if sure else "mean"
    return Combined(way, mae, ways(forecasts, weights, best)[way])


def intervals(held: list[Floats], truth: list[Floats], forecast: Floats) -> dict[str, tuple[Floats, Floats]]:
    """Bands of 80, 90 and 95 % around a forecast, from the absolute validation errors of the way that made it."""
    gaps = np.concatenate([np.abs(made - true) for made, true in zip(held, truth, strict=True)])
    bands = {}
    for level in (80, 90, 95):
        reach = float(np.quantile(gaps, min(1.0, level / 100 * (1 + 1 / len(gaps)))))
        bands[f"{level}"] = (forecast - reach, forecast + reach)
    return bands
