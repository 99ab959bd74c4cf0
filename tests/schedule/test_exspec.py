"""Groups of equal shape: members are alike, the rate grows with the window, nobody is left out for long."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import Item, Plan, Work
from paceline.core.request import Request
from paceline.engine.drafter_table import DrafterTable
from paceline.plan import DrafterFacts, LengthPolicy, Share, StepDecision
from paceline.plan.cost import StepTimes
from paceline.schedule import policies
from paceline.schedule.chunked import Chunked
from paceline.schedule.exspec import PATIENCE_ROUNDS, Grouped
from paceline.schedule.orders import fcfs
from tests.lossless.cases import Setting, plain
from tests.schedule.population import Arrival, Population
from tests.schedule.test_chunked import Held, Passes
from tests.toy import VOCAB


def request(i: int, tokens: int, max_nodes: int | None = None, left: int = 50) -> Request:
    r = Request(i, [0] * tokens, SamplingParams(max_nodes=max_nodes), 0, drafter="ngram", max_tokens=left)
    r.lease = Held(tokens - 1)
    return r


def grouped(batch: int) -> Grouped:
    return Grouped(Chunked(fcfs, 512), batch, chain_of_four)


def chain_of_four(request: Request) -> int:
    return 4 if request.params.max_nodes is None else request.params.max_nodes


def ids(requests: list[Request]) -> list[int]:
    return [r.id for r in requests]


def test_shape_is_rows_and_length_class() -> None:
    of = grouped(2).shape
    assert of(request(0, 9)) == of(request(1, 63)) == (5, 0)
    assert of(request(0, 64)) == (5, 1)
    assert of(request(0, 9, max_nodes=2)) == of(request(0, 9, left=3)) == (3, 0)


@pytest.mark.parametrize(
    ("read", "row", "whole"),
    [
        (1.0, 0.0, True),  # a pass costs what reading the weights costs
        (0.0, 1.0, True),  # a row costs a row: there is nothing to win
        (-3.0, 1.0, False),  # long steps cost more for each row
    ],
)
def test_step_times_decide_whether_to_group(read: float, row: float, whole: bool) -> None:
    policy = grouped(2)
    policy.forecast = Passes(read, row)
    rs = [request(i, 9) for i in range(4)]
    assert ids(policy.turn(rs, 0.0)) == ([0, 1, 2, 3] if whole else [0, 1])
    assert (policy.whole, policy.grouped, policy.fallback) == (int(whole), int(not whole), 0)
    policy.forecast = Passes(read, row, measured=False)
    assert len(policy.turn(rs, 0.0)) == 2


def test_a_shape_has_the_rows_that_the_policy_is_going_to_give() -> None:
    """Those that a request was given last; of one that came since, those that most were given."""
    table = DrafterTable("fixed", StepTimes())
    table.enrol("ngram", DrafterFacts(nodes=8, chain=True))
    rs = [request(i, 9, max_nodes=6 if i == 0 else None) for i in range(4)]
    policy = Grouped(Chunked(fcfs, 512), 2, table.expects)
    assert policy.shape(rs[0]) == (1, 0), "nothing was decided yet"
    table.decide(rs[:3], 99, Work.of([(1, 9, 1)] * 3))
    assert [policy.shape(r)[0] for r in rs] == [7, 9, 9, 9]
    table.drop(rs[0])
    assert policy.shape(rs[0])[0] == 9


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
    rates = [rate(window) for window in (5, 32)]
    print(f"\ngrouping rate by window 5, 32: {rates}")
    assert rates == sorted(rates) and rates[0] < 0.1 and rates[-1] > 0.5


def test_a_group_of_one_shape_gets_equal_rows_however_the_plan_divided_them() -> None:
    """The plan decides late, and otherwise than the shapes expect."""
    policy = grouped(2)
    rs = [request(0, 9), request(1, 9), request(2, 99)]
    assert ids(policy.turn(rs, 0.0)) == [0, 1]
    given = [Item(rs[0], 1, 5, "ngram", "exact"), Item(rs[1], 1, 2, "model", "exact", further=3)]
    prompt = request(3, 9)
    prompt.lease = Held(2)
    plan = policies.finished(policy, Plan([*given, Item(prompt, 7, 4, "ngram", "exact")]))
    assert [item.rows for item in plan.items] == [3, 3, 11] and policy.levelled == 1
    assert plan.items[1] == given[1]
    assert policies.finished(policy, plan) == plan and policy.levelled == 1


def test_a_mixed_group_keeps_its_rows() -> None:
    policy = grouped(2)
    rs = [request(0, 9), request(1, 70), request(2, 200)]
    assert len(policy.turn(rs, 0.0)) == 2 and policy.fallback == 1
    plan = Plan([Item(rs[0], 1, 5, "ngram", "exact"), Item(rs[1], 1, 2, "ngram", "exact")])
    assert policies.finished(policy, plan) == plan


class Uneven(LengthPolicy):
    """Policy that gives each request another number of nodes at each step, whatever its shape."""

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        given = {r.id: min(1 + (r.id + len(r.output)) % 3, r.left - 1, room // len(requests)) for r in requests}
        return StepDecision({i: Share("user" if n > 0 else "none", max(n, 0), max(n, 0)) for i, n in given.items()})


def test_every_uniform_step_of_an_engine_is_uniform() -> None:
    """Eight requests in groups of three; the texts are those of plain decoding."""
    setting = Setting(max_requests=8, row_budget=64, blocks=200, group_size=3)
    engine = setting.engine()
    engine.table.policy = Uneven()
    wish = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True, "drafter": "user"}
    params = [SamplingParams(seed=i, **wish).resolve({}) for i in range(8)]  # type: ignore[arg-type]
    requests = [engine.submit([i % VOCAB, 2, 3], each)[0] for i, each in enumerate(params)]
    when, desk_plan, grouped_before = engine.desk.schedule, engine.desk.plan, 0
    assert isinstance(when, Grouped)
    uneven = 0

    def noted(now: float, held: Sequence[int]) -> Plan:
        nonlocal grouped_before, uneven
        plan = desk_plan(now, held)
        rows = {item.rows for item in plan.items if item.given == 1}
        uneven += when.grouped > grouped_before and len(rows) > 1
        grouped_before = when.grouped
        return plan

    engine.desk.plan = noted  # type: ignore[method-assign]
    while engine.busy:
        engine.step()
    assert when.levelled > 3 and uneven == 0
    for made, each in zip(requests, params):
        assert made.output == plain(setting.target(), made.prompt, each)
