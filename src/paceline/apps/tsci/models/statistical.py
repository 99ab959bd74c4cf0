"""Models of statsmodels: (history [n], horizon, period) to a forecast [horizon]."""

import numpy as np

from ..series import Floats

TSCI_TWICE = "the history holds no two seasons"


def _seasons(history: Floats, period: int) -> None:
    if period < 2 or len(history) < 2 * period + 1:
        raise ValueError(f"{TSCI_TWICE} of {period}; choose a model without season.")


def ets(history: Floats, horizon: int, period: int, damped: bool) -> Floats:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    fitted = ExponentialSmoothing(history, trend="add", damped_trend=damped, initialization_method="estimated").fit()
    return np.asarray(fitted.forecast(horizon))


def holt_winters(history: Floats, horizon: int, period: int) -> Floats:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    _seasons(history, period)
    model = ExponentialSmoothing(
        history,
        trend="add",
        damped_trend=True,
        seasonal="add",
        seasonal_periods=period,
        initialization_method="heuristic",
    )
    return np.asarray(model.fit().forecast(horizon))


def theta(history: Floats, horizon: int, period: int) -> Floats:
    from statsmodels.tsa.forecasting.theta import ThetaModel

    season = period >= 2 and len(history) >= 2 * period + 1
    model = ThetaModel(history, period=period if season else 1, deseasonalize=season, method="additive")
    return np.asarray(model.fit().forecast(horizon))


def arima(history: Floats, horizon: int, period: int, order: tuple[int, int, int]) -> Floats:
    from statsmodels.tsa.arima.model import ARIMA

    return np.asarray(ARIMA(history, order=order).fit().forecast(horizon))


def stl_arima(history: Floats, horizon: int, period: int, order: tuple[int, int, int]) -> Floats:
    from statsmodels.tsa.arima.model import ARIMA
    from statsmodels.tsa.forecasting.stl import STLForecast

    _seasons(history, period)
    model = STLForecast(history, ARIMA, model_kwargs={"order": order}, period=period, robust=True)
    return np.asarray(model.fit().forecast(horizon))


def stl_ets(history: Floats, horizon: int, period: int) -> Floats:
    from statsmodels.tsa.forecasting.stl import STLForecast
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    _seasons(history, period)
    kwargs = {"trend": "add", "damped_trend": True, "initialization_method": "estimated"}
    model = STLForecast(history, ExponentialSmoothing, model_kwargs=kwargs, period=period, robust=True)
    return np.asarray(model.fit().forecast(horizon))
