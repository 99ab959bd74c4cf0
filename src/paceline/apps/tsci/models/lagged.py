"""Models of scikit-learn on lags, one step at a time, each step fed the forecasts before it.

The newest value is among the lags. Values are standardised by the history; lags are taken relative to the newest, so a
moving level is followed by models that could not extrapolate it.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..series import Floats

MOST_ROWS = 2000
"""The newest rows that a model is fitted to, so that a long history costs no more."""


def recursive(model: Any, history: Floats, horizon: int, lags: int) -> Floats:
    """Fits `model` to (lags relative to the newest, next change) and rolls it forward."""
    if len(history) < lags + 10:
        raise ValueError(f"{lags} lags need {lags + 10} values or more, not {len(history)}.")
    level, spread = history.mean(), history.std() or 1.0
    scaled = (history - level) / spread
    rows = sliding_window_view(scaled, lags + 1)[-MOST_ROWS:]
    newest = rows[:, lags - 1 : lags]
    model.fit(rows[:, :lags] - newest, rows[:, lags] - newest[:, 0])
    state = list(scaled[-lags:])
    for _ in range(horizon):
        last = np.array(state[-lags:])
        state.append(last[-1] + float(model.predict((last - last[-1])[None])[0]))
    return np.asarray(level + spread * np.array(state[lags:]))


def linear(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    from sklearn.linear_model import LinearRegression

    return recursive(LinearRegression(), history, horizon, lags)


def polynomial(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    return recursive(make_pipeline(PolynomialFeatures(2), Ridge(10.0)), history, horizon, lags)


def ridge(history: Floats, horizon: int, period: int, lags: int, alpha: float) -> Floats:
    from sklearn.linear_model import Ridge

    return recursive(Ridge(alpha), history, horizon, lags)


def lasso(history: Floats, horizon: int, period: int, lags: int, alpha: float) -> Floats:
    from sklearn.linear_model import Lasso

    return recursive(Lasso(alpha), history, horizon, lags)


def elastic_net(history: Floats, horizon: int, period: int, lags: int, alpha: float) -> Floats:
    from sklearn.linear_model import ElasticNet

    return recursive(ElasticNet(alpha, l1_ratio=0.5), history, horizon, lags)


def svr(history: Floats, horizon: int, period: int, lags: int, c: float) -> Floats:
    from sklearn.svm import SVR

    return recursive(SVR(C=c, gamma="scale"), history, horizon, lags)


def random_forest(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    from sklearn.ensemble import RandomForestRegressor

    return recursive(RandomForestRegressor(50, min_samples_leaf=3, random_state=0), history, horizon, lags)


def gradient_boosting(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    from sklearn.ensemble import GradientBoostingRegressor

    return recursive(GradientBoostingRegressor(n_estimators=80, subsample=0.7, random_state=0), history, horizon, lags)


def mlp(history: Floats, horizon: int, period: int, lags: int) -> Floats:
    from sklearn.neural_network import MLPRegressor

    model = MLPRegressor(hidden_layer_sizes=(32,), alpha=0.1, max_iter=300, early_stopping=True, random_state=0)
    return recursive(model, history, horizon, lags)
