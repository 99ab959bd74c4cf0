"""bench/studies/auto.py: whom the planner's choice is held against."""

from typing import Any

import numpy as np
import pytest

from tests.bench.studies import load


@pytest.fixture(scope="module")
def study() -> Any:
    return load("auto")


def test_the_best_of_a_repeat_is_that_of_the_others(study: Any) -> None:
    assert study.best_elsewhere([[1.0, 9.0, 1.0], [2.0, 3.0, 4.0]]) == [1.0, 3.0, 1.0]
    assert study.best_elsewhere([[1.0], [2.0]]) == [2.0]


def test_of_equal_arms_no_luck_is_counted(study: Any) -> None:
    worlds = np.random.default_rng(0).normal(1.0, 0.03, (1000, 4, 7))
    fair = np.mean([np.median(study.best_elsewhere(arms)) for arms in worlds])
    lucky = np.mean([max(np.median(arm) for arm in arms) for arms in worlds])
    assert fair == pytest.approx(1.0, abs=0.003)
    assert lucky > 1.01
