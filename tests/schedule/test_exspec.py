"""Groups of equal shape: members are alike, the rate grows with the window, nobody is left out for long."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.schedule.chunked import Chunked
from paceline.schedule.exspec import PATIENCE_ROUNDS, Grouped, shape
from paceline.schedule.orders import fcfs
from tests.schedule.population import Arrival, Population
from tests.schedule.test_chunked import Held


def request(i: int, tokens: int, max_nodes: int | None = None, left: int = 50) -> Request:
    r = Request(i, [0] * tokens, SamplingParams(max_nodes=max_nodes), 0, drafter="ngram", max_tokens=left)
    r.lease = Held(tokens - 1)
    return r


def grouped(batch: int) -> Grouped:
    return Grouped(Chunked(fcfs, 512), batch, shape({"ngram": 4}))


def ids(requests: list[Request]) -> list[int]:
    return [r.id for r in requests]


def test_shape_is_rows_and_length_class() -> None:
    of = shape({"ngram": 4})
    assert of(request(0, 9)) == of(request(1, 63)) == (5, 0)
    assert of(request(0, 64)) == (5, 1)
    assert of(request(0, 9, max_nodes=2)) == of(request(0, 9, left=3)) == (3, 0)


def test_the_first_bucket_that_fills_a_group_decodes() -> None:
    policy = grouped(2)
    rs = [request(0, 9), request(1, 70), request(2, 99), request(3, 9)]
    assert ids(policy.turn(rs, 0.0)) == [1, 2]
    assert (policy.grouped, policy.fallback) == (1, 0)


def test_where_no_bucket_fills_the_oldest_decode_and_prompts_go_on() -> None:
    policy = grouped(2)
    prompt = request(3, 9)
    prompt.lease = Held(2)
    assert ids(policy.turn([request(0, 9), request(1, 70), request(2, 140), prompt], 0.0)) == [0, 1, 3]
    assert policy.rate == 0.0 and policy.fallback == 1


def test_everybody_decodes_where_they_fit_one_group() -> None:
    policy = grouped(3)
    assert ids(policy.turn([request(0, 9), request(1, 70)], 0.0)) == [0, 1]
    assert policy.grouped == policy.fallback == 0


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 300), st.integers(0, 4)), min_size=1, max_size=20), st.integers(1, 5))
def test_nobody_is_left_out_for_long(shapes: list[tuple[int, int]], batch: int) -> None:
    policy, since = grouped(batch), [0] * len(shapes)
    rs = [request(i, *s) for i, s in enumerate(shapes)]
    bound = PATIENCE_ROUNDS * -(-len(rs) // batch) + len(rs)
    for _ in range(3 * bound):
        served = ids(policy.turn(rs, 0.0))
        assert len(served) == min(batch, len(rs)) == len(set(served))
        since = [0 if i in served else n + 1 for i, n in enumerate(since)]
        assert max(since) <= bound


def rate(window: int) -> float:
    """Rate over many texts of mixed lengths, with `window` of them decoding at once and groups of four."""
    rng = random.Random(5)
    crowd = [Arrival(0, rng.randrange(4, 400), rng.randrange(20, 60)) for _ in range(96)]
    done = Population(crowd, blocks=20_000, budget=512, nodes=4, places=window, group_size=4, target=0.0).run()
    assert isinstance(done.policy, Grouped)
    return done.policy.rate


def test_the_grouping_rate_grows_with_the_window() -> None:
    rates = [rate(window) for window in (5, 8, 16, 32)]
    print(f"\ngrouping rate by window 5, 8, 16, 32: {rates}")
    assert rates == sorted(rates) and rates[0] < 0.1 and rates[-1] > 0.5
