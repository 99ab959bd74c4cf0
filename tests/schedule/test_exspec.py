"""Groups of equal shape: members are alike, the rate grows with the window, nobody is left out for long."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import Item, Plan
from paceline.core.request import Request
from paceline.schedule import policies
from paceline.schedule.chunked import Chunked
from paceline.schedule.exspec import PATIENCE_ROUNDS, Grouped, shape
from paceline.schedule.orders import fcfs
from tests.lossless.cases import Setting, plain
from tests.schedule.population import Arrival, Population
from tests.schedule.test_chunked import Held
from tests.toy import VOCAB


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


def test_a_group_of_one_shape_gets_equal_rows_however_the_plan_divided_them() -> None:
    """The plan decides late, and otherwise than the shapes expect."""
    policy = grouped(2)
    rs = [request(0, 9), request(1, 9), request(2, 99)]
    assert ids(policy.turn(rs, 0.0)) == [0, 1]
    given = [Item(rs[0], 1, 5, "ngram", "exact", chances=(0.9, 0.5)), Item(rs[1], 1, 2, "model", "exact", further=3)]
    prompt = request(3, 9)
    prompt.lease = Held(2)
    plan = policies.finished(policy, Plan([*given, Item(prompt, 7, 4, "ngram", "exact")]))
    assert [item.rows for item in plan.items] == [3, 3, 11] and policy.levelled == 1
    assert plan.items[1] == given[1] and not plan.items[0].chances
    assert policies.finished(policy, plan) == plan and policy.levelled == 1


def test_a_mixed_group_keeps_its_rows() -> None:
    policy = grouped(2)
    rs = [request(0, 9), request(1, 70), request(2, 200)]
    assert len(policy.turn(rs, 0.0)) == 2 and policy.fallback == 1
    plan = Plan([Item(rs[0], 1, 5, "ngram", "exact"), Item(rs[1], 1, 2, "ngram", "exact")])
    assert policies.finished(policy, plan) == plan


@pytest.mark.parametrize("drafter", ["auto", "ngram|model"])
def test_every_uniform_step_is_uniform_where_drafts_are_chosen_late(drafter: str) -> None:
    """Eight requests in groups of three, drafters and lengths chosen for each request and step by times that are
    arbitrary; the texts are those of plain decoding."""
    setting = Setting(max_requests=8, row_budget=64, blocks=200, group_size=3, clock=7)
    engine = setting.engine()
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=20, ignore_eos=True, drafter=drafter).resolve({})
              for i in range(8)]  # fmt: skip
    requests = [engine.submit([i % VOCAB, 2, 3], each)[0] for i, each in enumerate(params)]
    when, alike, level = engine.desk.schedule, list[bool](), Grouped.level
    assert isinstance(when, Grouped)

    def noted(self: Grouped, plan: Plan) -> Plan:
        done = level(self, plan)
        alike.append(not self._alike or len({i.rows for i in done.items if i.completes and i.given == 1}) <= 1)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grouped, "level", noted)
        while engine.busy:
            engine.step()
    assert all(alike) and when.grouped > 5
    for request_, each in zip(requests, params):
        assert request_.output == plain(setting.target(), request_.prompt, each)
