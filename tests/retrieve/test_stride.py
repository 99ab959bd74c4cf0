"""OS3: the table of optimal strides, the estimator, and what is predicted."""

import pytest

from paceline.retrieve.stride import Stride, cost, gain, optimal, value, verified

TABLE = {
    0.6: {1: 2, 5: 3, 10: 4, 20: 5, 40: 6},
    0.4: {5: 2, 10: 3, 40: 4},
    0.2: {5: 2, 40: 3},
}
"""gamma: {b / a: stride}, one after the other."""


@pytest.mark.parametrize("gamma", TABLE)
def test_the_table(gamma: float) -> None:
    assert {b: optimal(1, b, gamma, 64)[0] for b in TABLE[gamma]} == TABLE[gamma]
    for overlap in (False, True):
        assert all(optimal(1, b, gamma, 64, overlap) == (1, False) for b in (0, 0.01, 0.2)), "it speculates for nothing"


@pytest.mark.parametrize("may", [False, True])
def test_it_is_the_best_of_all(may: bool) -> None:
    for gamma in (0, 0.1, 0.3, 0.6, 0.9, 0.99, 1):
        for b in (0, 0.1, 0.7, 1, 3, 10, 100):
            values = [value(1, b, gamma, s, overlap) for s in range(1, 33) for overlap in {False, may}]
            s, overlap = optimal(1, b, gamma, 32, may)
            assert value(1, b, gamma, s, overlap) == pytest.approx(max(values)) and overlap <= may
            if not b:
                assert (s, overlap) == (1, False)


def test_overlap_is_chosen_where_it_pays() -> None:
    """A call of half a step: what a right guess saves (b) is weighed against what a wrong one costs (a - b)."""
    assert optimal(1, 0.5, 0.6, 1, overlap=True) == (1, True)
    assert optimal(1, 0.5, 0.4, 1, overlap=True) == (1, False)
    assert optimal(1, 2, 0.1, 1, overlap=True) == (1, True), "a wrong one is done before the call is"


def test_the_estimator() -> None:
    it = Stride(cap=0.6)
    assert it.gamma == 0 and it.next() == (1, False)
    for speculated, right in zip([3, 4, 3, 2], [1, 4, 2, 0]):
        it.learn(speculated, right, 1.0, 5.0)
    assert it.gamma == 0.6
    it.cap = 1.0
    assert it.gamma == pytest.approx(7 / 10)
    it.learn(2, 2, 1.0, 5.0)
    it.learn(2, 2, 1.0, 5.0)  # the round of 3 and 1 is forgotten
    assert it.gamma == pytest.approx(10 / 12)


def test_a_fixed_stride_stays_and_the_optimal_one_follows() -> None:
    fixed, free = Stride(3), Stride(cap=0.9, most=4)
    for it in (fixed, free):
        for _ in range(5):
            it.learn(4, 4, 1.0, 100.0)
    assert (fixed.next(), free.next()) == ((3, False), (4, False))
    assert Stride(3, overlap=True).next() == (3, True)
    for _ in range(5):
        free.learn(4, 4, 1.0, 0.01)
    assert free.next() == (1, False)


def test_one_slow_call_changes_nothing() -> None:
    it = Stride(overlap=True)
    for call in (0.001, 0.001, 9.0, 0.001):
        it.learn(1, 1, 1.0, call)
    assert it.next() == (1, False)


def test_what_a_round_brings() -> None:
    assert verified(0.5, 3) == 1.75 and verified(1.0, 3) == 3
    assert cost(2, 5, 0.5, 3) == 11
    assert cost(2, 5, 0.5, 3, overlap=True) == pytest.approx(0.125 * (4 + 5) + 0.875 * 11)
    assert cost(2, 1, 0.5, 3, overlap=True) == pytest.approx(0.125 * (4 + 2) + 0.875 * (6 + 2)), "it is waited for"
    assert gain(1, 10, 0.6, 1) == pytest.approx(1) and gain(1, 10, 0.6, 4) == pytest.approx(11 * 2.176 / 14)
