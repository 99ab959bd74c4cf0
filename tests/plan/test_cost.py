"""The table of step times: a staircase, fitted, refined, kept."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.plan import Work
from paceline.plan.cost import KNOTS, Drafting, StepTimes, Terms, Times, hats, rising


def stairs(rows: int) -> float:
    """Panels of 16 rows, a millisecond each beyond the first three."""
    return 1e-3 * (3 + -(-rows // 16))


def true_times(work: Work, parts: list[Drafting], noise: float = 1.0) -> Times:
    drafts = {p.drafter: noise * (2e-4 + 3e-4 * p.depth + 1e-5 * p.requests) for p in parts}
    return Times(noise * (stairs(work.rows) + 4e-7 * work.context), drafts, noise * (3e-4 + 5e-5 * work.requests))


def some(rng: random.Random) -> tuple[Work, list[Drafting]]:
    requests, nodes, length = rng.randint(1, 16), rng.choice([0, 1, 3, 7]), rng.randint(0, 2000)
    rows = requests * (1 + nodes)
    parts = [Drafting("m", requests, nodes, requests * nodes)] if nodes else []
    return Work(rows, requests, requests * length, rows * length, rows), parts


@given(st.integers(1, 5000))
def test_hats_are_a_straight_line_between_knots(rows: int) -> None:
    weights = hats(rows)
    assert sum(k * w for k, w in weights.items()) == pytest.approx(rows) and set(weights) <= set(KNOTS)
    assert len(weights) <= 2 and all(w >= 0 for w in weights.values())


def test_fit_finds_known_coefficients() -> None:
    rng, true = random.Random(0), {"a": 2e-3, "b": 5e-5, "c": 0.0}
    terms = Terms(dict.fromkeys(true, 1e-4))
    samples = []
    for _ in range(60):
        x = {"a": 1.0, "b": float(rng.randint(1, 40)), "c": float(rng.randint(0, 9))}
        samples.append((x, sum(true[k] * v for k, v in x.items())))
    terms.fit(samples, rounds=3000)
    assert terms.weights["a"] == pytest.approx(2e-3, rel=0.02) and terms.weights["b"] == pytest.approx(5e-5, rel=0.02)
    assert terms.weights["c"] < 2e-6


def test_it_learns_a_staircase_from_steps_alone() -> None:
    """Mean absolute error of the predictions below 15 %, at 10 % noise, without any calibration."""
    rng, times = random.Random(1), StepTimes()
    for _ in range(3000):
        work, parts = some(rng)
        times.observe(work, parts, true_times(work, parts, rng.lognormvariate(0, 0.1)))
    assert times.error < 0.15
    wrong = []
    for _ in range(300):
        work, parts = some(rng)
        wrong.append(abs(times.predict(work, parts) / true_times(work, parts).total - 1))
    assert sum(wrong) / len(wrong) < 0.1


def test_the_machine_slows_down_as_a_whole() -> None:
    """Others take half of it: what was not run since costs twice as much, too."""
    rng, times = random.Random(2), StepTimes()
    for _ in range(2000):
        work, parts = some(rng)
        times.observe(work, parts, true_times(work, parts))
    one, big = Work(1, 1, 100, 100, 1), Work(128, 16, 1600, 12800, 128)
    before = times.predict(big, [])
    for _ in range(60):
        times.observe(one, [], true_times(one, [], 2.0))
    assert times.predict(big, []) == pytest.approx(2 * before, rel=0.25)


def test_what_is_beside_several_passes_is_learnt_apart() -> None:
    """Half of what is beside one; a pass takes as long in either."""
    times, one = StepTimes(), Work(1, 1, 100, 100, 1)
    for n in range(600):
        work = replace(one, passes=1 + n % 2 * 4)
        times.observe(work, [], Times(work.passes * 4e-3, {}, 1e-3 if work.passes == 1 else 5e-4))
    assert times.of_rest(1, 0, 5) == pytest.approx(5e-4, rel=0.05)
    assert times.of_rest(1, 0) == pytest.approx(1e-3, rel=0.05)
    assert times.predict(replace(one, passes=3)) == pytest.approx(12.5e-3, rel=0.02) and times.error < 0.05


def test_a_draft_in_a_run_has_its_own_price() -> None:
    """Half a millisecond by itself, a tenth for each pass of a run, and a tenth for each level in either."""
    times, one = StepTimes(), Work(1, 1, 100, 100, 1)
    for n in range(900):
        depth = 2 + n % 3
        if n % 2:
            part, seconds = Drafting("model", 4, 4 * depth, 4 * depth, 4), 4 * (1e-4 + depth * 1e-4)
            times.observe(replace(one, passes=4), [part], Times(16e-3, {"model": seconds}, 1e-3))
        else:
            part, seconds = Drafting("model", 1, depth, depth), 5e-4 + depth * 1e-4
            times.observe(one, [part], Times(4e-3, {"model": seconds}, 1e-3))
    assert times.of_draft(Drafting("model", 1, 3, 3)) == pytest.approx(8e-4, rel=0.1)
    assert times.of_draft(Drafting("model", 1, 3, 3, 1)) == pytest.approx(4e-4, rel=0.1)
    assert times.of_draft(Drafting("model", 5, 15, 15, 5)) == pytest.approx(20e-4, rel=0.1)


def test_one_interrupted_step_teaches_little() -> None:
    rng, times = random.Random(3), StepTimes()
    for _ in range(1000):
        work, parts = some(rng)
        times.observe(work, parts, true_times(work, parts))
    work, parts = Work(8, 1, 100, 800, 8), [Drafting("m", 1, 7, 7)]
    before = times.predict(work, parts)
    times.observe(work, parts, true_times(work, parts, 1000.0))
    assert before < times.predict(work, parts) < 1.35 * before


def slow_pair() -> StepTimes:
    """A target of 1.5 B on one core and its draft of 0.5 B, at 20 ms a level; nobody else was timed."""
    times = StepTimes()
    times.fit_target([(Work(k, 1, 0, 0, 1), max(0.055, 2.2e-3 * k)) for k in KNOTS])
    times.drafter("model").weights = {"call": 2e-3, "several": 1e-5, "requests": 2e-3, "depth": 2e-2, "nodes": 2e-4}
    return times


def test_a_drafter_that_was_never_timed_is_no_bargain() -> None:
    """Its cost is that of the most expensive timed drafter; a tree pays for its levels by its nodes."""
    times = slow_pair()
    chain, tree = Drafting("model", 8, 4, 32), Drafting("tree", 8, 0, 32)
    assert times.of_draft(replace(chain, drafter="other")) >= times.of_draft(chain)
    assert times.of_draft(tree) > times.of_draft(chain) and "tree" not in times.drafts
    assert StepTimes().of_draft(tree) < 1e-3, "where nothing was timed the shape alone is known"


def test_a_tree_that_was_timed_at_one_size_pays_for_another_by_its_nodes() -> None:
    work, rest = Work(4, 1, 0, 0, 4), 1e-4
    times = slow_pair()
    times.fit([(work, [Drafting("tree", 1, 0, 3)], Times(0.09, {"tree": 0.1}, rest))] * 3)
    assert times.of_draft(Drafting("tree", 1, 0, 3)) == pytest.approx(0.1, rel=0.01)
    assert times.of_draft(Drafting("tree", 1, 0, 15)) > 0.4


def test_its_first_steps_tell_what_it_costs() -> None:
    """By whatever factor, up or down; of an interrupted one the next takes it back; then it learns as all do."""
    work, tree = Work(40, 8, 800, 4000, 40), Drafting("tree", 8, 0, 32)
    for seconds in (1e-3, 3.0, 30.0):
        times = slow_pair()
        times.observe(work, [tree], Times(0.09, {"tree": seconds}, 1e-3))
        assert times.of_draft(tree) == pytest.approx(seconds)
        times.observe(work, [tree], Times(0.09, {"tree": seconds / 50}, 1e-3))
        assert times.of_draft(tree) == pytest.approx(seconds / 50)
    for _ in range(4):
        times.observe(work, [tree], Times(0.09, {"tree": 0.6}, 1e-3))
    before = times.of_draft(tree)
    times.observe(work, [tree], Times(0.09, {"tree": before / 50}, 1e-3))
    assert times.of_draft(tree) > before / 2


def test_a_draft_that_offered_nothing_says_little_of_a_price() -> None:
    """Its call was all that it took: in one step it mends no price by any factor, and it is none of the first steps."""
    work, nothing, chain = Work(1, 1, 20, 20, 1), Drafting("model", 1, 0, 0), Drafting("model", 1, 4, 4)
    times = slow_pair()
    before = times.of_draft(chain)
    times.observe(work, [nothing, replace(nothing, drafter="tree")], Times(0.055, {"model": 1e-6, "tree": 1e-6}, 1e-3))
    assert times.of_draft(chain) > 0.8 * before and "tree" not in times.drafts and not times.served


def test_a_table_from_a_busy_start_is_doubted_until_a_drafter_has_served() -> None:
    """The least price that is believed is that of the quiet machine. First steps replace it by what they measured on
    average, an interrupted one among them; a machine that gets faster leaves less to doubt."""
    work, model = Work(5, 1, 20, 100, 5), Drafting("model", 1, 4, 4)
    times, clean = slow_pair(), slow_pair()
    times.doubt = 4.0
    price = times.of_draft(model)
    assert times.hope("model") == 0.25 and clean.hope("model") == 1.0
    again = StepTimes.load(json.loads(json.dumps(times.dump())))
    assert again.hope("model") == 0.25 and StepTimes.load({**clean.dump(), "doubt": 1.0}).doubt == 1.0
    for count, part in enumerate((0.6, 0.7, 0.6, 1.1)):
        assert times.hope("model") == pytest.approx(0.25, rel=0.01), count
        for each in (times, clean):
            each.observe(work, [model], Times(0.055, {"model": part * price}, 1e-3))
    assert times.hope("model") == 1.0 and times.hope("other") < 1.0
    assert times.of_draft(model) == pytest.approx(0.75 * price, rel=0.02) and clean.of_draft(model) > 0.77 * price
    plain, hoped = Work(1, 1, 20, 20, 1), times.hope("other")
    for _ in range(20):
        times.observe(plain, [], Times(0.5 * times.of_target(plain), {}, 1e-3))
    assert hoped < times.hope("other") == 1.0


def test_a_step_with_prompts_teaches_no_price_of_a_draft_and_no_speed() -> None:
    """The draft model has read the prompt in it; its number of rows is priced better."""
    work, model = Work(85, 1, 0, 0, 5), Drafting("model", 1, 4, 4)
    times = slow_pair()
    price, plain, prompt = times.of_draft(model), times.of_target(replace(work, rows=1)), times.of_target(work)
    for _ in range(20):
        times.observe(work, [model], Times(1.5 * prompt, {"model": 3 * price}, 1e-3))
    assert times.of_draft(model) == price and not times.served
    assert times.of_target(replace(work, rows=1)) == pytest.approx(plain, rel=0.02)
    assert times.of_target(work) == pytest.approx(1.5 * prompt, rel=0.05)


def test_what_was_not_drafted_follows_the_speed() -> None:
    """A drafter has served while other programs ran. When they have gone plain steps say so of its price, too."""
    work, model, plain = Work(5, 1, 20, 100, 5), Drafting("model", 1, 4, 4), Work(1, 1, 20, 20, 1)
    times = slow_pair()
    for _ in range(40):
        times.observe(work, [model], Times(3 * 0.055, {"model": 0.3}, 1e-3))
    before, busy = times.of_draft(model), times.of_target(plain)
    for _ in range(40):
        times.observe(plain, [], Times(busy / 3, {}, 1e-3))
    assert times.of_draft(model) < 0.6 * before


def test_after_a_busy_start_a_quick_pass_tells_the_speed() -> None:
    """Everything was measured five times too slow: one pass mends the prices of all, as far as there is doubt."""
    work, model, plain = Work(256, 1, 0, 0, 1), Drafting("model", 1, 4, 4), Work(1, 1, 0, 0, 1)
    for doubt, faster in ((5.0, 5.0), (3.0, 3.0), (1.0, 1.0)):
        times = slow_pair()
        times.doubt, prices = doubt, (times.of_target(plain), times.of_draft(model))
        true = times.of_target(work) / 5
        times.observe(work, [], Times(true, {}, 1e-3))
        got = times.of_target(plain), times.of_draft(model)
        assert got == pytest.approx(tuple(price / faster for price in prices), rel=0.01) and times.doubt == 1.0
        assert times.of_target(work) == pytest.approx(true, rel=0.05)


def test_after_a_busy_start_the_first_plain_step_tells_the_speed() -> None:
    """Everything was measured too slow. What is not drafted meanwhile follows; without a doubt one step says less."""
    plain, model = Work(1, 1, 0, 0, 1), Drafting("model", 1, 4, 4)
    for times_slower, doubt in ((5.0, 5.0), (1.6, 2.0)):
        times = slow_pair()
        times.doubt, prices = doubt, (times.of_target(plain), times.of_draft(model))
        times.observe(plain, [], Times(prices[0] / times_slower, {}, 1e-3))
        got = times.of_target(plain), times.of_draft(model)
        assert got == pytest.approx(tuple(price / times_slower for price in prices), rel=0.01)
    times = slow_pair()
    times.observe(plain, [], Times(prices[0] / 1.6, {}, 1e-3))
    assert times.of_target(plain) > prices[0] / 1.2


@pytest.mark.parametrize("seen", [0, 5])
def test_a_pass_of_no_time_leaves_prices_above_zero(seen: int) -> None:
    """A clock may stand still."""
    times, work = StepTimes(), Work.of([(1, 40, 1)])
    for seconds in [0.01] * seen + [0.0, 0.01, 0.0]:
        times.observe(work, [], Times(seconds, {}, 0.0))
        assert times.speed > 0.0 and times.predict(work, []) > 0.0


def test_a_table_is_kept_as_json() -> None:
    rng, times = random.Random(4), StepTimes()
    for _ in range(50):
        work, parts = some(rng)
        times.observe(work, parts, true_times(work, parts))
    again = StepTimes.load(json.loads(json.dumps(times.dump())))
    work, parts = some(rng)
    assert again.predict(work, parts) == times.predict(work, parts) and again.dump() == times.dump()


def test_knots_that_no_pass_touched_go_on_in_proportion() -> None:
    times = StepTimes()
    times.fit_target([(Work(k, 1, 0, 0, 1), stairs(k)) for k in (1, 8, 16, 17, 64)])
    assert times.of_target(Work(16, 1, 0, 0, 1)) == pytest.approx(stairs(16), rel=0.15)
    assert times.of_target(Work(256, 1, 0, 0, 1)) == pytest.approx(4 * times.of_target(Work(64, 1, 0, 0, 1)), rel=0.15)


@pytest.mark.parametrize("last", [k for k in KNOTS if 16 <= k <= 65])
def test_a_start_that_runs_out_of_time_says_nothing_of_more_rows(last: int) -> None:
    """1.5 billion parameters on one core: 66 ms, and from nine rows on 7 ms a row. A knot that bounds the last pass,
    without a part in it, must not pull the others down."""

    def slow(rows: int) -> float:
        return max(66e-3, 7e-3 * rows)

    times = StepTimes()
    times.fit_target([(Work(k, 1, 0, 0, 1), slow(k)) for k in KNOTS if k <= last])
    for rows in (16, 24, 33, 49, 64, 128, 512):
        assert times.of_target(Work(rows, 1, 0, 0, 1)) == pytest.approx(slow(rows), rel=0.1)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12))
def test_the_nearest_values_that_never_fall(values: list[float]) -> None:
    found = rising(values)
    assert all(low <= high for low, high in pairwise(found)) and sum(found) == pytest.approx(sum(values))
    rest = [value - near for value, near in zip(values, found)]
    assert sum(r * near for r, near in zip(rest, found)) == pytest.approx(0.0, abs=1e-6)
    assert all(sum(rest[i:]) <= 1e-6 for i in range(len(rest))), "no rising change of it comes nearer"


def test_few_rows_are_not_priced_by_what_many_cost() -> None:
    """Calibration asks for the scores of each of few rows: passes that get longer beyond 32 rows, at 16 cost as one."""
    machine = {1: 3.0, 4: 3.0, 8: 3.0, 16: 3.0, 17: 3.7, 32: 3.7, 33: 4.4, 64: 5.7, 65: 6.3, 128: 11.0, 256: 22.0}
    times, rng = StepTimes(), random.Random(0)
    samples = [(Work(k, 1, 32, 32 * k, min(k, 64)), 1e-3 * s * rng.uniform(0.99, 1.01)) for k, s in machine.items()]
    times.fit_target(samples)
    assert times.of_target(Work(1, 1, 32, 32, 1)) == pytest.approx(3e-3, rel=0.02)
    assert times.of_target(Work(16, 1, 32, 512, 16)) == pytest.approx(3e-3, rel=0.02)


@given(st.integers(1, 3000), st.integers(1, 64), st.integers(0, 4000), st.integers(0, 64))
def test_what_is_written_out_for_speed_is_the_sum_of_the_terms(rows: int, requests: int, length: int, n: int) -> None:
    rng = random.Random(rows)
    times = StepTimes(speed=rng.uniform(0.5, 2))
    for terms in (times.target, times.rest, times.drafter("m")):
        terms.weights = {name: rng.random() for name in terms.weights}
    work, part = Work(rows, requests, requests * length, rows * length, rows), Drafting("m", requests, n % 9, n)
    slow = {**hats(rows), "requests": requests, "context": work.context, "pairs": work.pairs}
    assert times.of_target(work) == pytest.approx(times.speed * times.target.predict(slow))
    several = replace(work, passes=1 + n)
    assert times.of_target(several) == pytest.approx((1 + n) * times.of_target(work))
    assert times.of_draft(part) == pytest.approx(times.drafter("m").predict(part.features()))
    for call, passes in (("call", 1), ("several", 2)):
        rest = {call: 1.0, "requests": requests, "nodes": n}
        assert times.of_rest(requests, n, passes) == pytest.approx(times.speed * times.rest.predict(rest))


def test_rows_of_prompts_that_nobody_timed_are_not_scored() -> None:
    """1.5 billion parameters on two slow cores: 35 ms a row, 8 of them for its scores. There was time for 16 rows."""
    times = StepTimes()
    times.fit_target([(Work(k, 1, 0, 0, k), 35e-3 * k) for k in KNOTS if k <= 16], unscored=27 / 35)
    for rows, each in ((16, 35e-3), (64, 35e-3), (128, 27e-3), (1024, 27e-3)):
        assert times.of_target(Work(rows, 1, 0, 0, 1)) == pytest.approx(each * rows, rel=0.05)
    seconds = [times.of_target(Work(rows, 1, 0, 0, 1)) for rows in range(1, 300)]
    assert all(few <= more for few, more in pairwise(seconds)), "more rows never cost less"


def test_a_first_step_that_also_read_the_weights_sets_no_price_for_good() -> None:
    """Nothing was timed before. The first plain step says what one takes, however long a prompt took before."""
    for slower in (20.0, 1.6):
        times, plain, prompt = StepTimes(), Work(1, 1, 0, 0, 1), Work(64, 1, 0, 0, 1)
        shape = times.of_target(prompt) / times.of_target(plain)
        times.observe(prompt, [], Times(slower * 0.1 * shape, {}, 1e-3))
        times.observe(plain, [], Times(0.1, {}, 1e-3))
        assert times.of_target(plain) == pytest.approx(0.1, rel=0.01)


def test_without_a_table_a_slow_pass_is_believed_once() -> None:
    times = StepTimes()
    for rows, seconds in ((1, 1e-2), (2, 1.1e-2), *[(1, 1e-2)] * 20, (1, 1e-1)):
        times.observe(Work(rows, 1, 100, 100, rows), [], Times(seconds, {}, 1e-4))
    assert times.of_target(Work(1, 1, 100, 100, 1)) < 2e-2
    assert times.of_target(Work(2, 1, 100, 200, 2)) > times.of_target(Work(1, 1, 100, 100, 1))


def test_reading_is_learned_from_the_rows_that_were_read() -> None:
    times = StepTimes()
    times.drafter("m")
    whole = Work(512, 1, 0, 0, 1)
    for _ in range(3):
        times.observe(Work(1, 1, 100, 100, 1), [], Times(1e-2, {}, 1e-4))
        times.observe(whole, [], Times(0.1, {"m": 0.05}, 1e-4, reads={"m": 512}))
    known = times.of_reading(["m"], 512)
    assert 0.4 < known / times.of_target(whole) < 0.6
    # The last part of a prompt, of which the draft reads all; and a prompt next to a request that decodes.
    times.observe(Work(512, 1, 3584, 512 * 3584, 1), [], Times(0.1, {"m": 0.42}, 1e-4, reads={"m": 4096}))
    times.observe(Work(513, 2, 100, 100, 2), [], Times(0.1, {"m": 1e-3}, 1e-4, reads={"m": 1}))
    assert times.of_reading(["m"], 512) == pytest.approx(known, rel=0.2)
