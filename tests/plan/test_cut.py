"""Drafts are cut where a few more rows would open a panel: the least likely ends of them, when that pays."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.core.plan import Item, Panel, Plan, Work
from paceline.core.request import Request
from paceline.plan.allocate import Point, Price
from paceline.plan.cost import KNOTS, OPENINGS, StepTimes
from paceline.plan.cut import cut, trim
from paceline.simulate.log import Event, Step
from paceline.simulate.record import record
from paceline.simulate.replay import replay
from tests.lossless.cases import Setting, check
from tests.simulate.runs import some


def item(chances: tuple[float, ...], drafter: str = "model") -> Item:
    return Item(Request(0, [0], SamplingParams(), 0), 1, 9, drafter, "exact", 9, None, chances)


def test_the_least_likely_ends_go() -> None:
    items, panels = [item((0.9, 0.8, 0.1)), item((0.7, 0.3, 0.2))], (Panel(6, 0.5, 0.0), Panel(99, 9.0, 0.0))
    assert cut(items, [3, 3], panels) == [2, 2]
    assert cut(items, [3, 1], panels) == [3, 1]  # no more rows than fit
    assert cut(items, [3, 3], ()) == [3, 3]


def test_what_is_worth_its_panel_stays() -> None:
    items = [item((0.9, 0.8, 0.4)), item((0.7, 0.3, 0.2))]
    assert cut(items, [3, 3], (Panel(6, 0.4, 0.0),)) == [3, 3]
    assert cut(items, [3, 3], (Panel(6, 0.4, 0.1),)) == [3, 1]  # at this price for a row it is not
    assert cut([item(()), item(())], [3, 3], (Panel(6, 9.0, 0.0),)) == [3, 3]  # nobody knows what these bring


@given(st.data())
def test_nothing_likelier_goes_and_the_panel_is_full(data: Any) -> None:
    chances = st.lists(st.floats(0, 1), min_size=1, max_size=6).map(lambda c: tuple(sorted(c, reverse=True)))
    items = [item(c) for c in data.draw(st.lists(chances, min_size=1, max_size=5))]
    drafted = [data.draw(st.integers(0, len(i.chances))) for i in items]
    panel = Panel(data.draw(st.integers(len(items), 20)), data.draw(st.floats(0, 3)), data.draw(st.floats(0, 0.3)))
    left = cut(items, drafted, (panel,))
    gone = [i.chances[rank] for i, has, had in zip(items, left, drafted) for rank in range(has, had)]
    stays = [i.chances[rank] for i, has in zip(items, left) for rank in range(has)]
    over = len(items) + sum(drafted) - panel.rows
    assert not gone or (len(gone) == over and max(gone) <= min(stays, default=1))
    if over > 0:
        cheapest = sorted(gone + stays)[:over]
        assert bool(gone) == (sum(cheapest) < panel.opening + panel.row * over)


def test_a_chain_that_was_cut_was_asked_for_less_and_a_tree_was_not() -> None:
    for drafter, depth in ("model", 1), ("topk", 9):
        plan = Plan([item((0.9, 0.1, 0.1), drafter)], panels=(Panel(2, 1.0, 0.0),))
        left, depths = trim(plan, [3], lambda name: name == "model")
        assert left == [1] and (plan.items[0].depth if depths[0] is None else depths[0]) == depth


def test_edges_are_where_the_table_steps() -> None:
    times = StepTimes()
    for knot in KNOTS:
        times.target.weights[knot] = 1.0 + (knot > 16) + (knot > 32)
    price = Price(times, Work(4, 4, 0, 0, 4))
    choice = {i: ("a", Point(6, 6, 2.0, 4.0)) for i in range(4)}
    [panel] = price.panels(choice, 2.0)
    assert (panel.rows, round(panel.opening)) == (16, 2) and panel.row < 0.1
    assert [e.rows for e in price.panels({i: ("a", Point(20, 9, 2.0, 4.0)) for i in range(4)}, 2.0)] == [16, 32, 48, 64]
    assert OPENINGS == (16, 32, 48, 64)


@pytest.mark.parametrize("drafter", ["ngram|topk"])
def test_no_text_depends_on_it_and_it_replays(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = 0
    for seed in range(4):
        panels = (Panel(4 + seed % 3, 1e9, 0.0),)
        events, setting = list[Event](), Setting(max_requests=4, clock=seed)
        engine = setting.engine()
        with monkeypatch.context() as patch:
            patch.setattr(Price, "panels", lambda self, choice, goodput, found=panels: found)
            patch.setattr(Setting, "engine", lambda self, made=engine: made)
            record(engine, events.append)
            check(setting, some(seed, 12, drafter=drafter), random.Random(seed))
            assert replay(events).difference is None
        outcomes = [event.outcome for event in events if isinstance(event, Step) and event.outcome]
        cuts += sum(
            result.drafted > sum(sum(r.offered) for r in result.rounds)
            for outcome in outcomes
            for result in outcome.results
        )
    assert cuts
