"""Trend lines: on the right side of every bar, and the tightest of all slopes."""

import numpy as np
import pytest

from paceline.apps.quantagent.trend import QUANT_TOLERANCE, describe, fit, slope_of, trend

from .series import bars_from, walk


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("above", [True, False])
def test_no_value_lies_beyond_and_no_slope_is_tighter(seed: int, above: bool) -> None:
    values = np.cumsum(np.random.default_rng(seed).standard_normal(50))
    line = fit(values, slope_of(values), above)
    x, sign = np.arange(50), 1.0 if above else -1.0
    gap = sign * (line.intercept + line.slope * x - values)
    assert gap.min() >= -QUANT_TOLERANCE
    best = gap @ gap
    for slope in line.slope + np.linspace(-1, 1, 2001):
        other = sign * (values[line.pivot] + slope * (x - line.pivot) - values)
        assert other.min() < -QUANT_TOLERANCE or other @ other >= best - 1e-9


def test_constant_and_straight_values() -> None:
    assert fit(np.full(9, 3.0), 0.0, above=True).slope == 0.0
    line = fit(np.arange(9.0) * 2, 2.0, above=False)
    assert line.slope == pytest.approx(2.0)
    assert line.at(4) == pytest.approx(8.0)
    assert line.touches == 9


def test_one_bar_has_a_line() -> None:
    assert fit(np.array([5.0]), 0.0, above=True).at(0) == 5.0


def test_direction_and_text() -> None:
    up = trend(bars_from(np.linspace(100, 150, 50)))
    assert up.kappa > 0.5
    assert up.room_below >= 0
    assert "mean slope +" in describe(up)
    assert trend(walk(50, drift=-2.0)).kappa < 0


def test_triangle_converges() -> None:
    x = np.arange(40)
    assert trend(bars_from(100 + (40 - x) * 0.2 * (-1.0) ** x)).narrowing < 0.5
