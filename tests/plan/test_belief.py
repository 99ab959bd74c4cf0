"""Beliefs: conditional rates without bias, bounds, texts and their drafter, and from one start to the next."""

import json
import random

import pytest

from paceline.plan.belief import HALF_LIFE, LOOKUP, MODEL, RECALLED, Beliefs

KEY = ("model", 0)


def fed(
    beliefs: Beliefs, rate: float, texts: int, rounds: int = 24, deep: int = 4, seed: int = 0, first: int = 0
) -> None:
    rng = random.Random(seed)
    for text in range(first, first + texts):
        for _ in range(rounds):
            kept = 0
            while kept < deep and rng.random() < rate:
                kept += 1
            beliefs.now += 1
            beliefs.observe(text, KEY, deep, [1] * deep, [int(d < kept) for d in range(deep)])


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_a_depth_counts_only_where_the_one_above_was_kept(rate: float) -> None:
    """Kept over offered would be far below the rate that each depth has."""
    beliefs = Beliefs()
    fed(beliefs, rate, 20)
    chance = beliefs.expected(None, KEY, 4).chance
    assert chance == pytest.approx([rate] * 4, abs=0.12)
    assert beliefs.expected(None, KEY, 4).kept[3] == pytest.approx(rate**4, abs=0.12)


def test_bounds_close_as_rounds_come_and_open_as_time_goes_by() -> None:
    beliefs = Beliefs(priors={"model": (MODEL, False)})

    def width() -> float:
        low, mean, high = (beliefs.expected(None, KEY, 1, bound).chance[0] for bound in (-1, 0, 1))
        assert 0 < low < mean < high < 1
        return high - low

    unknown = width()
    assert beliefs.expected(None, KEY, 1).chance[0] == MODEL > LOOKUP
    fed(beliefs, 0.7, 20)
    known = width()
    assert known < unknown
    beliefs.now += round(8 * HALF_LIFE)
    assert known < width() <= unknown + 1e-9


def test_a_text_unlike_others_is_told_apart_soon() -> None:
    beliefs = Beliefs()
    fed(beliefs, 0.8, 20)
    for _ in range(8):
        beliefs.now += 1
        beliefs.observe(99, KEY, 4, [1] * 4, [])
    assert beliefs.expected(99, KEY, 4).chance[0] < 0.15 < 0.6 < beliefs.expected(None, KEY, 4).chance[0]
    beliefs.drop(99)
    assert beliefs.expected(99, KEY, 4).chance == beliefs.expected(None, KEY, 4).chance


def test_a_text_that_differs_is_known_by_its_own_rounds() -> None:
    beliefs = Beliefs()
    fed(beliefs, 0.9, 20)
    fed(beliefs, 0.0, 1, rounds=12, first=30)
    assert beliefs.expected(30, KEY, 1).chance[0] < 0.4 < beliefs.expected(None, KEY, 1).chance[0]


def test_what_is_recalled_says_what_was_known_and_gives_way() -> None:
    known, later = Beliefs(), Beliefs()
    fed(known, 0.75, 20)
    later.recall(json.loads(json.dumps(known.dump())))
    before, after = (it.expected(None, KEY, 3) for it in (known, later))
    assert after.chance == pytest.approx(before.chance, abs=0.05)
    assert later.of[KEY].known(0) <= RECALLED * 1.01
    again = Beliefs()
    again.recall(later.dump())
    assert again.dump() == later.dump(), "a log's beginning repeats"
    fed(later, 0.02, 4, first=90)
    assert later.expected(None, KEY, 3).chance[0] < 0.35


def test_what_is_recalled_before_a_drafter_is_known_has_its_prior() -> None:
    """A policy is given what earlier starts learned, and drafters are enrolled afterwards."""
    known, early, late = Beliefs(), Beliefs(), Beliefs()
    fed(known, 0.1, 20)
    dumped = json.loads(json.dumps(known.dump()))
    early.recall(dumped)
    early.enter(1, "tenant")
    early.enrol(KEY[0], LOOKUP, True)
    late.enrol(KEY[0], LOOKUP, True)
    late.recall(dumped)
    want = late.expected(None, KEY, 4)
    assert early.expected(None, KEY, 4) == early.known_to(1).expected(None, KEY, 4) == want
    assert want.chance[0] < 0.2


@pytest.mark.parametrize(
    "damage", [{"tries": [1.0]}, {"hits": [9.0] * 16}, {"asked": [float("nan")] * 16}, {"size": None}]
)
def test_counts_that_cannot_be_are_refused(damage: dict[str, object]) -> None:
    beliefs = Beliefs()
    fed(beliefs, 0.5, 1, rounds=4)
    [entry] = beliefs.dump()
    with pytest.raises((ValueError, TypeError)):
        Beliefs().recall([{**entry, **damage}])
