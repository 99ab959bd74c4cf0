"""Where requests go, who gives to whom, and how many engines there should be."""

import random
from dataclasses import replace
from math import inf

import pytest

from paceline.cluster.live.freeness import (
    EngineLoad,
    EngineRanking,
    ScaleRule,
    ScaleState,
    eases,
    freeness,
    pairs,
    place,
    room_for_more,
    scaled,
    spared,
    victim,
)
from paceline.cluster.live.loads import by_engine, load_of
from paceline.core.params import SamplingParams
from paceline.core.request import Request


def load(name: str, used: int, running: int, **more: object) -> EngineLoad:
    return EngineLoad(name, 100, used, running, 0, **more)  # type: ignore[arg-type]


def test_the_freest_engine_gets_a_request() -> None:
    loads = [load("a", 50, 5), load("b", 20, 2), load("c", 10, 1, draining=True), load("d", 0, 0, alive=False)]
    assert [freeness(each) for each in loads] == [10, 40, -inf, -inf]
    assert place(loads) == "b"
    assert place(loads[2:]) is None and place([]) is None


def test_what_waits_first_counts_as_used() -> None:
    full = EngineLoad("a", 100, 90, 1, 1, wanted=30)
    assert freeness(full) == -20 and place([full, load("b", 95, 1)]) == "b"


def test_a_new_request_comes_behind_all_that_wait() -> None:
    queue = EngineLoad("a", 100, 0, 0, 3, wanted=10, queued=90)
    assert freeness(queue) == 30 and room_for_more(queue) == 10 / 3
    assert place([queue, load("b", 80, 3)]) == "b"


def test_more_samples_do_not_make_a_crowded_engine_freer() -> None:
    many, few = EngineLoad("a", 100, 100, 9, 20, queued=60), EngineLoad("b", 100, 100, 2, 1, queued=30)
    assert place([many, few]) == "b"


def test_the_least_free_gives_to_the_freest() -> None:
    loads = [load("a", 99, 4), load("b", 98, 3), load("c", 10, 1), load("d", 0, 0)]
    assert pairs(loads) == [("a", "d"), ("b", "c")]
    assert pairs([load("a", 99, 4), load("b", 92, 1)]) == [], "that one is crowded, too"
    assert pairs([load("a", 0, 0), load("b", 0, 0)]) == []
    assert pairs([load("a", 95, 1), load("b", 0, 0)]) == [], "the only sample would come back"


def test_a_move_helps_where_both_are_freer_than_the_source_was() -> None:
    full, other = load("a", 90, 4), load("b", 50, 4)
    assert pairs([full, other]) == [("a", "b")]
    assert eases(full, other, 10) and not eases(full, other, 40), "the other one would be as full"
    assert not eases(load("b", 60, 5), load("a", 80, 3), 10), "it would come back"
    pressed = load("a", 30, 2, urgent=1)
    assert eases(pressed, other, 20) and not eases(pressed, other, 10, priority=-1), "its headroom would go along"
    assert eases(load("a", 90, 1, draining=True), load("b", 99, 9), 90)


def test_one_that_drains_gives_to_any() -> None:
    assert pairs([load("a", 10, 1, draining=True), load("b", 90, 1)]) == [("a", "b")]
    assert pairs([load("a", 0, 0, draining=True), load("b", 90, 1)]) == [], "it has nothing to give"
    assert pairs([load("a", 10, 1, draining=True)]) == []


def test_a_first_that_does_not_fit_makes_its_engine_give() -> None:
    """40 of 100 blocks are free, but not for it: another one leaves, and then it fits."""
    there = load("b", 10, 1)
    assert pairs([load("a", 60, 2), there]) == []
    assert pairs([EngineLoad("a", 100, 60, 2, 1, wanted=50), there]) == [("a", "b")]


def test_an_urgent_sample_has_headroom() -> None:
    plain, pressed = load("a", 20, 2), load("b", 20, 2, urgent=1)
    assert freeness(plain) == 40 and freeness(pressed) == 2.5
    assert place([plain, pressed]) == "a"
    assert place([plain, load("b", 10, 2, urgent=1)], pressing=True) == "b", "it is there for other urgent ones"
    assert pairs([pressed, load("c", 0, 0)]) == [("b", "c")]


def test_who_leaves() -> None:
    """Least urgent first, then shortest."""
    samples = [(0, 30, "long"), (-1, 1, "urgent"), (0, 20, "short"), (3, 90, "patient")]
    crowded, to = load("a", 99, 4, urgent=1), load("b", 0, 0)
    assert victim(crowded, samples, to) == "patient"
    assert victim(crowded, samples[:3], to) == "short"
    assert victim(crowded, samples[1:2], to) == "urgent"
    assert victim(load("a", 20, 1, urgent=1), samples[1:2], to) is None, "its own headroom does not drive it out"
    assert victim(load("a", 20, 1, urgent=1, draining=True), samples[1:2], to) == "urgent"
    assert victim(crowded, [], to) is None
    assert victim(load("a", 90, 2), samples[:1], load("b", 65, 2)) is None, "that one would be as full"


def test_the_next_one_leaves_where_the_move_of_the_first_does_not_help() -> None:
    samples = [(3, 70, "patient"), (0, 9, "one"), (0, 9, "two"), (-1, 9, "urgent")]
    assert victim(load("a", 97, 4), samples, load("b", 29, 1)) == "one"
    pressed, to = load("a", 70, 3, urgent=1), load("b", 5, 1, urgent=1)
    assert eases(pressed, to, 9, -1) and victim(pressed, samples[:1] + samples[3:], to) is None, "it stays all the same"


def test_the_ranking_follows_changes() -> None:
    rng, loads, ranking = random.Random(3), dict[str, EngineLoad](), EngineRanking()
    for _ in range(2000):
        name = f"engine-{rng.randrange(12)}"
        loads[name] = load(name, rng.randrange(100), rng.randrange(4), draining=rng.random() < 0.2)
        ranking.tell(loads[name])
        assert ranking.best() == place(loads.values())
    assert len(ranking._heap) <= 64 + 4 * 12


def test_the_number_of_engines_follows_the_mean_freeness() -> None:
    rule = ScaleRule(low=10, high=60, patience_s=5, most=3)
    full, idle = [load("a", 95, 2), load("b", 99, 2)], [load("a", 5, 1), load("b", 0, 0)]
    state, change = scaled(rule, ScaleState(), full, 0, 1.0)
    assert (state.below, change) == (1.0, 0)
    assert scaled(rule, state, full, 0, 5.9) == (state, 0)
    assert scaled(rule, state, full, 0, 6.0) == (ScaleState(), 1)
    assert scaled(rule, state, full, 1, 6.0)[1] == 0, "three is the most"
    assert scaled(rule, state, [load("a", 70, 1)], 0, 6.0) == (ScaleState(), 0), "it is within again"
    state, change = scaled(rule, ScaleState(), idle, 0, 1.0)
    assert (state.above, change) == (1.0, 0) and scaled(rule, state, idle, 0, 6.0)[1] == -1
    assert scaled(rule, state, idle[:1], 0, 6.0)[1] == 0, "one is the fewest"
    assert scaled(rule, ScaleState(), [], 0, 0.0)[1] == 1
    mixed = [load("a", 100, 4), load("b", 0, 0)]
    assert scaled(rule, ScaleState(), mixed, 0, 1.0) == (ScaleState(), 0), "an idle engine is no reason to lose one"
    silent = [load("a", 40, 2), load("b", 0, 2, alive=False), load("c", 0, 2, draining=True)]
    assert scaled(replace(rule, fewest=2), ScaleState(), silent, 0, 1.0)[1] == 0, "a silent one may come back"
    assert spared(full + idle[1:]) == "b" and spared([]) is None


@pytest.mark.parametrize("final", [False, True])
def test_a_sample_that_moves_is_on_both_engines_until_it_has_moved(final: bool) -> None:
    there, moving, settling, back, new = (Request(n, [1], SamplingParams(), 0) for n in range(5))
    opening = [("b", [settling]), ("a", [back, new])]
    arriving = [("b", moving), ("b", settling), ("b", back)]
    going = [("a", there), ("a", moving), ("a", settling), ("a", back)]
    on = by_engine(opening, arriving, going, final)
    assert {name: sorted(each.id for each in requests) for name, requests in on.items()} == (
        {"a": [0, 3, 4], "b": [1, 2]} if final else {"a": [0, 1, 3, 4], "b": [1, 2, 3]}
    )


def test_the_load_of_an_engine_by_the_requests_that_a_front_has_there() -> None:
    def request(number: int, tokens: int, admitted: float | None, priority: int = 0) -> Request:
        made = Request(number, [1] * tokens, SamplingParams(priority=priority), 0, arrival=float(number))
        made.admitted = admitted
        return made

    on = [request(1, 33, 1.5), request(4, 100, None), request(2, 20, None, -1), request(3, 16, 3.5)]
    assert load_of("a", 100, 16, on) == EngineLoad("a", 100, 4, 2, 2, wanted=2, queued=9, urgent=1)
    assert load_of("a", 100, 16, []) == EngineLoad("a", 100, 0, 0, 0)
