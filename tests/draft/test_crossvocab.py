"""`crossvocab`: surfaces, the translation and its growing cache, and whole engines with two tokenizers."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from paceline import LLM, RefusalError, SamplingParams
from paceline.core.errors import InputError
from paceline.draft import crossvocab, online
from paceline.draft.crossvocab import FOREIGN, ForeignModel, Translation
from paceline.draft.online import Adapter
from paceline.draft.surfaces import Surfaces
from tests.tiny import CORPUS, tiny_checkpoint, trained

SMALL, LARGE = (PreTrainedTokenizerFast(tokenizer_object=trained(size)) for size in (290, 400))
"""A draft's tokenizer, and a target's, which has longer tokens."""


@pytest.fixture
def translation() -> Translation:
    return Translation(Surfaces(SMALL, len(SMALL)), Surfaces(LARGE, len(LARGE)))


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30))
def test_bytes_are_the_text_whatever_it_is(text: str) -> None:
    for tokenizer in (SMALL, LARGE):
        it = Surfaces(tokenizer, len(tokenizer))
        ids = it.spell(text.encode("utf-8", "replace"))
        assert b"".join(it.shown(token) for token in ids) == text.encode("utf-8", "replace")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 289), max_size=12), st.booleans())
def test_a_translation_has_the_bytes_of_what_it_translates(drafted: list[int], learned: bool) -> None:
    it = Translation(Surfaces(SMALL, len(SMALL)), Surfaces(LARGE, len(LARGE)))
    for token in range(len(LARGE)) if learned else ():
        it.learn(token)
    made = it.of(drafted)
    text, whole = b"".join(it.target.shown(t) for t in made), b"".join(it.own.shown(t) for t in drafted)
    assert whole.startswith(text) and (text == whole or None in [it.one.get(token) for token in drafted])


def test_a_false_rejection_becomes_one_token_after_one_insert(translation: Translation) -> None:
    token = next(t for s, t in translation.target.ids.items() if s and s not in translation.own.ids)
    surface = translation.target.of(token)
    assert surface is not None
    drafted = translation.own.spell(surface)
    assert len(drafted) > 1 and len(translation.of(drafted)) > 1
    translation.learn(token)
    assert translation.of(drafted) == [token]
    assert translation.of([*drafted, *drafted]) == [token, token]


def test_one_tokenizer_needs_no_runs() -> None:
    it = Translation(Surfaces(LARGE, len(LARGE)), Surfaces(LARGE, len(LARGE)))
    for token in range(len(LARGE)):
        it.learn(token)
    ids = LARGE.encode(CORPUS, add_special_tokens=False)
    assert not it.runs and it.of(ids) == ids


def test_the_cache_is_bounded(translation: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossvocab, "MOST_RUNS", 3)
    for token in range(len(LARGE)):
        translation.learn(token)
    assert len(translation.runs) == 3


def test_a_text_that_ends_within_a_character_is_not_spelt(translation: Translation) -> None:
    assert translation.own.spell("東".encode()[:2]) == []
    assert translation.own.spell(b"a\xffb") != []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return tiny_checkpoint(root / "target", vocab=400, seed=1), tiny_checkpoint(root / "draft", "qwen2", vocab=300)


@pytest.fixture(scope="module")
def llm(models: tuple[Path, Path]) -> Iterator[LLM]:
    options: dict[str, Any] = {"dtype": "float32", "blocks": 60, "block_size": 4, "row_budget": 24, "check": True}
    with LLM(models[0], models[1], "crossvocab", max_requests=8, nodes=4, **options) as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_the_target_s(llm: LLM, temperature: float) -> None:
    prompts = ["Tom has 3 apples", "def add(a, b):", "Größe 🙂 東京", "a", CORPUS[:60]]
    each = [SamplingParams(temperature=temperature, seed=i, max_tokens=24, ignore_eos=True) for i in range(5)]
    want = llm.generate(prompts, [replace(params, drafter="none") for params in each], progress=False)
    got = llm.generate(prompts, each, progress=False)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in want]
    assert llm.engine.drafters.errors == [] and sum(answer.stats.drafted for answer in got) > 0
    cache = llm.engine.components[FOREIGN].cache  # type: ignore[attr-defined]
    cache.check_integrity()
    assert cache.room() == cache.num_blocks, "no lease is left"


def test_a_draft_of_the_same_model_is_accepted(models: tuple[Path, Path]) -> None:
    with LLM(models[0], models[0], "crossvocab", dtype="float32", blocks=60, block_size=4, nodes=4) as llm:
        wish = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        [answer] = llm.generate("Tom has 3 apples", wish, progress=False)
        foreign = llm.engine.components[FOREIGN]
        assert isinstance(foreign, ForeignModel)
    assert answer.stats.accepted > 0


def test_another_vocabulary_is_refused_with_what_to_do(models: tuple[Path, Path]) -> None:
    with pytest.raises(RefusalError, match="or drafter crossvocab, which translates"):
        LLM(*models, dtype="float32", blocks=60)
    with pytest.raises(RefusalError, match="needs a draft model of any vocabulary"):
        LLM(models[0], drafter="crossvocab", dtype="float32", blocks=60)


# -- learning while it serves ------------------------------------------------------------------------------------------


def answers(llm: LLM, count: int) -> list[list[int]]:
    prompts = ["Tom has 3 apples", "def add(a, b):", CORPUS[:60], "one two three"][:count]
    each = [SamplingParams(temperature=0, seed=i, max_tokens=24, ignore_eos=True) for i in range(count)]
    return [answer.token_ids for answer in llm.generate(prompts, each, progress=False)]


def test_an_adapter_learns_what_follows_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is served once it names more tokens of new rows than the model alone, not where there is nothing to find."""
    monkeypatch.setattr(online, "EPOCHS", 1000)
    stream = torch.Generator().manual_seed(0)
    table = torch.randn(11, 24, generator=stream)
    for follows, served in ((torch.randn(11, 24, generator=stream), True), (None, False)):
        adapter = Adapter(lambda hidden: hidden @ table.T, 24, seed=1)
        hidden = torch.randn(64, 24, generator=stream)
        assert not adapter.step() and adapter(hidden) is hidden
        for _ in range(40):
            rows = torch.randn(64, 24, generator=stream)
            adapter.add(rows, (rows @ (table if follows is None else follows).T).argmax(-1), torch.ones(64))
            for _ in range(10):
                assert adapter.step()
        assert (adapter.served is not None) == served and adapter.steps == 400
        assert (adapter(hidden) is not hidden) == served


def test_a_short_stream_is_not_learned_by_heart() -> None:
    adapter = Adapter(lambda hidden: hidden, 8)
    adapter.add(torch.randn(40, 8), torch.zeros(40, dtype=torch.int64), torch.ones(40))
    assert sum(adapter.step() for _ in range(50)) == online.EPOCHS * 40 // online.STEP_ROWS


def test_rows_that_wait_are_bounded() -> None:
    adapter = Adapter(lambda hidden: hidden, 8, most=480)
    for _ in range(5):
        adapter.add(torch.randn(6, 8), torch.zeros(6, dtype=torch.int64), torch.ones(6))
    assert len(adapter.token) == adapter.rows == 10 and len(adapter.hidden) == 10


def test_it_learns_on_line_and_the_text_stays(models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair that it is taught: a state of the draft model over the text so far, and the id that follows there."""
    taught: list[tuple[torch.Tensor, torch.Tensor]] = []
    add = Adapter.add

    def watched(self: Adapter, hidden: torch.Tensor, token: torch.Tensor, weight: torch.Tensor) -> None:
        taught.append((hidden, token))
        add(self, hidden, token, weight)

    monkeypatch.setattr(Adapter, "add", watched)
    options: dict[str, Any] = {"dtype": "float32", "blocks": 60, "block_size": 4, "row_budget": 24, "check": True}
    with LLM(*models, "crossvocab", online=0.5, **options) as llm:
        wish = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, drafter="none")
        plain = [answer.token_ids for answer in llm.generate(["Tom has 3 apples"], wish, progress=False)]
        assert answers(llm, 1) == plain and llm.engine.drafters.errors == []
        foreign: Any = llm.engine.components[FOREIGN]
        adapter = foreign.adapter
        deadline = time.monotonic() + 30
        while adapter.steps < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert adapter.steps >= 3 and float(adapter.up.detach().abs().sum()) > 0
        whole = (*llm.text.encode("Tom has 3 apples"), *plain[0])
        said = foreign.own.spell(b"".join(map(foreign.target.shown, whole)), start=True)
        assert answers(llm, 4)[0] == plain[0] and llm.engine.drafters.errors == []
    ids = torch.cat([token for _, token in taught[:60]]).tolist()
    text = ",".join(map(str, said))
    assert len(ids) > 5 and ",".join(map(str, ids[:5])) in text


def test_off_it_has_no_adapter_and_no_thread(llm: LLM) -> None:
    foreign: Any = llm.engine.components[FOREIGN]
    assert foreign.adapter is None and answers(llm, 2)
    assert foreign.adapter is None


def test_a_share_that_is_none_and_a_drafter_that_does_not_learn(models: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="share of a core"):
        LLM(*models, "crossvocab", dtype="float32", blocks=60, online=1.5)
    with pytest.raises(RefusalError, match="only the drafter crossvocab learns"):
        LLM(models[0], drafter="ngram", dtype="float32", blocks=60, online=0.5)
