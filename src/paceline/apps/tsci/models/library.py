"""The models by name, and one way to call them in which a failure is an outcome, never a made-up forecast."""

import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..series import Floats
from . import lagged, neural, simple, statistical

Setting = Mapping[str, Any]
Forecaster = Callable[..., Floats]
"""(history [n], horizon, period, **settings) to forecast [horizon]."""


@dataclass(frozen=True)
class TsciModel:
    """One entry: what it is (the planner reads it), its function, and values to try of each setting."""

    about: str
    run: Forecaster
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def settings(self, most: int = 20) -> list[dict[str, Any]]:
        """The first `most` combinations of the grid."""
        combos = itertools.product(*self.grid.values())
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.islice(combos, most)]


@dataclass(frozen=True)
class Made:
    name: str
    settings: dict[str, Any]
    values: Floats
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A model that made no forecast, and why in one sentence."""

    name: str
    settings: dict[str, Any]
    why: str


LIBRARY: dict[str, TsciModel] = {
    "naive": TsciModel("repeats the last value; hard to beat on random walks", simple.naive),
    "seasonal_naive": TsciModel("repeats the last season", simple.seasonal_naive),
    "seasonal_mean": TsciModel("the mean of the last seasons", simple.seasonal_mean, {"seasons": (3, 7)}),
    "drift": TsciModel("the line through first and last value", simple.drift),
    "moving_average": TsciModel("the mean of the last values", simple.moving_average, {"width": (10, 24, 96)}),
    "croston": TsciModel(
        "intermittent demand: size and interval of non-zero values", simple.croston, {"alpha": (0.1, 0.3)}
    ),
    "ets": TsciModel("exponential smoothing, damped trend", statistical.ets, {"damped": (True, False)}),
    "holt_winters": TsciModel("exponential smoothing with trend and season", statistical.holt_winters),
    "theta": TsciModel("the Theta method on the deseasonalised series", statistical.theta),
    "arima": TsciModel(
        "autoregression and moving average", statistical.arima, {"order": ((1, 0, 0), (2, 0, 1), (1, 1, 1), (2, 1, 2))}
    ),
    "stl_arima": TsciModel(
        "STL takes the season out, ARIMA does the rest", statistical.stl_arima, {"order": ((1, 0, 0), (1, 1, 1))}
    ),
    "stl_ets": TsciModel("STL takes the season out, exponential smoothing does the rest", statistical.stl_ets),
    "linear": TsciModel("least squares on lags", lagged.linear, {"lags": (24, 48)}),
    "polynomial": TsciModel("ridge on lags and their squares", lagged.polynomial, {"lags": (12, 5)}),
    "ridge": TsciModel("ridge regression on lags", lagged.ridge, {"alpha": (1.0, 30.0), "lags": (24, 48)}),
    "lasso": TsciModel("sparse regression on lags", lagged.lasso, {"alpha": (0.003, 0.03), "lags": (48,)}),
    "elastic_net": TsciModel("sparse and ridge together", lagged.elastic_net, {"alpha": (0.003, 0.03), "lags": (48,)}),
    "svr": TsciModel("support vector regression on lags", lagged.svr, {"c": (1.0, 10.0), "lags": (24,)}),
    "random_forest": TsciModel("trees on lags; cannot extrapolate", lagged.random_forest, {"lags": (24,)}),
    "gradient_boosting": TsciModel(
        "boosted trees on lags; cannot extrapolate", lagged.gradient_boosting, {"lags": (24,)}
    ),
    "mlp": TsciModel("a small neural network on lags", lagged.mlp, {"lags": (24,)}),
    "n_linear": TsciModel(
        "one linear layer from the last values to the whole horizon", neural.n_linear, {"lags": (48, 96)}
    ),
    "lstm": TsciModel("a small recurrent network", neural.lstm, {"lags": (48,)}),
}
"""Prophet and TBATS are left out: the one needs dates it then fits a calendar to, the other is not maintained."""


def forecast(name: str, settings: Setting, history: Floats, horizon: int, period: int) -> Made | Failed:
    """One model's forecast [horizon]. A model that raises, or makes values that are not finite, has failed."""
    given = dict(settings)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values = np.asarray(LIBRARY[name].run(history.copy(), horizon, period, **given), np.float64)
    except Exception as error:  # a model of a library may raise anything, and no model may end the run
        return Failed(
            name, given, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
        )
    if values.shape != (horizon,) or not np.isfinite(values).all():
        return Failed(name, given, f"made {values.shape} values, not all finite; {horizon} finite ones were expected")
    reach = max(float(np.ptp(history)), 1e-6 * float(np.abs(history).max()), 1e-12)
    if np.abs(values - history.mean()).max() > 10 * reach:
        return Failed(name, given, "diverged: it left the history's range ten times over")
    return Made(name, given, values, time.perf_counter() - began)
