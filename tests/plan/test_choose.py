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
from paceline.plan import DrafterFacts
from paceline.plan.acceptance import Acceptance, Expected, Key, Mean
from paceline.plan.allocate import LEAST, MARGIN, Price
from paceline.plan.choose import BANNED, CREDIT, HEARING, LAST_GAP, PROBING, Arm, Goodput
from paceline.plan.cost import Drafting, StepTimes, Terms, Times
from tests.plan.test_cost import slow_pair


class H100(StepTimes):
    """SmartSpec's shipped figures for 8 B on one H100, in milliseconds: a row and a step (Liu et al. 2024)."""

    def of_target(self, work: Work) -> float:
        return 1.844e-2 * work.rows + 6.939

    def of_draft(self, part: Drafting) -> float:
        return 0.452 * part.depth

    def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
        return 0.05 * self.of_target(base(requests, nodes)) if nodes else 0.0


@dataclass
class Constant(Acceptance):
    """Each depth is kept with one chance, given the one above."""

    rates: dict[str, float] | None = None

    def expected(self, request: int | None, key: Key, depth: int) -> Expected:
        assert self.rates is not None
        rate = self.rates[key[0]]
        return Expected([rate] * depth, [rate ** (d + 1) for d in range(depth)], [1.0] * depth)


def base(requests: int, nodes: int = 0) -> Work:
    return Work(requests + nodes, requests, 0, 0, requests + nodes)


def requests(count: int, arms: Sequence[str] = ("a",), **params: int) -> list[Request]:
    return [Request(i, [0] * 8, SamplingParams(**params), 0, arms=tuple(arms), max_tokens=99) for i in range(count)]


def chooser(times: StepTimes, rates: dict[str, float] | None = None, most: int = 8) -> Goodput:
    arms = {name: Arm(name, tuple(range(1, most + 1)), True) for name in ("a", "b")}
    return Goodput(arms, times, lambda r, d: r.left - 1, Constant(rates=rates) if rates else Acceptance())


def test_nobody_is_given_a_drafter_for_being_unknown() -> None:
    """A tree that keeps seven tokens in ten at each depth would pay for four requests if it cost nothing."""
    times = slow_pair()
    arms = {"model": Arm.of("model", 8, True), "tree": Arm.of("tree", 14, False)}
    pick = Goodput(arms, times, lambda request, drafter: request.left - 1, Constant(rates={"model": 0.1, "tree": 0.7}))
    assert pick.best(requests(4, ("model", "tree")), 10**6, base(4))[0] == {}
    times.drafts["tree"] = Terms(dict.fromkeys(times.drafts["model"].weights, 1e-9))
    choice, _ = pick.best(requests(4, ("model", "tree")), 10**6, base(4))
    assert {drafter for drafter, _ in choice.values()} == {"tree"}


def test_two_rows_in_one_step_of_twenty_are_not_a_tenth_of_a_row_in_each() -> None:
    """Where the second row more costs nine times the first one, a lone request pays for both whenever it has two."""

    class Dear(StepTimes):
        def of_target(self, work: Work) -> float:
            return (1.0, 1.1, 2.0)[work.rows - 1]

        def of_draft(self, part: Drafting) -> float:
            return 0.0

        def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
            return 0.0

    class Seldom(Acceptance):
        kept = 0.4

        def expected(self, request: int | None, key: Key, depth: int) -> Expected:
            return Expected([self.kept] * depth, [self.kept * 0.05] * depth, [0.05] * depth)

    pick = chooser(Dear())
    pick.arms["a"], pick.acceptance = Arm("a", (2,), True), (lookup := Seldom())
    assert pick.best(requests(1), 8, base(1))[0] == {}
    lookup.kept = 0.8
    choice, goodput = pick.best(requests(1), 8, base(1))
    assert choice and goodput == pytest.approx((1 + 0.1 * 0.8) / (1 + 0.1 * 0.5))
    worth = Price(Dear(), base(1)).worth(choice, goodput)
    assert worth["a"].row == pytest.approx(goodput * 0.5)


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
        pick = chooser(Slow(), {"a": rate, "b": 0.0}, most=1)
        pick.arms["a"] = replace(pick.arms["a"], runs=runs)
        pick.patience = 0.02
        (request,) = requests(1)
        request.judge_free = straight
        choice, goodput = pick.best([request], 8, base(1))
        assert bool(choice) == drafts
        seconds = 25.5e-3 / 5 if runs or not drafts else 10e-3
        assert goodput == pytest.approx((1 + rate * drafts) / seconds)
        assert pick.passes([], base(1)) == 5


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
            return {"a": cost_a, "b": cost_b}[part.drafter] * part.depth

    times = Costs()
    pick = chooser(times, {"a": a, "b": b}, most=4)
    _, goodput = pick.best(requests(batch, "ab"), 99, base(batch))
    for drafter, rate in (("a", a), ("b", b)):
        for each in itertools.product(range(5), repeat=batch):
            tokens = batch + sum(sum(rate**d for d in range(1, k + 1)) for k in each)
            part = Drafting(drafter, sum(k > 0 for k in each), max(each), sum(each))
            seconds = times.of_target(base(batch, sum(each))) + times.of_rest(batch, sum(each))
            assert goodput * MARGIN >= tokens / (seconds + (times.of_draft(part) if sum(each) else 0.0)) - 1e-9


def test_to_each_its_own() -> None:
    """Of two requests one is best served by each drafter, where neither costs much."""

    class PerRequest(Acceptance):
        def expected(self, request: int | None, key: Key, depth: int) -> Expected:
            rate = 0.9 if (request == 0) == (key[0] == "a") else 0.05
            return Expected([rate] * depth, [rate ** (d + 1) for d in range(depth)], [1.0] * depth)

    class Cheap(H100):
        def of_draft(self, part: Drafting) -> float:
            return 0.01 * part.depth

    pick = chooser(Cheap())
    pick.acceptance = PerRequest()
    choice, _ = pick.best(requests(2, "ab"), 99, base(2))
    assert (choice[0][0], choice[1][0]) == ("a", "b")


def test_a_tree_that_ends_itself_is_whole_alone_and_small_where_drafting_it_costs() -> None:
    """By what its nodes cost to draft, and a row of it by what the pass costs: what to draft it weighs itself."""

    class Trees(Frozen):
        def of_draft(self, part: Drafting) -> float:
            return 0.2 * part.nodes

        def of_rest(self, requests: int, nodes: float, passes: int = 1) -> float:
            return 0.0

    class Sized(Acceptance):
        def expected(self, request: int | None, key: Key, depth: int) -> Expected:
            return Expected([0.5], [2.0 if key[1] == 7 else 2.3], [float(key[1])])

    for count, nodes in ((1, 15), (4, 7)):
        arm = Arm.of("t", 15, chain=False, stops_early=True)
        pick = Goodput({"t": arm}, Trees(), lambda r, d: 9, Sized({("t", 7): Mean(), ("t", 15): Mean()}))
        rs = requests(count, "t")
        shares = pick.share(rs, 99, base(count))
        _, goodput = pick.best(rs, 99, base(count))
        assert {share.nodes for share in shares.values()} == {nodes}
        worth = shares[0].min_chance
        assert worth is not None and worth.row == pytest.approx(max(LEAST, goodput * 1.844e-2))


def test_wishes_and_limits_hold() -> None:
    """Nodes stay within the wish, what the request has left, and the spare rows."""
    for spare, wish, left in itertools.product((0, 1, 3, 50), (0, 2, None), (1, 2, 9)):
        rs = [Request(i, [0], SamplingParams(max_nodes=wish), 0, arms=("a",), max_tokens=left) for i in range(3)]
        shares = chooser(H100(), {"a": 0.9}).share(rs, spare, base(3))
        assert sum(s.nodes for s in shares.values()) <= spare
        assert all(s.nodes <= (99 if wish is None else wish) and s.depth <= left - 1 for s in shares.values())
        assert (left > 1 and wish != 0 and spare > 2) <= any(s.nodes for s in shares.values())


def simulate(pick: Goodput, rs: list[Request], rates: dict[str, float], steps: int, rng: random.Random) -> list[str]:
    """Steps of a world with these true rates; the drafter that the first request had in each."""
    drafters = []
    for _ in range(steps):
        shares = pick.share(rs, 99, base(len(rs)))
        notes, parts = [], {}
        for r in rs:
            share = shares[r.id]
            kept, chain = 0, min(share.nodes, share.depth)
            while kept < chain and rng.random() < rates.get(share.drafter, 0.0):
                kept += 1
            notes.append(Note(r.id, share.drafter, share.nodes, share.depth, [1] * chain, [1] * kept))
            if chain:
                parts.setdefault(share.drafter, []).append(chain)
        work = base(len(rs), sum(map(sum, parts.values())))
        done = [Drafting(name, len(ns), max(ns), sum(ns)) for name, ns in parts.items()]
        times = pick.times
        spent = Times(times.of_target(work), {p.drafter: times.of_draft(p) for p in done},
                      times.of_rest(len(rs), sum(p.nodes for p in done)))  # fmt: skip
        pick.learn(notes, work, done, spent)
        drafters.append(shares[rs[0].id].drafter)
    return drafters


class Frozen(H100):
    """The figures are true, so there is nothing to learn."""

    def observe(self, work: Work, parts: Sequence[Drafting], times: Times) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch", [1, 4])
def test_it_finds_the_best_and_finds_it_again_when_that_changes(seed: int, batch: int) -> None:
    """Within 100 steps, whichever drafter is good; nothing when none is; and it comes back from that."""
    rng, pick, rs = random.Random(seed), chooser(Frozen()), requests(batch, "ab")
    for rates in ({"a": 0.9}, {"b": 0.9}, {}, {"a": 0.9}, {}, {"b": 0.9}):
        simulate(pick, rs, rates, 100, rng)
        late = simulate(pick, rs, rates, 100, rng)
        want = next(iter(rates), "none")
        assert late.count(want) >= 75, (rates, {d: late.count(d) for d in set(late)})
    assert pick.lost <= PROBING * pick.spent + CREDIT * pick.spent / pick.step


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lost_to_trying_stays_small(seed: int) -> None:
    """All drafters are useless: of all time, hardly more is spent than by not drafting."""
    rng, pick, rs = random.Random(seed), chooser(Frozen()), requests(1, "ab")
    simulate(pick, rs, {}, 60, rng)
    before, steps = pick.spent, 600
    simulate(pick, rs, {}, steps, rng)
    assert pick.spent - before <= (1 + 2 * PROBING) * steps * Frozen().of_target(base(1))


def test_a_text_that_turns_out_unlike_others_ends_the_choice() -> None:
    rng, pick, rs = random.Random(0), chooser(Frozen()), requests(1, "a")
    simulate(pick, rs, {"a": 0.9}, 100, rng)
    pick._plain.left = 99
    simulate(pick, rs, {}, 3 * HEARING, rng)
    assert pick.acceptance.unlike and not pick.acceptance.changes and pick._plain.left < 99 - 3 * HEARING


def test_what_is_part_of_another_needs_no_tries() -> None:
    """A merged drafter brings at least what its first part does, whose rounds there are as good as tries."""
    arms = {"a": Arm("a", (2, 4), True), "a+b": Arm.of("a+b", 8, False, always_asked="a")}
    pick = Goodput(arms, Frozen(), lambda r, d: 8)
    request = requests(1, ("a", "a+b"))[0]
    for _ in range(16):
        for drafter, kept, part in (("a+b", 0, False), ("a", 3, True)):
            note = Note(0, drafter, 8, 8, [1] * 4, [1] * kept, part)
            pick.acceptance.observe(9, arms[drafter].key(8), 8, note.offered, note.kept)
    one, both = (pick._points(request, 1)[drafter][-1] for drafter in ("a", "a+b"))
    assert both.tokens >= one.tokens > 1.0
    pick.learn([Note(0, "a", 8, 8, [1] * 4, [1] * 3, True)], base(1, 4), [], Times(1.0, {}, 0.0))
    pick._hear()
    assert pick.trials["a"].due == pick.step + LAST_GAP


def test_a_tree_of_no_use_is_tried_with_one_node() -> None:
    """What it costs to look again whether anything is kept at all."""
    arms = {"a": Arm("a", (4,), True), "t": Arm.of("t", 8, False), "a+t": Arm.of("a+t", 8, False, always_asked="a")}
    pick, rs, tried = Goodput(arms, Frozen(), lambda r, d: 8), requests(1, tuple(arms)), dict[str, list[int]]()
    for _ in range(600):
        share = pick.share(rs, 99, base(1))[0]
        tried.setdefault(share.drafter, []).append(share.nodes)
        offered = [1] * min(share.nodes, share.depth)
        parts = [Drafting(share.drafter, 1, 0, share.nodes)] if share.nodes else []
        took = Times(7.0, {p.drafter: 0.5 for p in parts}, 0.0)
        pick.learn([Note(0, share.drafter, share.nodes, share.depth, offered, [])], base(1, share.nodes), parts, took)
    assert set(tried["t"][-4:]) == {1} and set(tried["a"][-4:]) == {1} and max(tried["t"]) == 8
    assert set(tried["a+t"][-4:]) == {4}, "its first part would take the only node"


def test_a_choice_holds_until_half_of_them_came_or_went() -> None:
    pick, rs = chooser(Frozen(), {"a": 0.8}), requests(12)

    def again(count: int) -> bool:
        pick.share(rs[:8], 99, base(8))
        pick._plain.left, pick.step, made = 99, pick.step + 1, pick._plain.picks
        pick.share(rs[:count], 99, base(count))
        pick.step, found = pick.step + 1, pick._plain.picks is not made
        pick._plain.left = 0
        return found

    assert [again(n) for n in (3, 4, 8, 12)] == [True, False, False, False]


def test_a_drafter_that_fails_rests_and_comes_back() -> None:
    rng, pick, rs = random.Random(0), chooser(Frozen()), requests(1, "a")
    assert simulate(pick, rs, {"a": 0.9}, 50, rng)[-1] == "a"
    pick.failed("a")
    assert set(simulate(pick, rs, {"a": 0.9}, BANNED - 1, rng)) == {"none"}
    assert "a" in simulate(pick, rs, {"a": 0.9}, LAST_GAP, rng)
    pick.failed("a")
    assert set(simulate(pick, rs, {"a": 0.9}, 2 * BANNED - 1, rng)) == {"none"}


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
    [share] = pick.share(requests(1), 99, base(1)).values()
    times, k = Linear(), share.nodes

    def seconds(nodes: int) -> float:
        return (
            times.of_target(base(1, nodes)) + times.of_draft(Drafting("a", 1, nodes, nodes)) + times.of_rest(1, nodes)
        )

    goodput = sum(0.8**d for d in range(k + 1)) / seconds(k)
    assert share.min_chance is not None
    row = (times.of_target(base(1, k)) - times.of_target(base(1))) / k
    assert share.min_chance == MinChance(pytest.approx(max(LEAST, goodput * row)), pytest.approx(goodput * 0.452))
    assert 0.8 ** (k + 1) < share.min_chance.node <= 0.8**k + 1e-9


def test_a_drafter_is_hopeless_where_it_costs_more_than_it_brings() -> None:
    """Drafts of eight requests on a slow pair are hopeless once the acceptance is known, and so are drafts of one if
    the draft is expensive; free drafts are not."""
    times, many = slow_pair(), requests(8, ("model",))
    arms = {"model": Arm.of("model", 8, True)}

    def hopeless(pick: Goodput, count: int = 8) -> bool:
        pick.attend(many[:count])
        return pick.hopeless("model", many[0], 120)

    pick = Goodput(arms, times, lambda request, drafter: request.left - 1, Acceptance())
    for _ in range(40):
        pick.acceptance.observe(7, arms["model"].key(0), 4, [1, 1, 1, 1], [1, 1, 1, 1])
    assert not hopeless(pick)
    for _ in range(80):
        pick.acceptance.observe(7, arms["model"].key(0), 4, [1, 1, 1, 1], [])
    assert not hopeless(pick), "it is asked now and then"
    pick.step += 100
    assert hopeless(pick) and not pick.hopeless("other", many[0], 120)
    for dear in (0.0, 0.1):
        times.drafter("model").weights["depth"] = dear
        fresh = Goodput(arms, times, lambda request, drafter: request.left - 1, Acceptance())
        assert [hopeless(fresh, count) for count in (1, 8)] == [dear > 0.0] * 2
    pick = Goodput(arms, times, lambda request, drafter: request.left - 1, Acceptance())
    pick.attend(requests(1, ()))
    assert hopeless(pick, 1), "for any earlier request"
    times.drafter("model").weights["depth"] = 0.01
    pick = Goodput(arms, times, lambda request, drafter: request.left - 1, Acceptance())
    pick.enrol("model", DrafterFacts(8, chain=True, group="draft"))
    pick.attend(many[:1])
    lacks = [120, 2400, 24000]
    assert [pick.hopeless("model", many[0], rows) for rows in lacks] == [False, False, True], "it has to be read first"
    many[0].max_tokens = 8
    assert [pick.hopeless("model", many[0], rows) for rows in lacks] == [False, True, True], "for a few last tokens"
    good = Constant(rates={"model": 0.9})
    assert not hopeless(Goodput(arms, H100(), lambda request, drafter: request.left - 1, good))
