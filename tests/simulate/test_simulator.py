"""The discrete-event twin: every token once, the same run again, and times that can be worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import CapacityError
from paceline.core.noise import SimulationNoise
from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.core.result import Result, Round
from paceline.engine.config import EngineConfig
from paceline.engine.drafter_table import DrafterFacts
from paceline.plan.choose import Goodput
from paceline.plan.cost import StepTimes
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Departure, Event, Given, Setup, Step
from paceline.simulate.replay import replay
from paceline.simulate.simulator import simulate
from paceline.simulate.workload import DraftRates, Speech, Workload, WorkloadJob
from tests.lossless.cases import Setting, Wish
from tests.simulate.runs import recorded, settings_st, some, wish_st

STEP = 0.5
"""Seconds of every step of `flat`."""


def flat() -> StepTimes:
    """A table by which every step takes as long."""
    times = StepTimes()
    times.target.weights = {k: STEP if isinstance(k, int) else 0.0 for k in times.target.weights}
    times.rest.weights = dict.fromkeys(times.rest.weights, 0.0)
    for name in ("ngram", "model"):
        times.drafter(name).weights = dict.fromkeys(times.drafter(name).weights, 0.0)
    return times


def workload(requests: int, tokens: int, drafter: str = "none", **config: int) -> Workload:
    """Requests that arrive together; nodes that a drafter proposes are all kept."""
    entries = {"none": DrafterFacts(0, True), "ngram": DrafterFacts(4, True), "model": DrafterFacts(4, True, "draft")}
    made = EngineConfig(**{"blocks": 64, "block_size": 4, "max_requests": 4, "row_budget": 32, **config})
    setup = Setup(made, ("draft",), entries, flat().dump())
    arrivals = [Arrival(0.0, i, i, [i, 1, 2], drafter, (), "exact", tokens) for i in range(requests)]
    rates = DraftRates(entries)
    for _ in range(2000):
        rates.count(
            Given(-1, 1, 4, drafter, 4, 0.1), Result([0] * 5, [0, 1, 2, 3], [Round([1] * 4, [1] * 4)], emitted=5)
        )
    speech = Speech(list(range(100, 100 + tokens)), "length")
    jobs = [WorkloadJob(0.0, [arrival]) for arrival in arrivals]
    return Workload(setup, jobs, dict.fromkeys(range(requests), speech), rates, flat())


def said(events: list[Event]) -> dict[int, list[int]]:
    """Every request's output."""
    out: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Step) and event.outcome:
            for item, result in zip(event.decision.items, event.outcome.results):
                out.setdefault(item.id, []).extend(result.tokens[: result.emitted])
    return {number: tokens for number, tokens in out.items() if tokens}


@settings(max_examples=20, deadline=None)
@given(settings_st, st.lists(wish_st(), min_size=1, max_size=6), st.integers(0, 2**16), st.sampled_from([None, 1, 3]))
def test_every_token_once(setting: Setting, wishes: list[Wish], seed: int, clients: int | None) -> None:
    recording = recorded(setting, wishes, seed, faults=True)
    if not said(recording):
        return
    made = Workload.of(recording)
    simulated = simulate(made, clients=clients, seed=seed)
    assert said(simulated) == said(recording)
    ends = [r.finish for e in simulated if isinstance(e, Step) and e.outcome for r in e.outcome.results if r.finish]
    assert len(ends) == len(said(recording)) == len(figures(simulated).latency)
    done = replay(simulated)
    assert done.difference is None
    cache = done.twin.desk.cache
    cache.check_integrity()
    assert cache.room() == cache.num_blocks
    assert simulate(made, clients=clients, seed=seed) == simulated


@pytest.mark.parametrize(("requests", "clients", "rate"), [(1, None, 1), (3, None, 3), (6, 2, 2), (8, None, 4)])
def test_plain_throughput_by_hand(requests: int, clients: int | None, rate: int) -> None:
    """A step takes as long whatever is in it, and the first brings the first token of every prompt at once."""
    out = figures(simulate(workload(requests, 10), clients=clients))
    assert out.tokens == 10 * requests
    assert out.throughput == pytest.approx(rate / STEP)
    assert out.ttft[0] == STEP
    assert out.tbt == pytest.approx([STEP] * 9 * requests)


def test_drafted_throughput_by_hand() -> None:
    """All of a draft of four is kept: five tokens a step."""
    for drafter in ("ngram", "model"):
        out = figures(simulate(workload(2, 20, drafter)))
        assert out.steps == 4  # a prompt's end drafts as well
        assert out.latency == pytest.approx([out.steps * STEP] * 2)
        assert out.drafters == {drafter: 40}


def test_a_run_by_hand() -> None:
    """Behind the prompt's own step, which brings five tokens, four passes of five in one step."""
    made = workload(2, 25, "model", patience_ms=10**9)
    made.setup.entries["model"] = replace(made.setup.entries["model"], runs=True)
    made.jobs[:] = [WorkloadJob(0.0, [replace(a, judge_free=True) for a in job.arrivals]) for job in made.jobs]
    events = simulate(made)
    out = figures(events)
    assert out.steps == 2 and out.latency == pytest.approx([5 * STEP] * 2) and out.drafters == {"model": 50}
    last = events[-1]
    assert isinstance(last, Step) and last.outcome and last.outcome.work.passes == 4
    assert [result.rounds for result in last.outcome.results] == [[Round([1] * 4, [1] * 4)] * 4] * 2
    assert replay(events).difference is None


def chosen(made: Workload, *arms: tuple[str, ...]) -> Workload:
    """The same requests, each with these drafters to choose from."""
    made.setup.entries["ngram"] = replace(made.setup.entries["ngram"], runs=True)
    jobs = [
        WorkloadJob(0.0, [replace(a, drafter="auto" if mine else "none", arms=mine, judge_free=True)])
        for job, mine in zip(made.jobs, arms)
        for a in job.arrivals
    ]
    return replace(made, jobs=jobs)


def saved(events: list[Event]) -> tuple[float, float]:
    """Seconds that the account says drafts saved, and those of all steps."""
    policy = replay(events).twin.table.policy
    assert isinstance(policy, Goodput)
    took = sum(e.outcome.times.total for e in events if isinstance(e, Step) and e.outcome)
    return policy.governor.saved, took


def test_the_account_is_the_difference_of_two_clocks() -> None:
    """One at a time, with prices that are true: what the account says is what the two runs differ by."""
    made = workload(3, 200, patience_ms=1)
    events = [simulate(chosen(made, *[arms] * 3), clients=1) for arms in (("ngram",), ())]
    (account, drafted), (nothing, plain) = map(saved, events)
    assert plain > 2 * drafted and nothing == 0.0
    assert account == pytest.approx(plain - drafted, rel=0.01)


def test_the_account_counts_the_tokens_of_those_beside_a_draft() -> None:
    """Runs of several passes in which one of four drafts: the others' tokens are worth their time, too."""
    events = simulate(chosen(workload(4, 100, patience_ms=10**9, blocks=256), ("ngram",), (), (), ()))
    steps = [e.outcome for e in events if isinstance(e, Step) and e.outcome]
    assert any(step.parts and step.work.passes > 1 for step in steps)
    worth = sum(STEP * sum(len(r.tokens) for r in step.results) / len(step.results) for step in steps)
    account, took = saved(events)
    assert account == pytest.approx(worth - took, rel=0.01)


def test_catching_up_takes_its_time() -> None:
    """A drafter that is too expensive to draft still reads the prompt of three tokens, and what is measured of that in
    one run is spent in the next."""
    times, made = flat(), workload(2, 4)
    times.drafter("model").weights = dict.fromkeys(times.drafter("model").weights, 1e6) | {"depth": 0.0}
    jobs = [
        WorkloadJob(10.0 * i, [replace(a, arms=("model",))]) for i, job in enumerate(made.jobs) for a in job.arrivals
    ]
    made = replace(made, setup=replace(made.setup, times=times.dump()), jobs=jobs, times=times, catching=0.1)
    events = simulate(made)
    out = figures(events)
    assert out.drafters == {"none": 8} and out.ttft == pytest.approx([STEP + 0.3] * 2)
    assert out.latency == pytest.approx([4 * STEP + 0.3] * 2)
    assert Workload.of(events, fit=False).catching == pytest.approx(0.1)


def test_arrivals_keep_their_time() -> None:
    made = workload(2, 4)
    late = replace(made, jobs=[made.jobs[0], replace(made.jobs[1], at=10.2)], between=0.1)
    out = figures(simulate(late))
    assert out.ttft == pytest.approx([STEP, STEP])
    assert out.latency == pytest.approx([4 * STEP + 0.3] * 2)
    assert out.end == pytest.approx(10.2 + 4 * STEP + 0.3)


def test_less_room_pre_empts_and_too_little_is_refused() -> None:
    tight = workload(3, 20, blocks=8)
    events = simulate(tight)
    assert any(isinstance(e, Step) and e.decision.preempted for e in events)
    assert figures(events).tokens == 60
    with pytest.raises(CapacityError, match="up to 6 blocks and the cache has 5"):
        simulate(workload(3, 20, blocks=5))


def test_draws_follow_the_rates() -> None:
    """A chain that is offered in full half the time and kept at 0.8, then 0.5; a tree with 3, then 2 rows."""
    entries = {"ngram": DrafterFacts(8, True), "topk": DrafterFacts(5, False)}
    rates = DraftRates(entries)
    for i in range(200):
        kept = [int(i % 5 > 0), int(i % 5 > 0 and i % 2)]
        rates.count(
            Given(0, 1, 2, "ngram", 2, 0.1), Result([0], [], [Round([1, 1] if i % 4 else [1], kept)], emitted=3)
        )
        rates.count(Given(0, 1, 5, "topk", 2, 0.1), Result([0], [], [Round([3, 2], kept)], emitted=3))
    for drafter, nodes in (("ngram", 2), ("topk", 5)):
        drawn = [rates.draw(item(drafter, nodes, index), SimulationNoise(3)) for index in range(4000)]
        expected = rates.beliefs.expected(0, (drafter, 0 if drafter == "ngram" else 5), 2)
        for depth in range(2):
            assert sum(kept > depth for _, kept in drawn) / 4000 == pytest.approx(expected.kept[depth], abs=0.025)
            rows = sum(offered[depth] for offered, _ in drawn if len(offered) > depth) / 4000
            assert rows == pytest.approx(expected.rows[depth], rel=0.04)
        assert drawn[7] == rates.draw(item(drafter, nodes, 7), SimulationNoise(3))
        assert drawn != [rates.draw(item(drafter, nodes, index), SimulationNoise(4)) for index in range(4000)]


def item(drafter: str, nodes: int, index: int) -> Item:
    """An item of a request that has said `index` tokens."""
    request = Request(0, [1], SamplingParams(), 0, max_tokens=9999, output=[0] * index)
    return Item(request, 1, nodes, drafter, "exact", 2)


def test_a_size_that_was_never_drawn_has_its_neighbours_rates() -> None:
    rates = DraftRates({"topk": DrafterFacts(5, False)})
    for _ in range(500):
        rates.count(Given(0, 1, 3, "topk", 2, 0.1), Result([0], [], [Round([2, 1], [1, 1])], emitted=3))
        rates.count(Given(0, 1, 40, "topk", 2, 0.1), Result([0], [], [Round([20, 20], [0, 0])], emitted=3))
    assert [sum(rates.draw(item("topk", n, i), SimulationNoise(0))[1] for i in range(50)) for n in (4, 32)] == [100, 0]


def test_the_aborted_and_the_open_end_where_they_were() -> None:
    events = recorded(Setting(clock=1), some(0, 3, drafter="none"), 0)
    steps = [i for i, event in enumerate(events) if isinstance(event, Step) and len(event.decision.items) > 1]
    cut = events[: steps[5] + 1]
    one, other = (given.id for given in cut[-1].decision.items[:2])  # type: ignore[union-attr]
    made = Workload.of([*cut, Departure(one)])
    assert (made.outputs[one].finish, made.outputs[other].finish) == ("abort", "length")
    assert said(simulate(made)) == said(cut)


def test_the_table_is_fitted_to_the_recording() -> None:
    """With the toy's arbitrary clock: the steps' predicted times add up to the measured ones, part by part."""
    events = recorded(Setting(clock=3), some(2, 4, drafter="model"), 0)
    outcomes = [e.outcome for e in events if isinstance(e, Step) and e.outcome]
    times = Workload.of(events).times
    drafted = [(o, part) for o in outcomes for part in o.parts]
    assert sum(times.of_target(o.work) for o in outcomes) == pytest.approx(sum(o.times.target for o in outcomes))
    assert sum(times.of_draft(p) for _, p in drafted) == pytest.approx(sum(o.times.drafts["model"] for o, _ in drafted))
    own = Workload.of(events, fit=False).times
    assert sum(own.of_target(o.work) for o in outcomes) != pytest.approx(sum(o.times.target for o in outcomes))


def test_a_narrow_tree_keeps_its_depth() -> None:
    """Seven nodes, often all in use: deep places that are kept do not lose their rows to shallow ones."""
    rates = DraftRates({"topk": DrafterFacts(7, False)})
    for i in range(400):
        rows = [[3, 2, 1, 1], [2, 1, 2, 2]][i % 2]
        rates.count(Given(0, 1, 7, "topk", 4, 0.1), Result([0], [], [Round(rows, [int(i % 4 > 0)] * 4)], emitted=5))
    wide = item("topk", 7, 0)._replace(depth=4)
    drawn = []
    for index in range(2000):
        wide.request.output.append(index)
        drawn.append(rates.draw(wide, SimulationNoise(1)))
    expected = rates.beliefs.expected(0, ("topk", 7), 4)
    assert sum(kept for _, kept in drawn) / 2000 == pytest.approx(sum(expected.kept), rel=0.03)
    assert sum(sum(offered) for offered, _ in drawn) / 2000 == pytest.approx(7, rel=0.01)
    assert max(sum(offered) for offered, _ in drawn) == 7
