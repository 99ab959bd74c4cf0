"""Validation by rolling origin: a model is fitted before each of several origins and judged behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .models import LIBRARY, Failed, Made, forecast
from .series import Floats


@dataclass(frozen=True)
class Fold:
    """One origin: what is before it, and what comes next, float64 [horizon]."""

    past: Floats
    next: Floats


@dataclass(frozen=True)
class Validated:
    """A model with the settings that validated best, its errors, and its forecasts fold by fold."""

    name: str
    settings: dict[str, Any]
    mae: float
    mse: float
    held: tuple[Floats, ...]


def folds(history: Floats, horizon: int, count: int) -> list[Fold]:
    """`count` origins, the newest last; the oldest keeps half of the history, so they move closer where it is short."""
    step = min(horizon, max(1, (len(history) // 2 - horizon) // max(1, count - 1))) if count > 1 else horizon
    origins = [len(history) - horizon - step * back for back in reversed(range(count))]
    if origins[0] < max(10, horizon // 2):
        raise ValueError(
            f"A history of {len(history)} is too short to validate {count} times over {horizon} steps; "
            "give a longer history, a shorter horizon or fewer folds."
        )
    return [Fold(history[:origin].copy(), history[origin : origin + horizon].copy()) for origin in origins]


def validate(name: str, splits: Sequence[Fold], period: int, most: int = 20) -> Validated | Failed:
    """The best settings of one model by mean MAE over the folds; settings that fail on one fold are out."""
    best: Validated | None = None
    failed: Failed | None = None
    for settings in LIBRARY[name].settings(most):
        made = [forecast(name, settings, fold.past, len(fold.next), period) for fold in splits]
        failed = next((one for one in made if isinstance(one, Failed)), failed)
        held = tuple(one.values for one in made if isinstance(one, Made))
        if len(held) < len(splits):
            continue
        gaps = [values - fold.next for values, fold in zip(held, splits, strict=True)]
        mae = float(np.mean([np.abs(gap).mean() for gap in gaps]))
        if best is None or mae < best.mae:
            best = Validated(name, settings, mae, float(np.mean([(gap * gap).mean() for gap in gaps])), held)
    return best or failed or Failed(name, {}, "has no settings to try")
