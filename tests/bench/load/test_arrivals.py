import math
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from paceline.bench.load import arrivals
from paceline.core.errors import InputError

COUNT = 20_000


def gaps(rate: float, seed: int, burstiness: float = 1.0) -> np.ndarray:
    return np.diff([0.0, *islice(arrivals.random(rate, seed, burstiness), COUNT)])


@pytest.mark.parametrize("rate", [0.5, 40.0])
@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gaps_follow_the_gamma_law(rate: float, shape: float) -> None:
    law = stats.gamma(shape, scale=1 / (rate * shape))
    assert law.mean() == pytest.approx(1 / rate)
    found = gaps(rate, seed=3, burstiness=shape)
    assert stats.kstest(found, law.cdf).pvalue > 0.01
    assert stats.kstest(found, stats.gamma(shape * 1.1, scale=1 / (rate * shape * 1.1)).cdf).pvalue < 0.01


def test_shape_one_is_poisson() -> None:
    assert stats.kstest(gaps(5.0, seed=1), stats.expon(scale=0.2).cdf).pvalue > 0.01
    counts = np.histogram(np.cumsum(gaps(5.0, seed=1)), bins=np.arange(0, 3000, 1.0))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.1)


def test_a_seed_repeats_and_another_differs() -> None:
    first, again, other = (list(islice(arrivals.random(2.0, seed), 50)) for seed in (7, 7, 8))
    assert first == again != other and first == sorted(first)


def test_rates_share_their_noise() -> None:
    slow, quick = (list(islice(arrivals.random(rate, 0), 20)) for rate in (1.0, 4.0))
    assert np.allclose(np.array(slow), 4 * np.array(quick)), "a sweep compares loads, not draws"


def test_constant_adds_up_no_rounding_error() -> None:
    offsets = list(islice(arrivals.constant(10.0), 100_001))
    assert offsets[:3] == [0.0, 0.1, 0.2] and offsets[-1] == 10_000.0
    assert list(islice(arrivals.random(10.0, 0, math.inf), 3)) == offsets[:3]


def test_a_recording_plays_faster() -> None:
    assert list(arrivals.faster(iter([0.0, 1.0, 5.0]), 2.0)) == [0.0, 0.5, 2.5]


def test_until() -> None:
    assert arrivals.until(arrivals.constant(1.0), 3, None) == [0.0, 1.0, 2.0]
    assert arrivals.until(arrivals.constant(1.0), None, 2.0) == [0.0, 1.0]
    assert arrivals.until(arrivals.constant(1.0), 10, 1.5) == [0.0, 1.0]
    assert arrivals.until(iter([0.0, 4.0]), 10, None) == [0.0, 4.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_bad_rates(rate: float) -> None:
    with pytest.raises(InputError, match="rate is"):
        arrivals.constant(rate)
    with pytest.raises(InputError, match="rate is"):
        next(arrivals.random(rate, 0))
    with pytest.raises(InputError, match="speed is"):
        arrivals.faster(iter([0.0]), rate)


@pytest.mark.parametrize("shape", [0.0, -1.0, math.nan])
def test_bad_burstiness(shape: float) -> None:
    with pytest.raises(InputError, match="burstiness is"):
        next(arrivals.random(1.0, 0, shape))
