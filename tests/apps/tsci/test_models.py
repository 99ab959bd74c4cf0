"""The library: forecasts of known series, statsmodels called as it would be directly, failures told."""

import numpy as np
import pytest

from paceline.apps.tsci.models import LIBRARY, Failed, Made, forecast
from paceline.apps.tsci.models.library import TsciModel
from paceline.apps.tsci.series import Floats
from paceline.apps.tsci.validate import Validated, folds, validate

pytest.importorskip("statsmodels", reason="statsmodels is not installed (pip install 'paceline[apps]')")
pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'paceline[apps]')")

X = np.arange(240.0)
SEASON = 10 + 4 * np.sin(2 * np.pi * X / 24)
NEXT = 10 + 4 * np.sin(2 * np.pi * (240 + np.arange(24.0)) / 24)
EXACT = {"seasonal_naive", "seasonal_mean", "holt_winters", "theta", "stl_arima", "stl_ets", "linear", "n_linear"}
LEVEL = {"naive", "drift", "moving_average", "croston", "ets"}
"""Models that know no season."""


@pytest.mark.parametrize("name", LIBRARY)
def test_a_pure_season(name: str) -> None:
    made = forecast(name, LIBRARY[name].settings()[0], SEASON, 24, 24)
    assert isinstance(made, Made), made
    assert made.values.shape == (24,)
    error = float(np.abs(made.values - NEXT).mean())
    assert error < (0.2 if name in EXACT else 12.0 if name in LEVEL else 3.0)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_newest_value_counts(name: str) -> None:
    """A model that leaves the newest value out would forecast a moved level one step late."""
    if name in {"seasonal_naive", "seasonal_mean", "moving_average", "croston", "stl_arima", "stl_ets", "theta"}:
        pytest.skip("looks at whole seasons or means")
    moved = SEASON.copy()
    moved[-1] += 3
    settings = LIBRARY[name].settings()[0]
    before, after = (forecast(name, settings, history, 1, 24) for history in (SEASON, moved))
    assert isinstance(before, Made)
    assert isinstance(after, Made)
    assert after.values[0] - before.values[0] > 0.05


def test_statsmodels_is_called_as_directly() -> None:
    from statsmodels.tsa.arima.model import ARIMA
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    values = np.cumsum(np.random.default_rng(0).normal(size=120))
    direct = ARIMA(values, order=(1, 1, 1)).fit().forecast(5)
    made = forecast("arima", {"order": (1, 1, 1)}, values, 5, 1)
    assert isinstance(made, Made)
    np.testing.assert_array_equal(made.values, direct)
    smooth = ExponentialSmoothing(values, trend="add", damped_trend=True, initialization_method="estimated").fit()
    other = forecast("ets", {"damped": True}, values, 5, 1)
    assert isinstance(other, Made)
    np.testing.assert_array_equal(other.values, smooth.forecast(5))


def test_croston_by_hand() -> None:
    made = forecast("croston", {"alpha": 0.1}, np.array([0, 2.0, 0, 2.0, 0, 2.0]), 2, 1)
    assert isinstance(made, Made)
    assert made.values == pytest.approx([0.95, 0.95])


def test_negative_series_stay_negative() -> None:
    for name in ("ridge", "holt_winters", "n_linear", "arima"):
        made = forecast(name, LIBRARY[name].settings()[0], SEASON - 100, 24, 24)
        assert isinstance(made, Made)
        assert made.values.max() < -80


def test_an_ar2_is_recovered() -> None:
    draw = np.random.default_rng(4)
    values = np.zeros(600)
    for i in range(2, 600):
        values[i] = 1.2 * values[i - 1] - 0.5 * values[i - 2] + draw.normal()
    splits = folds(values, 3, 6)
    found = {name: validate(name, splits, 1) for name in ("arima", "naive")}
    assert isinstance(found["arima"], Validated)
    assert isinstance(found["naive"], Validated)
    assert found["arima"].mae < found["naive"].mae
    assert found["arima"].settings["order"][0] == 2


def test_a_failed_model_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(history: Floats, horizon: int, period: int, how: str) -> Floats:
        if how == "raise":
            raise RuntimeError("no luck")
        return np.full(horizon, np.nan if how == "nan" else 1e9 if how == "far" else history[-1])

    monkeypatch.setitem(LIBRARY, "broken", TsciModel("", broken, {"how": ("raise", "nan", "far")}))
    whys = [forecast("broken", {"how": how}, SEASON, 4, 24) for how in ("raise", "nan", "far")]
    assert [one.why.split(":")[0] for one in whys if isinstance(one, Failed)] == [
        "RuntimeError",
        "made (4,) values, not all finite; 4 finite ones were expected",
        "diverged",
    ]
    assert isinstance(validate("broken", folds(SEASON, 4, 2), 24), Failed)
    monkeypatch.setitem(LIBRARY, "broken", TsciModel("", broken, {"how": ("raise", "fine")}))
    half = validate("broken", folds(SEASON, 4, 2), 24)
    assert isinstance(half, Validated)
    assert half.settings == {"how": "fine"}


def test_a_model_cannot_change_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoils(history: Floats, horizon: int, period: int) -> Floats:
        history[:] = 0
        return np.zeros(horizon)

    monkeypatch.setitem(LIBRARY, "spoils", TsciModel("", spoils))
    values = SEASON.copy()
    forecast("spoils", {}, values, 4, 24)
    np.testing.assert_array_equal(values, SEASON)


@pytest.mark.parametrize("level", [0.0, 5.0, -1e9])
def test_a_constant_stays_one(level: float) -> None:
    for name in ("naive", "ets", "ridge", "seasonal_mean", "drift"):
        made = forecast(name, LIBRARY[name].settings()[0], np.full(80, level), 5, 1)
        assert isinstance(made, Made), made
        np.testing.assert_allclose(made.values, level, rtol=1e-6, atol=1e-9)


def test_seasonal_models_refuse_a_series_without_season() -> None:
    for name in ("holt_winters", "stl_arima", "stl_ets"):
        made = forecast(name, LIBRARY[name].settings()[0], SEASON, 5, 1)
        assert isinstance(made, Failed)
        assert "no two seasons" in made.why


def test_folds_roll_and_never_reach_behind_their_origin() -> None:
    splits = folds(np.arange(100.0), 10, 3)
    assert [fold.next[0] for fold in splits] == [70, 80, 90]
    assert all(fold.past[-1] == fold.next[0] - 1 for fold in splits)
    with pytest.raises(ValueError, match="too short"):
        folds(np.arange(20.0), 15, 3)
