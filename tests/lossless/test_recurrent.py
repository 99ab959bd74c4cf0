"""Models with recurrent layers: the text equals plain decoding, and what could go wrong with a state is seen."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from paceline import LLM, SamplingParams
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.model.state import Scan, States
from paceline.verify import VERIFIERS
from tests.lossless.cases import FEATURES, HAVE, Setting, Wish, check, settings_st, wish_st
from tests.tiny import tiny_checkpoint

HERE = HAVE - {"target:program", "draft:program"}
NAMES = [d for d, card in DRAFTERS.items() if refusal(d, card, "exact", VERIFIERS.card("exact"), HERE) is None]
KINDS = [frozenset({"target"}), frozenset({"draft"}), frozenset({"target", "draft"})]


@pytest.mark.parametrize("drafter", NAMES)
def test_cell(drafter: str) -> None:
    """One drafter, any feature: pre-emption, shared prefixes, several samples, forgetful drafters."""

    @settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        settings_st,
        st.lists(wish_st(list(FEATURES), [drafter]), min_size=1, max_size=4),
        st.sampled_from(KINDS),
        st.integers(0, 999),
    )
    def cell(setting: Setting, wishes: list, kinds: frozenset, seed: int) -> None:
        schedule = "chunked" if setting.schedule == "layered" and "target" in kinds else setting.schedule
        check(replace(setting, recurrent=kinds, schedule=schedule), wishes, random.Random(seed) if seed % 2 else None)

    cell()


def fixed_cases(drafter: str) -> None:
    rng = random.Random(0)
    for case in range(20):
        setting = Setting(model_seed=case % 5, draft_noise=0.3, nodes={"user": 8, "ngram": 4}, recurrent=KINDS[2])
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "drafter": drafter, "max_tokens": 20}
        wishes = [
            Wish([rng.randrange(7) for _ in range(6)], SamplingParams(seed=case, **params).resolve({}))
            for _ in range(3)
        ]
        check(setting, wishes)


def rejected_row_kept(patch: MonkeyPatch) -> None:
    """A text's last given row is known by the state of the last candidate of its pass."""
    original = Scan.keep

    def keep(self: Scan, index: int, states: torch.Tensor) -> None:
        last = {self.text[row]: at for at, row in enumerate(self.kept)}
        original(self, index, states[[last[self.text[row]] for row in self.kept]])

    patch.setattr(Scan, "keep", keep)


def advanced_twice(patch: MonkeyPatch) -> None:
    """A pass begins with the state in its first row's own slot, as if that row had been committed already."""
    original = States.scan

    def scan(self: States, rows: Any) -> Scan:
        made = original(self, rows)
        first = {made.text[row]: place for row, place in zip(reversed(made.kept), reversed(made.places))}
        made.begin = [None if place is None else first.get(text, place) for text, place in enumerate(made.begin)]
        return made

    patch.setattr(States, "scan", scan)


def siblings_share(patch: MonkeyPatch) -> None:
    """A candidate goes on from the row before it, a sibling perhaps."""
    original = States.scan

    def scan(self: States, rows: Any) -> Scan:
        made = original(self, rows)
        made.parent = [row - 1 if parent >= 0 else -1 for row, parent in enumerate(made.parent)]
        return made

    patch.setattr(States, "scan", scan)


MUTANTS = [(rejected_row_kept, "ngram"), (advanced_twice, "none"), (siblings_share, "user")]


@pytest.mark.parametrize(("mutant", "drafter"), MUTANTS, ids=lambda m: getattr(m, "__name__", m))
def test_mutant_dies(mutant: Callable[[MonkeyPatch], None], drafter: str, monkeypatch: MonkeyPatch) -> None:
    fixed_cases(drafter)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        fixed_cases(drafter)


def test_lfm2(tmp_path: Path) -> None:
    """Real arithmetic, target and draft with states of their own, in a cache that shares prefixes."""
    target = tiny_checkpoint(tmp_path / "target", "lfm2", seed=1, layers=3)
    draft = tiny_checkpoint(tmp_path / "draft", "lfm2", seed=1, layers=3)
    llm = LLM(target, draft, dtype="float32", memory="100M", block_size=4, check=True, nodes=4)
    texts = dict[str, list[list[int]]]()
    prompts = ["one two three one two three one", "the cat sat on the mat and the cat sat", "a"]
    for drafter in ("none", "ngram", "model", "topk", "dyspec", "lookahead"):
        each = [
            SamplingParams(temperature=t, top_k=0, seed=7, max_tokens=24, drafter=drafter, ignore_eos=True)
            for t in (0.0, 1.0, 0.7)
        ]
        texts[drafter] = [o.token_ids for o in llm.generate(prompts, each, progress=False)]
    assert llm.engine.drafters.errors == []
    assert all(text == texts["none"] for text in texts.values())
