"""Rows and blocks: decoding first, prompts in order, nodes shed before requests, the last in order pre-empted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance, Work
from paceline.core.request import Request
from paceline.plan import DrafterFacts, StepDecision
from paceline.plan.choose import Goodput
from paceline.plan.cost import KNOTS, StepTimes
from paceline.plan.fixed import FixedLength
from paceline.plan.planner import Planner, Room


@dataclass
class Stand:
    """A lease that only counts."""

    length: int
    blocks: int
    layer: int = 0


SIZE = 4


def request(i: int, tokens: int, computed: int, drafter: str = "ngram", left: int = 50) -> Request:
    r = Request(i, [0] * tokens, SamplingParams(), 0, drafter=drafter, max_tokens=left)
    r.lease = Stand(computed, -(-computed // SIZE))
    return r


def room(requests: list[Request], free: int) -> Room:
    def need(r: Request, rows: int) -> int:
        assert isinstance(r.lease, Stand)
        return max(0, -(-(r.lease.length + rows) // SIZE) - r.lease.blocks)

    def gain(r: Request) -> int:
        assert isinstance(r.lease, Stand)
        return r.lease.blocks

    return Room(free, need, gain)


def left(request: Request, drafter: str) -> int:
    return request.left - 1


def fixed(nodes: int, cheap_rows: int | None = None) -> FixedLength:
    made = FixedLength(left, cheap_rows)
    made.enrol("ngram", DrafterFacts(nodes, chain=True))
    return made


def planner(budget: int = 32, nodes: int = 3, cheap_rows: int | None = None) -> Planner:
    return Planner(fixed(nodes, cheap_rows).decide, budget)


def test_decoding_requests_come_first_and_prompts_share_the_rest() -> None:
    rs = [request(0, 40, 0), request(1, 9, 8), request(2, 30, 0)]
    plan = planner(budget=20).plan(rs, room(rs, 100))
    assert [(i.request.id, i.given, i.nodes) for i in plan.items] == [(1, 1, 3), (0, 16, 0)]


def test_a_prompt_that_ends_in_this_step_drafts_at_once() -> None:
    rs = [request(0, 10, 0)]
    [item] = planner().plan(rs, room(rs, 100)).items
    assert (item.given, item.nodes, item.completes) == (10, 3, True)


def test_nodes_go_before_requests_and_the_last_goes_first() -> None:
    rs = [request(0, 9, 8), request(1, 9, 8)]
    plan = planner().plan(rs, room(rs, 2))
    assert [(i.request.id, i.nodes) for i in plan.items] == [(0, 3), (1, 3)]
    rs = [request(0, 8, 7), request(1, 8, 7)]
    plan = planner().plan(rs, room(rs, 0))
    assert [i.nodes for i in plan.items] == [0, 0] and not plan.preempt
    rs = [request(0, 9, 8), request(1, 9, 8), request(2, 9, 8)]
    plan = planner().plan(rs, room(rs, 0))
    assert [r.id for r in plan.preempt] == [2]
    assert [i.request.id for i in plan.items] == [0, 1]


def test_nodes_are_shared_when_many_run() -> None:
    policy = fixed(5, cheap_rows=12)
    r = request(0, 9, 8)

    def many(running: int) -> Work:
        return Work(running, running, 0, 0, running)

    assert [policy.nodes(r, many(running)) for running in (1, 2, 3, 6, 12, 40)] == [5, 5, 3, 1, 0, 0]
    wish = Request(0, [0], SamplingParams(max_nodes=2), 0, drafter="ngram", max_tokens=9)
    assert [policy.nodes(wish, many(n)) for n in (1, 4, 40)] == [2, 2, 0], "others would wait for more"


def test_nodes_of_a_named_drafter_have_to_bring_what_they_cost() -> None:
    """Their price in tokens, where it was measured: the more requests share a pass, the more a row adds to it. Who asks
    for a number of nodes gets them."""
    times, passes = StepTimes(), [(Work(k, 1, 9, 9 * k, k), 1e-3 * (1 + k / 20)) for k in KNOTS if k <= 128]

    def worth(count: int) -> list[MinChance | None]:
        policy = Goodput(times, lambda r, d: 8, FixedLength(left, None, times))
        policy.enrol("model", DrafterFacts(8, True, "draft"))
        rs = [Request(i, [0], SamplingParams(max_nodes=2 if i == 1 else None), 0, drafter="model", max_tokens=9)
              for i in range(count)]  # fmt: skip
        shares = policy.decide(rs, 999, Work(count, count, 9, 9, count)).shares
        return [shares[r.id].min_chance for r in rs]

    assert worth(2) == [None, None], "nothing was measured"
    times.fit_target(passes)
    times.drafter("model").weights.update(depth=0.5e-3, nodes=1e-6)
    (alone,), (among, asked, *_) = worth(1), worth(8)
    assert alone is not None and among is not None and asked is None
    pass_ = times.of_target(Work(1, 1, 9, 9, 1))
    assert alone.level / alone.target == pytest.approx(0.5e-3 / pass_, rel=1e-3)
    assert 0 < alone.row / alone.target < 0.1 and alone.row < among.row < 1


@pytest.mark.parametrize(("knee", "nodes"), [(4, 3), (8, 7), (16, 15), (64, 15)])
def test_no_more_rows_than_are_cheap(knee: int, nodes: int) -> None:
    """Passes of a staircase: beyond `knee` rows each panel of as many takes as long again."""
    times, mine = StepTimes(), request(0, 9, 40)
    passes = [(Work(k, 1, 9, 9 * k, k), 1e-3 * -(-k // knee)) for k in KNOTS if k <= 128]
    policy = Goodput(times, lambda r, d: 30, FixedLength(lambda r, d: 30, 16, times=times))
    policy.enrol("ngram", DrafterFacts(24, chain=True))

    def given() -> int:
        return policy.decide([mine], 99, passes[0][0]).shares[0].nodes

    assert given() == 15, "as the packing says, before anything is measured"
    times.fit_target(passes)
    assert given() == nodes


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 39)), min_size=1, max_size=8),
    st.integers(0, 12), st.integers(8, 40), st.integers(0, 6),
)  # fmt: skip
def test_every_plan_is_valid_and_somebody_moves(
    shapes: list[tuple[int, int]], free: int, budget: int, nodes: int
) -> None:
    rs = [request(i, tokens, min(computed, tokens - 1)) for i, (tokens, computed) in enumerate(shapes)]
    space = room(rs, free)
    plan = planner(budget, nodes).plan(rs, space)
    plan.validate(budget)
    used = sum(space.need(i.request, i.rows) for i in plan.items)
    assert used <= free + sum(space.gain(r) for r in plan.preempt)
    assert plan.items or plan.preempt
    assert len(plan.items) + len(plan.preempt) <= len(rs)


class Patient(FixedLength):
    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        runs = all(request.drafter in ("none", "ngram") for request in requests)
        return StepDecision(self.shares(requests, room, base), passes=5 if runs else 1)


def patient(limit: Callable[[Request, str], int] = left) -> Planner:
    made = Patient(limit)
    made.enrol("ngram", DrafterFacts(3, chain=True))
    return Planner(made.decide, 32)


def test_several_passes_in_a_step() -> None:
    """As many as everybody has tokens left and the cache has room for, and no more than a draft may be deep; one where
    somebody reads a prompt, needs more of a pass than the next token, or drafts and cannot do so in a run."""

    def passes(rs: list[Request], free: int = 100) -> int:
        plan = patient().plan(rs, room(rs, free))
        plan.validate(32)
        return plan.passes

    def plain(
        i: int, tokens: int = 9, computed: int = 8, left: int = 50, judge_free: bool = True, drafter: str = "none"
    ) -> Request:
        r = request(i, tokens, computed, drafter, left)
        r.judge_free = judge_free
        return r

    assert passes([plain(0), plain(1)]) == 5
    assert passes([plain(0), plain(1, left=3)]) == 3 and passes([plain(0, left=1)]) == 1
    assert [passes([plain(0), plain(1)], free) for free in (2, 3, 4)] == [4, 4, 5]
    assert passes([plain(0), plain(1, judge_free=False)]) == 1
    assert passes([plain(0), plain(1, tokens=12)]) == 1
    tuned = [plain(0), plain(1), plain(2)]
    tuned[0].layers = tuned[1].layers = "a"
    assert passes(tuned[:2]) == 5 and passes(tuned[1:]) == passes(tuned) == 1  # of one set of weights
    drafting = plain(1, drafter="ngram")
    assert passes([plain(0), drafting]) == 5 and passes([plain(0), request(1, 9, 8, "ngram")]) == 1
    assert [passes([drafting], free) for free in (2, 3, 4, 5)] == [2, 3, 4, 5]  # of 4 slots; 4 rows and a token each
    assert passes([plain(0, left=2, drafter="ngram")]) == 2
    limited = patient(lambda request, drafter: 13).plan([drafting], room([drafting], 100))
    assert (limited.passes, limited.items[0].reserved(5)) == (5, 13)  # the draft model has room for this many
    assert passes([plain(0, drafter="suffix")]) == 1


def test_depth_follows_what_is_left_and_nodes_do_not() -> None:
    """A tree may have more nodes than tokens are left to draw, but no path may be longer; the last token is plain."""
    for left, depth in ((50, 49), (3, 2), (2, 1)):
        [item] = planner(nodes=7).plan([r := request(0, 9, 8, left=left)], room([r], 100)).items
        assert (item.nodes, item.depth, item.chain) == (7, depth, min(7, depth))
    [item] = planner(nodes=7).plan([r := request(0, 9, 8, left=1)], room([r], 100)).items
    assert (item.nodes, item.depth) == (0, 0)
