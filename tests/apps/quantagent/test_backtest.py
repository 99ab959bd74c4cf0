"""The back-test: crafted bars, a loop as its slow twin, and what intervals say about a random walk."""

import numpy as np
import pytest

from paceline.apps.quantagent.backtest import Future, Orders, levels, run
from paceline.apps.quantagent.metrics import ahead_of, coins, interval, score


def one(side: int, bars: list[tuple[float, float, float, float]], cost: float = 0.0) -> tuple[float, str, int]:
    sides = np.array([side])
    stop, target = levels(sides, np.array([100.0]), np.array([0.01]), np.array([1.5]))
    columns = [np.array([[bar[k] for bar in bars]]) for k in range(4)]
    fills = run(Orders(sides, np.array([100.0]), stop, target), Future(*columns), cost)
    return float(fills.gain[0]), str(fills.reason[0]), int(fills.bar[0])


@pytest.mark.parametrize(
    ("side", "bars", "gain", "reason", "bar"),
    [
        (1, [(100, 100.5, 99.5, 100), (100, 102, 99.5, 101)], 0.015, "target", 1),
        (1, [(100, 102, 98, 101)], -0.01, "stop", 0),
        (1, [(97, 98, 96, 97)], -0.03, "stop", 0),
        (1, [(103, 104, 102, 103)], 0.015, "target", 0),
        (1, [(100, 100.5, 99.5, 100.3), (100, 100.5, 99.5, 100.2)], 0.002, "close", 1),
        (-1, [(100, 100.5, 98, 99)], 0.015, "target", 0),
        (-1, [(100, 102, 98, 99)], -0.01, "stop", 0),
        (-1, [(104, 105, 103, 104)], -0.04, "stop", 0),
        (0, [(100, 102, 98, 99)], 0.0, "none", -1),
    ],
)
def test_first_touch(
    side: int, bars: list[tuple[float, float, float, float]], gain: float, reason: str, bar: int
) -> None:
    found = one(side, bars)
    assert found[0] == pytest.approx(gain)
    assert found[1:] == (reason, bar)


def test_costs_are_paid_on_both_sides() -> None:
    assert one(1, [(100, 102, 99.5, 101)], cost=0.001)[0] == pytest.approx(0.015 - 0.001 * (1 + 1.015))


def slow(orders: Orders, future: Future, cost: float) -> list[float]:
    """Gains of the trades, computed bar by bar."""
    gains = []
    for i, side in enumerate(orders.side):
        if side == 0:
            gains.append(0.0)
            continue
        price = future.close[i, -1]
        for o, h, low in zip(future.open[i], future.high[i], future.low[i]):
            if (low if side > 0 else -h) <= side * orders.stop[i]:
                price = min(orders.stop[i], o) if side > 0 else max(orders.stop[i], o)
                break
            if (h if side > 0 else -low) >= side * orders.target[i]:
                price = orders.target[i]
                break
        gains.append(side * (price / orders.entry[i] - 1) - cost * (1 + price / orders.entry[i]))
    return gains


def test_equals_its_slow_twin() -> None:
    draw = np.random.default_rng(3)
    close = 100 + np.cumsum(draw.standard_normal((500, 6)), axis=1)
    opened = close + 0.5 * draw.standard_normal(close.shape)
    high, low = (
        np.maximum(opened, close) + draw.random(close.shape),
        np.minimum(opened, close) - draw.random(close.shape),
    )
    sides, entry = draw.integers(-1, 2, 500), np.full(500, 100.0)
    stop, target = levels(sides, entry, 0.02 * draw.random(500), 1 + draw.random(500))
    orders, future = Orders(sides, entry, stop, target), Future(opened, high, low, close)
    fills = run(orders, future, 0.0005)
    np.testing.assert_allclose(fills.gain, slow(orders, future, 0.0005), rtol=0, atol=1e-12)
    assert set(fills.reason) == {"none", "stop", "target", "close"}


def test_interval_by_table() -> None:
    assert interval(50, 100) == pytest.approx((0.3983, 0.6017), abs=1e-4)
    assert interval(0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert interval(0, 0) == (0.0, 1.0)


def test_flat_moves_and_missing_decisions_count_for_nobody() -> None:
    found = score("x", np.array([1, 1, -1, 0]), np.array([2.0, 0.0, 3.0, -1.0]))
    assert (found.hits, found.count, found.share) == (1, 2, 0.5)


def test_a_rule_that_reads_the_past_says_nothing_about_a_random_walk() -> None:
    draw = np.random.default_rng(11)
    past, move = draw.standard_normal(400), draw.standard_normal(400)
    momentum = np.where(past > 0, 1, -1)
    assert score("momentum", momentum, move).says == "not distinguishable from one half"
    assert score("coins", coins(400, 5), move).says == "not distinguishable from one half"
    assert ahead_of(momentum, coins(400, 5), move) > 0.05


def test_a_rule_that_knows_is_better_than_one_half() -> None:
    move = np.random.default_rng(1).standard_normal(50)
    knows = np.where(move > 0, 1, -1)
    assert score("knows", knows, move).says == "better than one half"
    assert score("contrary", -knows, move).says == "worse than one half"
    assert ahead_of(knows, -knows, move) < 1e-9
