"""Facts: seasons found, trends and unit roots told apart."""

import numpy as np
import pytest

from paceline.apps.tsci.explore import explore, find_period
from paceline.apps.tsci.generate import load, random_walk, retail, sensor


@pytest.mark.parametrize(("make", "period"), [(retail, 24), (load, 24), (sensor, 48)])
def test_the_season_is_found(make: object, period: int) -> None:
    facts = explore(make(512).values)  # type: ignore[operator]
    assert facts.period == period
    assert facts.season > 0.3


def test_noise_lines_and_constants_have_no_season() -> None:
    assert find_period(np.random.default_rng(0).normal(size=500), 100) == 1
    assert find_period(np.arange(500.0), 100) == 1
    assert find_period(np.full(500, 3.0), 100) == 1
    assert explore(np.full(50, 3.0)).season == 0.0


def test_gaps_outliers_trend_and_unit_root() -> None:
    assert explore(retail(512).values).missing == np.isnan(retail(512).values).sum() > 0
    assert explore(retail(512).values).trend > 0.5
    assert explore(sensor(512).values).outliers["zscore"] >= 1
    assert explore(sensor(512).values).unit_root_p < 0.05
    assert explore(random_walk(512, seed=1).values).unit_root_p > 0.05


def test_share_of_zeros() -> None:
    assert explore(np.array([0.0, 1.0] * 20)).zeros == 0.5
