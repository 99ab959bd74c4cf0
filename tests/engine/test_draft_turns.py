"""Drafts of a drafter that a client names: a step of several clients has few of dear ones, and no text changes."""

import random
from dataclasses import replace

import pytest

from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.engine.draft_turns import DraftTurns
from paceline.sample.mask_turns import EXTRA_STEP_S
from tests.lossless.cases import Setting, Wish, check
from tests.sample.cases import request


def items(client: str, count: int, drafter: str = "dear", arms: tuple[str, ...] = ()) -> list[Item]:
    made = [replace(request(i, client=client), drafter=drafter, arms=arms) for i in range(count)]
    return [Item(each, 1, 4, drafter, "exact") for each in made]


def step(turns: DraftTurns, found: list[Item], each: float, fixed: float = 0.0, target: float = 0.0) -> int:
    """Drafts that were made; each takes `each` seconds."""
    turns.begin(found)
    made = sum([turns.affords(item) for item in found if item.drafter == "dear"])
    turns.end({"dear": made and fixed + made * each}, target)
    return made


@pytest.mark.parametrize(("each", "fixed"), [(0.02, 0.0), (0.3, 0.0), (0.002, 0.5), (0.001, 0.0)])
def test_dear_drafts_take_their_share(each: float, fixed: float) -> None:
    turns, other = DraftTurns("none"), items("b", 1, "none")
    made = [step(turns, [*items("a", 64), *other], each, fixed) for _ in range(400)]
    spent = sum(count and fixed + count * each for count in made)
    assert spent <= 400 * EXTRA_STEP_S + fixed + 4 * each + EXTRA_STEP_S
    assert spent >= 0.4 * 400 * EXTRA_STEP_S, "what is there to be had is used"
    assert max(made[1:]) * each <= max(each, 2 * EXTRA_STEP_S)


def test_share_is_half_of_the_targets_pass_where_that_takes_longer() -> None:
    turns, other = DraftTurns("none"), items("b", 1, "none")
    made = [step(turns, [*items("a", 8), *other], 0.02, target=0.5) for _ in range(10)]
    assert made[3:] == [8] * 7


def test_one_client_alone_may_take_more() -> None:
    turns = DraftTurns("none")
    assert [step(turns, items("a", 4), 0.02) for _ in range(10)] == [3, *[4] * 9]


@pytest.mark.parametrize(
    "found", [items("a", 8, "none"), items("", 8), items("a", 8, "own"), items("a", 8, arms=("x", "y"))]
)
def test_drafts_that_no_client_named_are_not_held_up(found: list[Item]) -> None:
    turns, other = DraftTurns("own"), items("b", 1, "none")
    for _ in range(4):
        turns.begin([*found, *other])
        assert all(turns.affords(item) for item in found)
        turns.end({"dear": 9.0, "own": 9.0}, 0.0)


def test_clients_do_not_pay_for_one_another() -> None:
    turns, dear, cheap = DraftTurns("none"), items("a", 8), items("b", 1, "cheap")
    for _ in range(20):
        turns.begin([*dear, *cheap])
        made = [turns.affords(item) for item in dear]
        assert turns.affords(cheap[0])
        turns.end({"dear": 0.5 * any(made), "cheap": 0.001}, 0.0)


@pytest.mark.parametrize("drafter", ["user", "ngram", "model"])
def test_no_text_changes_and_few_drafts_are_made(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end = DraftTurns.end
    monkeypatch.setattr(DraftTurns, "end", lambda self, seconds, target: end(self, dict.fromkeys(seconds, 0.5), 0.0))

    def drafted(*clients: str) -> int:
        params = SamplingParams(temperature=1.0, drafter=drafter, max_tokens=16, ignore_eos=True)
        wishes = [
            Wish([i, 1, 2], replace(params, seed=i, client=client).resolve({})) for i, client in enumerate(clients * 3)
        ]
        engine = check(Setting(max_requests=8, row_budget=33), wishes, random.Random(0))
        return sum(each.drafted for each in engine.desk.totals.drafters.values())

    few = drafted("a", "b")
    assert few < drafted("", "") / 4 and (few or drafter == "ngram")  # which finds little to guess here
