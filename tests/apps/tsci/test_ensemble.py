"""Ensembles: identities, weights that sum to one, the way that validation prefers, bands that cover."""

import numpy as np
import pytest

from paceline.apps.tsci.ensemble import (
    by_error,
    combine,
    covered,
    intervals,
    median,
    normalised,
    simple_mean,
    trimmed_mean,
    weighted,
)
from paceline.apps.tsci.series import Floats

ROWS = np.random.default_rng(0).normal(size=(10, 6))


def test_identities() -> None:
    np.testing.assert_allclose(weighted(ROWS, np.full(10, 0.1)), simple_mean(ROWS))
    np.testing.assert_allclose(trimmed_mean(ROWS), np.sort(ROWS, axis=0)[1:9].mean(axis=0))
    np.testing.assert_allclose(trimmed_mean(ROWS[:5]), simple_mean(ROWS[:5]))
    np.testing.assert_allclose(median(ROWS[:3]), np.sort(ROWS[:3], axis=0)[1])


def test_weights() -> None:
    assert normalised({"a": 3, "b": 1, "c": 0}) == {"a": 0.75, "b": 0.25, "c": 0}
    assert normalised({"a": 0, "b": 0}) == {"a": 0.5, "b": 0.5}
    found = by_error({"a": 1.0, "b": 3.0})
    assert found["a"] == pytest.approx(0.9)
    moved = by_error({"a": 1.0, "b": 1.0}, {"a": 10.0, "b": 0.0})
    assert moved == {"a": pytest.approx(0.75), "b": pytest.approx(0.25)}, "points move a weight by half at most"
    assert sum(by_error({"a": 0.0, "b": 1.0, "c": 2.0}).values()) == pytest.approx(1)


@pytest.mark.parametrize("points", [{"a": -1.0}, {"a": float("nan")}, {"a": float("inf"), "b": 1.0}])
def test_bad_points_are_refused(points: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        normalised(points)


@pytest.mark.parametrize("weights", [[0.5, 0.4], [1.5, -0.5], [1.0]])
def test_bad_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        weighted(ROWS[:2], np.array(weights))


LAST = {"good": np.ones(4), "bad": np.full(4, 9.0)}
EVEN = {"good": 0.5, "bad": 0.5}


def fold(good: float, bad: float) -> dict[str, Floats]:
    return {"good": np.full(4, good), "bad": np.full(4, bad)}


def test_the_mean_is_taken_where_errors_cancel() -> None:
    found = combine([fold(2, -2)] * 2, [np.zeros(4)] * 2, LAST, EVEN)
    assert found.mae["best single"] == 2
    assert found.mae["mean"] == 0
    assert found.forecast.tolist() == [5.0] * 4


def test_the_best_single_model_is_taken_where_it_is_better_on_every_fold() -> None:
    found = combine([fold(0, 3), fold(0.5, 4)], [np.zeros(4)] * 2, LAST, EVEN)
    assert found.way == "best single"
    assert found.forecast.tolist() == [1.0] * 4


def test_a_lucky_fold_is_not_enough() -> None:
    found = combine([fold(0, 9), fold(2, -1)], [np.zeros(4)] * 2, LAST, EVEN)
    assert found.mae["best single"] < found.mae["weighted"]
    assert found.way == "weighted"


def test_weights_are_taken_where_they_are_better_on_every_fold() -> None:
    found = combine([fold(1, -3)] * 2, [np.zeros(4)] * 2, LAST, {"good": 0.75, "bad": 0.25})
    assert found.way == "weighted"
    assert found.forecast.tolist() == [3.0] * 4


def test_bands_widen_with_the_distance() -> None:
    draw, reach = np.random.default_rng(1), np.linspace(1, 5, 40)
    held = [reach * draw.normal(size=40) for _ in range(4)]
    bands = intervals(held, [np.zeros(40)] * 4, np.zeros(40))
    for low, high in bands.values():
        width = high - low
        assert (np.diff(width) >= -1e-9).all() and width[-1] > 2 * width[0]
    found = covered(bands, np.array([0.0, np.nan, 1e9] + [0.0] * 37))
    assert found["80"] == found["95"] == pytest.approx(38 / 39)


def test_bands_widen_and_cover() -> None:
    draw = np.random.default_rng(2)
    bands = intervals([draw.normal(size=100)] * 2, [np.zeros(100)] * 2, np.zeros(100))
    widths = [float((high - low)[0]) for low, high in bands.values()]
    assert list(bands) == ["80", "90", "95"]
    assert widths == sorted(widths)
    fresh = draw.normal(size=2000)
    assert 0.7 < np.mean(np.abs(fresh) < widths[0] / 2) < 0.97
