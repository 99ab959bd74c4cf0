"""Models with recurrent layers: the text equals plain decoding, and what could go wrong with a state is seen."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from paceline import LLM, SamplingParams
from paceline.cache.lease import Lease
from paceline.core.errors import IntegrityError
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.model.state import Part, Scan, States
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
        st.sampled_from([None, 1, 3]),
    )
    def cell(setting: Setting, wishes: list, kinds: frozenset, seed: int, kept: int | None) -> None:
        schedule = "chunked" if setting.schedule == "layered" and "target" in kinds else setting.schedule
        check(
            replace(setting, recurrent=kinds, schedule=schedule, snapshots=kept),
            wishes,
            random.Random(seed) if seed % 2 else None,
        )

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


def changed(patch: MonkeyPatch, change: Callable[[States, Part], None]) -> None:
    """Each text of each scan is changed before it is computed."""
    original = States.scan

    def scan(self: States, rows: Any) -> Scan:
        made = original(self, rows)
        for part in made.parts:
            change(self, part)
        return made

    patch.setattr(States, "scan", scan)


def before_the_verdict(patch: MonkeyPatch) -> None:
    """The state behind a text's last given row is that behind its last candidate."""

    def change(states: States, part: Part) -> None:
        last = part.rows - 1
        part.anchors = [(last if row == part.chain - 1 else row, place) for row, place in part.anchors]

    changed(patch, change)


def wrong_length(patch: MonkeyPatch) -> None:
    """The state that lies with a block lacks the block's last row."""

    def change(states: States, part: Part) -> None:
        ends = {place for slot, place in states.tips.items() if states.lasting(slot)}
        part.anchors = [(max(row - (place in ends), 0), place) for row, place in part.anchors]

    changed(patch, change)


def one_row_short(patch: MonkeyPatch) -> None:
    """The last accepted row is not replayed."""
    original = States.chain

    def chain(self: States, slot: int) -> tuple[int | None, list[int]]:
        anchor, since = original(self, slot)
        return anchor, since[:-1]

    patch.setattr(States, "chain", chain)


def advanced_twice(patch: MonkeyPatch) -> None:
    """The first accepted row is replayed twice."""
    original = States.chain

    def chain(self: States, slot: int) -> tuple[int | None, list[int]]:
        anchor, since = original(self, slot)
        return anchor, since[:1] + since

    patch.setattr(States, "chain", chain)


def siblings_share(patch: MonkeyPatch) -> None:
    """A candidate goes on from the row before it, a sibling perhaps."""

    def change(states: States, part: Part) -> None:
        part.parents = [rank - 1 for rank in range(len(part.parents))]

    changed(patch, change)


def stale_slot(patch: MonkeyPatch) -> None:
    """An accepted row that is moved leaves its record behind."""
    patch.setattr(States, "move", lambda self, source, target: None)


MUTANTS = [
    (before_the_verdict, "ngram"),
    (wrong_length, "none"),
    (one_row_short, "ngram"),
    (advanced_twice, "ngram"),
    (siblings_share, "user"),
    (stale_slot, "user"),
]


@pytest.mark.parametrize(("mutant", "drafter"), MUTANTS, ids=lambda m: getattr(m, "__name__", m))
def test_mutant_dies(mutant: Callable[[MonkeyPatch], None], drafter: str, monkeypatch: MonkeyPatch) -> None:
    fixed_cases(drafter)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError)):
        fixed_cases(drafter)


def in_a_budget(snapshots: int) -> Any:
    """Texts that begin alike, one after the other in one engine: each is what it is alone."""
    setting = Setting(model_seed=3, nodes={"ngram": 4}, recurrent=KINDS[0], snapshots=snapshots, row_budget=8)
    engine, common = setting.engine(), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 2, 4, 6]
    for tail in ([1], [1, 2], [3, 5, 1, 2, 3, 4, 5], [1, 6], [3, 5, 1, 2, 3, 4, 6]):
        params = SamplingParams(seed=1, temperature=1.0, top_k=0, top_p=1.0, max_tokens=12, drafter="ngram").resolve({})
        [asked] = engine.submit([*common, *tail], params)
        [alone] = (other := replace(setting, snapshots=None, prefix_cache=False).engine()).submit(asked.prompt, params)
        for it in (engine, other):
            while it.busy:
                it.step()
        assert asked.output == alone.output
        assert len(engine.model.states.tips) <= snapshots + 2  # of the text that ran: its last row, and what it replays
    return engine.cache.pool


@pytest.mark.parametrize("snapshots", [1, 2])
def test_states_in_a_budget(snapshots: int) -> None:
    """Evicted states are computed again from the last one that is kept; those of a shared beginning are found."""
    pool = in_a_budget(snapshots)
    assert pool.snapshots.evictions > 0 and pool.hits > 0


def test_an_evicted_state_is_never_read(monkeypatch: MonkeyPatch) -> None:
    """The mutant: a prefix ends where a block is found, whether its state is kept or not."""
    monkeypatch.setattr(Lease, "goes_on", lambda self, length: length // self.pool.block_size * self.pool.block_size)
    with pytest.raises((AssertionError, IntegrityError)):
        in_a_budget(2)


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
