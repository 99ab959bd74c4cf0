"""Shares between keys: bounded differences, no credit for idling, and a place that is kept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.schedule.fair import OUTPUT_TOKEN, PROMPT_TOKEN, Fair, cost
from tests.schedule.population import Arrival, Population

PLACES = 3


def request(i: int, key: str, prompt: int = 4) -> Request:
    return Request(i, [1] * prompt, SamplingParams(), 0, key=key, arrival=float(i))


def keys(requests: list[Request]) -> str:
    return "".join(r.key for r in requests)


def serve(r: Request, output: int, now: float = 0.0) -> None:
    r.admitted = now
    for _ in range(output):
        r.append(1, False)


def test_keys_take_turns_however_many_requests_each_has() -> None:
    rs = [request(i, "a") for i in range(5)] + [request(i, "b") for i in range(5, 8)]
    assert keys(Fair()(rs, 0.0)) == "abababaa"


def test_a_long_prompt_counts_for_more() -> None:
    rs = [request(0, "a", 8), request(1, "a", 8), *(request(i, "b", 4) for i in range(2, 6))]
    assert keys(Fair()(rs, 0.0)) == "abbabb"


def test_a_key_that_comes_back_neither_has_credit_nor_owes() -> None:
    fair = Fair()
    first = request(0, "a")
    fair([first], 0.0)
    serve(first, 100)
    fair([first], 1.0)
    assert fair.served == {"a": 4 * PROMPT_TOKEN + 100 * OUTPUT_TOKEN}
    late = request(1, "b")
    fair([first, late], 2.0)
    assert fair.served["b"] == fair.served["a"]
    first.finish = "length"
    serve(late, 10, 3.0)
    again = request(2, "a")
    fair([late, again], 4.0)
    assert fair.served["a"] == fair.served["b"]
    late.finish = again.finish = "length"
    fair([], 5.0)
    assert fair.served == {}, "nothing is remembered of keys that owe nothing"


def test_who_was_pre_empted_stands_before_those_never_admitted() -> None:
    fair = Fair()
    greedy, modest = request(0, "a"), request(1, "b")
    fair([greedy, modest], 0.0)
    serve(greedy, 50)
    assert fair([modest, greedy], 1.0) == [greedy, modest]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=3, max_size=12),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=3, max_size=12),
)
def test_while_two_keys_wait_what_they_were_served_differs_by_a_bound(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    """VTC's theorem: by no more than the longest prompt or what the running ones may still draw, twice."""
    crowd = [Arrival(0, *shape, user="a") for shape in a] + [Arrival(0, *shape, user="b") for shape in b]
    population = Population(crowd, order="fair", places=PLACES, nodes=0, blocks=200)
    for arrival in crowd:
        population.submit(arrival)
    longest, most = max(p for p, _ in a + b), PLACES * max(o for _, o in a + b)
    bound = 2 * max(PROMPT_TOKEN * longest, OUTPUT_TOKEN * most) + PROMPT_TOKEN * longest * PLACES
    while {r.key for r in population.desk.waiting} == {"a", "b"}:
        population.step()
        population.now += 1
        served = {k: sum(cost(r) for r in population.requests if r.key == k) for k in "ab"}
        assert abs(served["a"] - served["b"]) <= bound
