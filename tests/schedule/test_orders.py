"""Orders that compare requests alone: who is first, and that nobody waits for ever."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.params import MOST_PRIORITY, SamplingParams
from paceline.core.request import Request
from paceline.schedule import orders
from tests.schedule.population import Arrival, Population


def request(i: int, arrival: float = 0.0, priority: int = 0, deadline_ms: float | None = None) -> Request:
    return Request(i, [1], SamplingParams(priority=priority, deadline_ms=deadline_ms), 0, arrival=arrival)


def ids(requests: list[Request]) -> list[int]:
    return [r.id for r in requests]


def test_first_come_first_served() -> None:
    assert ids(orders.fcfs([request(3, 1.0), request(0, 1.0), request(2, 0.5)], 9.0)) == [2, 0, 3]


def test_the_lowest_priority_is_first_and_a_level_is_worth_a_minute() -> None:
    rs = [request(0), request(1, priority=-1), request(2, 30.0, priority=-1), request(3, 61.0, priority=-1)]
    assert ids(orders.priority(rs, 99.0)) == [1, 2, 0, 3]


def test_earliest_deadline_first_and_who_names_none_has_a_minute() -> None:
    rs = [request(0), request(1, deadline_ms=70_000), request(2, 50.0, deadline_ms=5_000), request(3, 1.0)]
    assert ids(orders.deadline(rs, 0.0)) == [2, 0, 3, 1]


requests = st.lists(
    st.tuples(st.floats(0, 1e5), st.integers(-MOST_PRIORITY, MOST_PRIORITY), st.none() | st.floats(1, 1e6)),
    min_size=2,
    max_size=12,
).map(lambda shapes: [request(i, *shape) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize(
    ("order", "bound"),
    [
        (orders.fcfs, lambda r: 0.0),
        (orders.priority, lambda r: orders.LEVEL_S * (r.params.priority + MOST_PRIORITY)),
        (orders.deadline, lambda r: orders.due(r) - r.arrival),
    ],
)
@given(rs=requests, now=st.floats(0, 1e6))
def test_nobody_is_overtaken_after_a_bounded_time(
    order: Callable[..., list[Request]], bound: Callable[[Request], float], rs: list[Request], now: float
) -> None:
    ranked = order(rs, now)
    assert sorted(ids(ranked)) == ids(rs)
    assert ranked == order(list(reversed(rs)), now + 1e4), "the order moves with the clock: two could swap places"
    rank = {r.id: i for i, r in enumerate(ranked)}
    for r in rs:
        assert all(rank[r.id] < rank[s.id] for s in rs if s.arrival > r.arrival + bound(r) + 1e-3)


@pytest.mark.parametrize(("order", "wish"), [("priority", {"priority": -1}), ("deadline", {"deadline_ms": 2_000.0})])
def test_a_stream_of_urgent_requests_starves_nobody(order: str, wish: dict) -> None:
    """One place, an urgent request every second, each of two seconds: the plain one ends in two minutes."""
    crowd = [Arrival(i, 4, 2, **wish) for i in range(300)]
    done = Population([crowd[0], Arrival(0, 4, 2), *crowd[1:]], order=order, places=1, nodes=0).run()
    plain = next(r for r in done.requests if not r.params.priority and r.params.deadline_ms is None)
    assert 30 < done.ended[plain.id] <= 122
