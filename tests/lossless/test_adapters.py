"""Adapters in the lossless matrix: mutants must die. That texts are those of the model with the adapter in its weights
is what the cells of the matrix show (test_matrix.py)."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from pytest import MonkeyPatch

from paceline.core.params import SamplingParams
from paceline.core.rows import Rows, RowsBuilder
from paceline.draft import early_exit
from paceline.engine.adapters import Adapters
from paceline.engine.own_drafts import OwnDrafts
from tests.lossless.cases import TURNS, Setting, Wish, check
from tests.toy import VOCAB, Toy


def rows_of_the_first(patch: MonkeyPatch) -> None:
    """All rows of a pass have the adapter of the first."""
    build = RowsBuilder.build

    def wrong(self: RowsBuilder, *args: Any, **more: Any) -> Rows:
        self._segments = [each._replace(adapter=self._segments[0].adapter) for each in self._segments]
        return build(self, *args, **more)

    patch.setattr(RowsBuilder, "build", wrong)


def rows_forget_their_adapter(patch: MonkeyPatch) -> None:
    add = RowsBuilder.add
    patch.setattr(RowsBuilder, "add", lambda self, *args, **more: add(self, *args, **{**more, "adapter": 0}))


class Forgetful(RowsBuilder):
    def add(self, *args: Any, **more: Any) -> None:
        super().add(*args, **{**more, "adapter": 0})


def handed_on_without_it(patch: MonkeyPatch) -> None:
    """Drafting through the lower layers forgets the adapter, and these rows go on."""
    patch.setattr(early_exit, "RowsBuilder", Forgetful)


def candidates_without_it(patch: MonkeyPatch) -> None:
    """A candidate's row lacks what the adapter adds, and so does its K/V when it is accepted."""

    def turned(self: Toy, rows: Rows) -> list[int]:
        own = [self.turns.get(it.adapter, self.turn) for it in rows.segments]
        return [turn * (i < it.given) for turn, it in zip(own, rows.segments) for i in range(it.rows)]

    patch.setattr(Toy, "turned", turned)


def delta_of_a_rejected_row(patch: MonkeyPatch) -> None:
    """What the adapter adds to the last candidate, which is rejected more often than not, is added to the first."""
    original = Toy.turned

    def turned(self: Toy, rows: Rows) -> list[int]:
        found = original(self, rows)
        for it in rows.segments:
            if it.nodes > 1:
                first, last = it.start + it.given, it.start + it.rows - 1
                found[first] = (found[first] + int(rows.token[last])) % VOCAB if found[first] else 0
        return found

    patch.setattr(Toy, "turned", turned)


def one_name_for_all(patch: MonkeyPatch) -> None:
    """K/V of an adapter has the name of the model's own."""
    key = Adapters.key
    patch.setattr(Adapters, "key", lambda self, tenant, name, now=None: (tenant, *key(self, tenant, name, now)[1:]))


def nobody_holds_it(patch: MonkeyPatch) -> None:
    """An adapter leaves memory while requests use it, and another has its place."""
    patch.setattr(Adapters, "hold", lambda self, request: None)
    patch.setattr(Adapters, "give_back", lambda self, slot, user: None)


def own_draft_for_all(patch: MonkeyPatch) -> None:
    """One adapter's own draft drafts for another: it costs acceptance, never text."""
    install = OwnDrafts.install

    def wrong(self: OwnDrafts, slot: int, weights: Any) -> int:
        size = install(self, slot, weights)
        self.components["draft"].adapt().install(3 - slot, weights)  # type: ignore[attr-defined]
        return size

    patch.setattr(OwnDrafts, "install", wrong)


def cases(drafter: str) -> None:
    """Requests of the model and of two adapters in one batch, of which some have the same prompt."""
    rng = random.Random(0)
    for case in range(16):
        nodes = {"model": 4, "user": 6, "ngram": 4}
        setting = Setting(
            model_seed=case % 5, draft_noise=0.3, nodes=nodes, max_loras=1 + case % 2, max_requests=2 + case % 3
        )
        prompt = [rng.randrange(VOCAB) for _ in range(9)]
        params = {"temperature": 0.8 * (case % 3 > 0), "drafter": drafter, "max_tokens": 12, "ignore_eos": True}
        names = [rng.choice([*TURNS]) for _ in range(4)]
        made = [SamplingParams(seed=case, adapter=name, **params).resolve({}) for name in names]
        check(setting, [Wish(prompt, each) for each in made])


MUTANTS: list[tuple[Callable[[MonkeyPatch], None], str]] = [
    (rows_of_the_first, "none"),
    (rows_of_the_first, "model"),
    (rows_forget_their_adapter, "user"),
    (handed_on_without_it, "early_exit"),
    (candidates_without_it, "ngram"),
    (delta_of_a_rejected_row, "user"),
    (one_name_for_all, "none"),
    (nobody_holds_it, "model"),
]


@pytest.mark.parametrize(("mutant", "drafter"), MUTANTS, ids=lambda it: getattr(it, "__name__", it))
def test_a_mutant_dies(mutant: Callable[[MonkeyPatch], None], drafter: str, monkeypatch: MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        cases(drafter)


@pytest.mark.full
@pytest.mark.parametrize("drafter", sorted({drafter for _, drafter in MUTANTS} - {"model"}))
def test_without_a_mutant_the_same_cases_pass(drafter: str) -> None:
    cases(drafter)


def test_whose_draft_it_is_changes_no_text(monkeypatch: MonkeyPatch) -> None:
    """Nor does it without this mutant: the cells of the matrix show it."""
    own_draft_for_all(monkeypatch)
    cases("model")
