"""The chooser: SmartSpec's golden table, the best of all by brute force, limits, tries, rests and recoveries."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import MinChance, Note, Work
from paceline.core.request import Request
from paceline.plan import HORIZON, DrafterFacts, Share, belief
from paceline.plan.allocate import MARGIN
from paceline.plan.arm import Arm
from paceline.plan.belief import HALF_LIFE, Belief, Beliefs, Expected, Key
from paceline.plan.choose import MOST_ASKED, Goodput
from paceline.plan.cost import Drafting, StepTimes, Terms, Times
from paceline.plan.fixed import FixedLength
from paceline.plan.governor import CREDIT_STEPS, LOSS
from tests.plan.test_cost import slow_pair


class H100(StepTimes):
    """SmartSpec's shipped figures for 8 B on one H100, a row and a step (Liu et al. 2024)."""

    def of_target(self, work: Work) -> float:
        return 1.844e-5 * work.rows + 6.939e-3

    def of_draft(self, part: Drafting) -> float:
        return 0.452e-3 * part.depth

    def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
        return 0.05 * self.of_target(base(requests, nodes)) if nodes else 0.0


@dataclass
class Constant(Beliefs):
    """Each depth is kept with one chance, given the one above."""

    rates: dict[str, float] | None = None

    def expected(self, request: int | None, key: Key, depth: int, bound: int = 0) -> Expected:
        assert self.rates is not None
        rate = self.rates[key[0]]
        return Expected([rate] * depth, [rate ** (d + 1) for d in range(depth)], [1.0] * depth)


def base(requests: int, nodes: int = 0) -> Work:
    return Work(requests + nodes, requests, 0, 0, requests + nodes)


def requests(count: int, arms: Sequence[str] = ("a",), **params: int) -> list[Request]:
    return [Request(i, [0] * 8, SamplingParams(**params), 0, arms=tuple(arms), max_tokens=99) for i in range(count)]


def chooser(times: StepTimes, rates: dict[str, float] | None = None, most: int = 8) -> Goodput:
    made = Goodput(times, room, beliefs=Constant(rates=rates) if rates else Beliefs())
    for name in ("a", "b"):
        made.enrol(name, DrafterFacts(most, chain=True))
        made.arms[name] = Arm(name, DrafterFacts(most, chain=True), tuple(range(1, most + 1)))
    return made


def room(request: Request, drafter: str) -> int:
    return request.left - 1


def shares(pick: Goodput, requests: Sequence[Request], spare: int, work: Work) -> dict[int, Share]:
    return dict(pick.decide(requests, spare, work).shares)


def test_nobody_is_given_a_drafter_for_being_unknown() -> None:
    """A tree that keeps seven tokens in ten at each depth would pay for four requests if it cost nothing."""
    times = slow_pair()
    pick = Goodput(times, room, beliefs=Constant(rates={"model": 0.1, "tree": 0.7}))
    pick.enrol("model", DrafterFacts(8, chain=True))
    pick.enrol("tree", DrafterFacts(14, chain=False))
    assert pick.best(requests(4, ("model", "tree")), 10**6, base(4))[0] == {}
    times.drafts["tree"] = Terms(dict.fromkeys(times.drafts["model"].weights, 1e-9))
    choice, _ = pick.best(requests(4, ("model", "tree")), 10**6, base(4))
    assert {drafter for drafter, _ in choice.values()} == {"tree"}


GOLDEN = {
    1: (2, 3, 5, 7, 8), 16: (1, 2, 4, 6, 8), 64: (1, 2, 3, 4, 7), 256: (0, 0, 1, 2, 4), 1024: (0, 0, 0, 0, 1),
}  # fmt: skip
RATES = (0.3, 0.5, 0.7, 0.8, 0.9)


def uniform(times: StepTimes, batch: int, rate: float, k: int) -> float:
    """Goodput when everybody drafts k, by definition."""
    tokens = batch * sum(rate**d for d in range(k + 1))
    drafts = times.of_draft(Drafting("a", batch, k, batch * k)) if k else 0.0
    work = base(batch, batch * k)
    return tokens / (times.of_target(work) + drafts + times.of_rest(batch, batch * k))


def test_not_drafting_is_priced_by_steps_of_several_passes() -> None:
    """Beside passes of 4 ms there are 6 ms, 5.5 beside several. 20 ms have room for five: 25.5 ms, 5.1 a token, which a
    draft has to beat; it beats 10 ms a token if requests cannot go straight. Its own step has the 6 ms, unless it is
    made in a run."""

    class Slow(StepTimes):
        def of_target(self, work: Work) -> float:
            return work.passes * 4e-3

        def of_draft(self, part: Drafting) -> float:
            return 0.0

        def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
            return 6e-3 if passes == 1 else 5.5e-3

    for rate, straight, drafts, runs in (
        (0.6, False, True, False), (0.6, True, False, False), (1.0, True, True, False), (0.6, True, True, True),
    ):  # fmt: skip
        pick = chooser(Slow(drafts={"a": Terms({})}), {"a": rate, "b": 0.0}, most=1)
        pick.arms["a"] = replace(pick.arms["a"], facts=replace(pick.arms["a"].facts, runs=runs))
        pick.patience = 0.02
        (request,) = requests(1)
        request.judge_free = straight
        choice, goodput = pick.best([request], 8, base(1))
        assert bool(choice) == drafts
        seconds = 25.5e-3 / 5 if runs or not drafts else 10e-3
        assert goodput == pytest.approx((1 + rate * drafts) / seconds)
        assert (pick.decide([request], 8, base(1)).passes > 1) == (straight and (runs or not drafts))


@pytest.mark.parametrize("batch", GOLDEN)
def test_golden_table(batch: int) -> None:
    times = H100()
    for rate, golden in zip(RATES, GOLDEN[batch]):
        assert max(range(9), key=lambda k: uniform(times, batch, rate, k)) == golden
        choice, goodput = chooser(times, {"a": rate}).best(requests(batch), 10**6, base(batch))
        depths = [choice[i][1].nodes if i in choice else 0 for i in range(batch)]
        assert goodput >= uniform(times, batch, rate, golden) / MARGIN
        assert max(depths) - min(depths) <= 1 and min(depths) <= golden <= max(depths) + (golden == 1)
        if batch == 1:
            assert depths == [golden]


def test_the_best_length_falls_with_load_and_rises_with_acceptance() -> None:
    times = H100()

    def nodes(batch: int, rate: float) -> float:
        choice, _ = chooser(times, {"a": rate}).best(requests(batch), 10**6, base(batch))
        return sum(point.nodes for _, point in choice.values()) / batch

    table = [[nodes(batch, rate) for rate in RATES] for batch in (1, 4, 16, 64, 128, 256, 512)]
    assert all(a <= b for row in table for a, b in itertools.pairwise(row))
    assert all(a >= b for one, two in itertools.pairwise(table) for a, b in zip(one, two))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.floats(0.01, 3.0), st.floats(0.01, 3.0))
def test_as_good_as_every_uniform_choice(batch: int, a: float, b: float, cost_a: float, cost_b: float) -> None:
    """By brute force over all numbers of nodes of one drafter for all."""

    class Costs(H100):
        def of_draft(self, part: Drafting) -> float:
            return {"a": cost_a, "b": cost_b}[part.drafter] * 1e-3 * part.depth

    times = Costs()
    pick = chooser(times, {"a": a, "b": b}, most=4)
    _, goodput = pick.best(requests(batch, "ab"), 99, base(batch))
    for drafter, rate in (("a", a), ("b", b)):
        for each in itertools.product(range(5), repeat=batch):
            tokens = batch + sum(sum(rate**d for d in range(1, k + 1)) for k in each)
            part = Drafting(drafter, sum(k > 0 for k in each), max(each), sum(each))
            seconds = times.of_target(base(batch, sum(each))) + times.of_rest(batch, sum(each))
            assert goodput * MARGIN >= tokens / (seconds + (times.of_draft(part) if sum(each) else 0.0)) - 1e-9


def test_a_tree_that_ends_itself_is_whole_alone_and_small_where_drafting_it_costs() -> None:
    """By what its nodes cost to draft, and a row of it by what the pass costs: what to draft it weighs itself."""

    class Trees(Frozen):
        def of_draft(self, part: Drafting) -> float:
            return 2e-4 * part.nodes

        def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
            return 0.0

    class Sized(Beliefs):
        def expected(self, request: int | None, key: Key, depth: int, bound: int = 0) -> Expected:
            return Expected([0.5], [2.0 if key[1] == 7 else 2.3], [float(key[1])])

    for count, nodes in ((1, 15), (4, 7)):
        pick = Goodput(Trees(), lambda r, d: 9, beliefs=Sized({("t", 7): Belief(), ("t", 15): Belief()}))
        pick.enrol("t", DrafterFacts(15, chain=False, stops_early=True))
        rs = requests(count, "t")
        got = shares(pick, rs, 99, base(count))
        _, goodput = pick.best(rs, 99, base(count))
        assert {share.nodes for share in got.values()} == {nodes}
        worth = got[0].min_chance
        assert worth is not None and worth.row == pytest.approx(goodput * 1.844e-5)


def test_wishes_and_limits_hold() -> None:
    """Nodes stay within the wish, what the request has left, and the spare rows."""
    for spare, wish, left in itertools.product((0, 1, 3, 50), (0, 2, None), (1, 2, 9)):
        rs = [Request(i, [0], SamplingParams(max_nodes=wish), 0, arms=("a",), max_tokens=left) for i in range(3)]
        got = shares(chooser(H100(), {"a": 0.9}), rs, spare, base(3))
        assert sum(s.nodes for s in got.values()) <= spare
        assert all(s.nodes <= (99 if wish is None else wish) and s.depth <= left - 1 for s in got.values())
        assert (left > 1 and wish != 0 and spare > 2) <= any(s.nodes for s in got.values())


def simulate(
    pick: Goodput, rs: list[Request], rates: dict[str, float], steps: int, rng: random.Random, longer: float = 0.0
) -> list[str]:
    """Steps of a world with these true rates, each `longer` seconds longer than its price; the drafter that the first
    request had in each."""
    drafters = []
    for _ in range(steps):
        got = shares(pick, rs, 99, base(len(rs)))
        notes, parts = [], {}
        for r in rs:
            share = got[r.id]
            kept, chain = 0, min(share.nodes, share.depth)
            while kept < chain and rng.random() < rates.get(share.drafter, 0.0):
                kept += 1
            notes.append(Note(r.id, share.drafter, share.nodes, share.depth, [1] * chain, [1] * kept))
            if chain:
                parts.setdefault(share.drafter, []).append(chain)
        work = base(len(rs), sum(map(sum, parts.values())))
        done = [Drafting(name, len(ns), max(ns), sum(ns)) for name, ns in parts.items()]
        times = pick.times
        spent = Times(longer + times.of_target(work), {p.drafter: times.of_draft(p) for p in done},
                      times.of_rest(len(rs), sum(p.nodes for p in done)))  # fmt: skip
        pick.learn(notes, work, done, spent)
        drafters.append(got[rs[0].id].drafter)
    return drafters


class Frozen(H100):
    """The figures are true, so there is nothing to learn."""

    def observe(self, work: Work, parts: Sequence[Drafting], times: Times) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch", [1, 4])
def test_it_finds_the_best_and_finds_it_again_when_that_changes(seed: int, batch: int) -> None:
    """Whichever drafter is good; nothing when none is; and it comes back from that, as fast as the governor lets it."""
    rng, pick, rs = random.Random(seed), chooser(Frozen()), requests(batch, "ab")
    for rates in ({"a": 0.9}, {"b": 0.9}, {}, {"a": 0.9}, {}, {"b": 0.9}):
        simulate(pick, rs, rates, 800, rng)
        late = simulate(pick, rs, rates, 100, rng)
        want = next(iter(rates), "none")
        assert late.count(want) >= 75, (rates, {d: late.count(d) for d in set(late)})


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lost_stays_within_the_credit(seed: int) -> None:
    """All drafters are useless: beyond the credit no more than its share of the time is lost, from any step on."""
    rng, pick, rs = random.Random(seed), chooser(Frozen()), requests(1, "ab")
    plain = Frozen().of_target(base(1))
    for steps in (60, 600):
        before = pick.governor.seconds
        simulate(pick, rs, {}, steps, rng)
        spent = pick.governor.seconds - before
        assert spent <= (1 + 2 * LOSS) * steps * plain + (CREDIT_STEPS + 3) * plain


def test_an_interrupted_step_stops_nobody() -> None:
    """One step of a drafter that pays waits for another program, for as long as forty plain ones take."""
    rng, pick, rs = random.Random(0), chooser(Frozen()), requests(1, "a")
    pick.times.seen, pick.times.measured = 1, True
    simulate(pick, rs, {"a": 0.9}, 200, rng)
    while pick.governor.due():  # a plain step, which measures
        simulate(pick, rs, {"a": 0.9}, 1, rng)
    pick.governor.lost[""] = 0.0
    before, plain = pick.governor.seconds, Frozen().of_target(base(1))
    drafters = simulate(pick, rs, {"a": 0.9}, 1, rng, 40 * plain)
    assert drafters == ["a"] and not pick.governor.stops()
    assert pick.governor.seconds - before > 40 * plain, "the wait is time of a step"
    assert simulate(pick, rs, {"a": 0.9}, 20, rng).count("a") >= 19


def test_a_price_far_too_low_is_a_loss_all_the_same() -> None:
    """Drafts take twenty times their price, for ever: what they lose is bounded, as the price is corrected."""
    true, pick, [one] = slow_pair(), Goodput(slow_pair(), room), requests(1, ("model",))
    pick.times.drafts["model"] = pick.times.drafts["model"].scaled(0.05)
    pick.enrol("model", DrafterFacts(8, chain=True, group="draft"))
    spent = tokens = 0.0
    for _ in range(1200):
        share = pick.decide([one], 99, base(1)).shares[0]
        chain = min(share.nodes, share.depth)
        parts = [Drafting("model", 1, chain, chain)] if chain else []
        times = Times(true.of_target(base(1, chain)), {it.drafter: true.of_draft(it) for it in parts}, 1e-4)
        pick.learn(
            [Note(0, share.drafter, share.nodes, share.depth, [1] * chain, [0] * chain)], base(1, chain), parts, times
        )
        spent, tokens = spent + times.total, tokens + 1
    plain = tokens * (true.of_target(base(1)) + 1e-4)
    assert spent < 1.05 * plain + CREDIT_STEPS * plain / tokens


def test_what_is_part_of_another_needs_no_tries() -> None:
    """A merged drafter brings at least what its first part does, whose rounds there count for it."""
    pick = Goodput(Frozen(), lambda r, d: 8)
    pick.enrol("a", DrafterFacts(8, chain=True))
    pick.enrol("a+b", DrafterFacts(8, chain=False, always_asked="a"))
    request = requests(1, ("a", "a+b"))[0]
    for _ in range(16):
        for drafter, kept, part in (("a+b", 0, False), ("a", 3, True)):
            note = Note(9, drafter, 8, 8, [1] * 4, [1] * kept, part)
            pick.learn([note], base(1, 4), [], Times(1.0, {}, 0.0))
    one, both = (pick._all(request, base(1))[drafter][-1] for drafter in ("a", "a+b"))
    assert both.tokens >= one.tokens > 1.0


def test_a_choice_holds_until_half_of_them_came_or_went() -> None:
    pick, rs = chooser(Frozen(), {"a": 0.8}), requests(12)

    def again(count: int) -> bool:
        shares(pick, rs[:8], 99, base(8))
        now = pick.held[False]
        now.left, pick.step, made = 99, pick.step + 1, now.picks
        shares(pick, rs[:count], 99, base(count))
        pick.step, found = pick.step + 1, now.picks is not made
        now.left = 0
        return found

    assert [again(n) for n in (3, 4, 8, 12)] == [True, False, False, False]


def test_a_drafter_that_fails_rests_and_comes_back() -> None:
    rng, pick, rs = random.Random(0), chooser(Frozen()), requests(1, "a")
    assert simulate(pick, rs, {"a": 0.9}, 50, rng)[-1] == "a"
    pick.enrol("a", replace(pick.arms["a"].facts, failures=1))
    assert set(simulate(pick, rs, {"a": 0.9}, int(HALF_LIFE), rng)) == {"none"}
    assert "a" in simulate(pick, rs, {"a": 0.9}, 40, rng)
    pick.enrol("a", replace(pick.arms["a"].facts, failures=2))
    assert set(simulate(pick, rs, {"a": 0.9}, 2 * int(HALF_LIFE), rng)) == {"none"}


def test_reasons_say_what_a_bet_costs_and_brings() -> None:
    pick = chooser(Frozen(), {"a": 0.8})
    decision = pick.decide(requests(1, "a"), 99, base(1))
    assert len(decision.why) == 1 and decision.why[0].startswith("draft a x") and "plain" in decision.why[0]
    pick.governor.lost[""] = 1e9
    stopped = pick.decide(requests(1, "a"), 99, base(1))
    assert stopped.shares[0].nodes == 0 and "lost" in stopped.why[0]


def test_reasons_say_what_a_named_drafter_costs() -> None:
    """It is obeyed in any case."""
    for rate, pays in ((0.9, True), (0.01, False)):
        pick = Goodput(Frozen(), room, FixedLength(room), beliefs=Constant(rates={"a": rate}))
        pick.enrol("a", DrafterFacts(8, chain=True))
        asked = [replace(each, arms=(), drafter="a") for each in requests(2)]
        decision = pick.decide(asked, 99, base(2))
        assert all(share.nodes for share in decision.shares.values())
        (why,) = decision.why
        assert why.startswith("asked for: draft a x8 for 2: ") and why.endswith("for each token") != pays


def test_a_named_drafter_that_costs_more_than_it_brings_still_drafts() -> None:
    """Its nodes have to bring what they cost, but never more than MOST_ASKED: good guesses are made."""

    class Costly(Frozen):
        def of_draft(self, part: Drafting) -> float:
            return 2.0 * self.of_target(base(1)) * part.depth

    pick = Goodput(Costly(measured=True), room, FixedLength(room), beliefs=Constant(rates={"a": 0.9}))
    pick.enrol("a", DrafterFacts(8, chain=True))
    [share] = pick.decide([replace(requests(1)[0], arms=(), drafter="a")], 99, base(1)).shares.values()
    assert share.nodes and share.min_chance is not None and share.min_chance.level == MOST_ASKED


def test_equal_inputs_make_equal_choices() -> None:
    one, two = (
        simulate(chooser(Frozen()), requests(3, "ab"), {"a": 0.6, "b": 0.5}, 200, random.Random(1)) for _ in "12"
    )
    assert one == two


def test_worth_is_the_price_of_a_node_in_tokens() -> None:
    """At constant cost a row the draft ends where the next node brings less than it costs (SpecDec++)."""

    class Linear(Frozen):
        def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
            return 0.0

    pick = chooser(Linear(), {"a": 0.8})
    [share] = shares(pick, requests(1), 99, base(1)).values()
    times, k = Linear(), share.nodes

    def seconds(nodes: int) -> float:
        return (
            times.of_target(base(1, nodes)) + times.of_draft(Drafting("a", 1, nodes, nodes)) + times.of_rest(1, nodes)
        )

    goodput = sum(0.8**d for d in range(k + 1)) / seconds(k)
    assert share.min_chance is not None
    row = (times.of_target(base(1, k)) - times.of_target(base(1))) / k
    pass_ = goodput * times.of_target(base(1))
    assert share.min_chance == MinChance(
        pytest.approx(goodput * row), pytest.approx(goodput * 0.452e-3), pytest.approx(pass_)
    )
    assert 0.8 ** (k + 1) < share.min_chance.node <= 0.8**k + 1e-9


def test_keeping_up_pays_where_drafts_save_more_than_reading_costs() -> None:
    """Seconds that a token of each request is worth, as expected and at best: less where many decode, where the draft
    is expensive, and once it is known that nothing is kept."""

    def gain(count: int, depth: float, kept: list[int] | None = None, live: int = 0) -> tuple[float, float]:
        times = slow_pair()
        times.drafter("model").weights["depth"] = depth
        pick = Goodput(times, room, live=lambda: live)
        pick.enrol("model", DrafterFacts(8, chain=True, group="draft"))
        for request in range(40 if kept is not None else 0):
            pick.beliefs.observe(100 + request, ("model", 0), 4, [1] * 4, kept or [])
        return pick.decide(requests(count, ("model",)), 0, base(count)).gain["draft"]

    (sure, hoped), (few, _), (slow, _) = gain(1, 0.005), gain(8, 0.005), gain(1, 0.1)
    assert hoped > sure > few and slow == 0.0
    assert gain(1, 0.005, live=8) == gain(8, 0.005), "prompts that are still being read will decode soon"
    assert gain(1, 0.005, [])[0] == 0.0 and gain(1, 0.005, [1] * 4)[0] > sure


def test_a_text_is_read_if_the_answer_repays_it_or_the_governor_has_room() -> None:
    decision = chooser(Frozen()).decide([], 0, base(1))
    assert decision.reads(0, "draft", 1e9, 1), "nothing is known of this group"
    decision.gain, decision.room, decision.explorer = {"draft": (0.01, 0.02)}, 1.5, 4
    assert decision.reads(1, "draft", 0.01 * HORIZON, 1000) and not decision.reads(2, "draft", 0.02 * HORIZON + 1, 1000)
    assert not decision.reads(3, "draft", 0.3, 10), "few tokens are left"
    assert decision.reads(4, "draft", 1.2, 100) and decision.reads(4, "draft", 1.2, 100), "the same answer in a step"
    assert not decision.reads(6, "draft", 1.2, 100), "one is enough to see"
    decision.explorer = 5
    assert not decision.reads(5, "draft", 1.2, 100), "the room is used up"
    assert decision.reads(5, "draft", 1.2, 99, hope=0.2) is False, "the same answer in a step"
    decision.explorer, decision.room = 6, 0.5
    decision.answers.clear()
    assert decision.reads(6, "draft", 1.2, 100, hope=0.2), "it may be that the seconds are a fifth of that"
    decision.explorer, decision.room = 7, 0.4
    assert not decision.reads(7, "draft", 1.2, 100, hope=0.2), "no room would be left for a try"


def test_a_busy_start_shuts_out_no_draft_model() -> None:
    """Drafts were timed as six times as slow as they are. Where that is doubted a request reads its text with the draft
    model, tries it once, and its price is mended; where it is not, nobody asks again."""

    def drafted(doubt: float) -> int:
        true, pick, rng = slow_pair(), Goodput(slow_pair(), room), random.Random(3)
        pick.times.drafts["model"] = pick.times.drafts["model"].scaled(6.0)
        pick.times.doubt = doubt
        pick.enrol("model", DrafterFacts(8, chain=True, group="draft"))
        count, [request] = 0, requests(1, ("model",))
        for _ in range(100):
            reading, level = pick.times.of_reading(["model"], 40), pick.times.hope("model")
            decision = pick.decide([request], 99, base(1))
            reads = decision.reads(0, "draft", reading, 99, level)
            share = decision.shares[0] if reads else Share("none", 0, 0)
            kept, chain = 0, min(share.nodes, share.depth)
            while kept < chain and rng.random() < 0.85:
                kept += 1
            parts = [Drafting("model", 1, chain, chain)] if chain else []
            notes = [Note(0, share.drafter, share.nodes, share.depth, [1] * chain, [1] * kept)]
            took = {part.drafter: true.of_draft(part) for part in parts}
            pick.learn(notes, base(1, chain), parts, Times(true.of_target(base(1, chain)), took, 1e-4))
            count += chain > 0
        return count

    assert drafted(1.0) == 0 and drafted(5.0) > 80


def test_tenants_learn_by_themselves() -> None:
    """Beliefs of a tenant begin with what requests without a tenant have taught, and stay apart from then on. How often
    a drafter of a choice was seen counts by tenant, too: a choice of what a tenant knows holds longer."""
    pick = chooser(slow_pair(), most=4)
    first, mine, other = (replace(r, extra_key=key) for r, key in zip(requests(3), ("", "mine", "other")))

    def teach(request: Request, kept: int) -> None:
        for _ in range(20):
            pick.decide([request], 64, base(1))
            pick.learn([Note(request.id, "a", 4, 4, [1] * 4, [1] * kept)], base(1, 4), [], Times(1.0, {}, 0.0))

    def chance(request: Request) -> float:
        pick.decide([request], 64, base(1))
        known = pick.beliefs.apart[request.extra_key] if request.extra_key else pick.beliefs
        return known.expected(None, pick.arms["a"].key(4), 1).chance[0]

    teach(first, 4)
    before = chance(first)
    assert before > 0.8 and chance(mine) == pytest.approx(before)
    assert not pick.beliefs.apart["mine"].belief(pick.arms["a"].key(4)).own, "texts of others stay behind"
    teach(mine, 0)
    assert chance(mine) < 0.5 and chance(first) > 0.8 and chance(other) == pytest.approx(chance(first))
    assert pick.beliefs.known_to(mine.id).belief(pick.arms["a"].key(4)).known(pick.step) >= 4.0
    pick.drop(mine)
    assert mine.id not in pick.beliefs.tenants and "mine" in pick.beliefs.apart, (
        "the next request of the tenant goes on from there"
    )


def test_more_tenants_at_once_than_beliefs_are_kept_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "MOST_BELIEFS", 50)
    pick = chooser(slow_pair(), most=4)
    rs = [replace(r, extra_key=f"t{r.id}") for r in requests(53)]
    pick.decide(rs, 64, base(len(rs)))
    assert len(pick.beliefs.apart) == len(rs)
    for r in rs:
        pick.drop(r)
    pick.decide([replace(requests(1)[0], id=9999, extra_key="new")], 64, base(1))
    assert "new" in pick.beliefs.apart and len(pick.beliefs.apart) <= 50


def test_beliefs_of_all_tenants_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that names many drafters and sizes does not take memory for each: what idle tenants have taught goes."""
    monkeypatch.setattr(belief, "MOST_BELIEFS", 150)
    pick = chooser(slow_pair(), most=4)
    for r in (replace(r, extra_key=f"t{r.id}") for r in requests(9)):
        pick.decide([r], 64, base(1))
        for size in range(60):
            pick.beliefs.apart[r.extra_key].belief(("a", size))
        assert r.extra_key in pick.beliefs.apart
        pick.drop(r)
    assert 2 <= len(pick.beliefs.apart) <= 3 and "t8" in pick.beliefs.apart
    pick.decide([replace(requests(1)[0], id=99, extra_key="t8")], 64, base(1))
    assert len(pick.beliefs.apart["t8"].of) >= 60, "the one that asks keeps its own"


def test_a_chunk_of_a_prompt_is_no_plain_step() -> None:
    """A request decides when it is admitted; the step that follows reads a chunk of its prompt, ten times as long as a
    plain step. What plain decoding takes is still what plain steps have shown."""
    pick, [one] = chooser(H100(), {"a": 0.1}), requests(1)
    for _ in range(4):
        simulate(pick, [one], {}, 1, random.Random(0))
    known = pick.governor.pass_seconds(1, 0)
    pick.decide([one], 0, base(1))
    pick.decide([], 0, Work(128, 1, 0, 0, 0))
    pick.learn([], Work(128, 1, 0, 0, 0), [], Times(10 * known, {}, 0.0))
    assert pick.governor.pass_seconds(1, 0) == known


def test_what_a_named_drafter_loses_beside_a_prompt_is_charged_to_nobody() -> None:
    """One request names a drafter that is of no use, the other chooses and decodes plainly, beside a prompt."""
    pick, (free, named) = chooser(H100(), {"a": 0.1}), requests(2)
    named = replace(named, arms=(), drafter="a")
    work = Work(128 + 6, 2, 0, 0, 8)
    for _ in range(50):
        pick.decide([free, named], 99, replace(work, rows=128, logits=2))
        notes = [Note(free.id, "none", 0, 0, [], []), Note(named.id, "a", 6, 6, [1] * 6, [0] * 6)]
        pick.learn(notes, work, [Drafting("a", 1, 6, 6)], Times(0.1, {"a": 0.1}, 0.0))
    assert pick.governor.saved < -1.0 and pick.governor.lost[""] <= 0.0
    assert not pick.governor.stops()


@pytest.mark.parametrize("measured", [False, True])
def test_a_choice_is_made_next_to_a_named_drafter(measured: bool) -> None:
    """One request names a useless drafter, the other chooses. Plain steps are plain for both, few, and enough for the
    choice; the other is not charged for what the name costs."""
    pick, rng, (free, named) = chooser(Frozen()), random.Random(0), requests(2, "a")
    named = replace(named, arms=(), drafter="b")
    pick.times.seen, pick.times.measured = 1, measured
    late = list[str]()
    for i in range(400):
        got = pick.decide([free, named], 99, base(2)).shares
        notes, parts = [], []
        for r in (free, named):
            share, kept = got[r.id], 0
            chain = min(share.nodes, share.depth)
            while r is free and kept < chain and rng.random() < 0.9:
                kept += 1
            notes.append(Note(r.id, share.drafter, share.nodes, share.depth, [1] * chain, [1] * kept))
            if chain:
                parts.append(Drafting(share.drafter, 1, chain, chain))
        work = base(2, sum(part.nodes for part in parts))
        drafts = {part.drafter: pick.times.of_draft(part) for part in parts}
        if not parts:
            pick.times.plains += 1
        pick.learn(notes, work, parts, Times(pick.times.of_target(work), drafts, 0.0))
        late += [got[free.id].drafter] if i >= 200 else []
        assert bool(parts) or got[named.id] == Share("b", 0, 0)
    assert late.count("a") > 0.9 * len(late)
    assert not pick.governor.stops()


def test_each_key_is_charged_its_own_drafts_next_to_a_named_drafter() -> None:
    """Two keys draft with the same drafter next to a request that names another. One keeps all, the other nothing."""
    pick = chooser(Frozen())
    good, bad, named = (replace(r, key=key) for r, key in zip(requests(3, "a"), ("good", "bad", "")))
    named = replace(named, arms=(), drafter="b")
    pick.times.seen, pick.times.measured, pick.times.plains = 1, True, 1
    pick.decide([good, bad, named], 99, base(3))
    notes = [
        Note(r.id, "b" if r is named else "a", 4, 4, [1] * 4, [1] * 4 if r is good else []) for r in (good, bad, named)
    ]
    parts = [Drafting("a", 2, 4, 8), Drafting("b", 1, 4, 4)]
    work = base(3, 12)
    target, plain = pick.times.of_target(work), pick.governor.pass_seconds(3, 0) / 3
    rows = target - pick.times.of_target(base(3))
    pick.learn(notes, work, parts, Times(target, {"a": 2e-3, "b": 9e-3}, 0.0))
    lost, share = pick.governor.lost, LOSS * (target + 11e-3)
    assert lost["bad"] == pytest.approx(1e-3 + rows / 3 - share)
    assert lost["good"] == pytest.approx(max(-pick.governor.credit, 1e-3 + rows / 3 - 4 * plain - share))
    assert lost[""] == pytest.approx(max(-pick.governor.credit, 2e-3 + 2 * rows / 3 - 4 * plain - share))
