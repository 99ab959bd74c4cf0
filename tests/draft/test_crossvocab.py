"""`crossvocab`: surfaces, the translation and its growing cache, and whole engines with two tokenizers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from paceline import LLM, RefusalError, SamplingParams
from paceline.draft import crossvocab
from paceline.draft.crossvocab import FOREIGN, Foreign, Translation
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
    with LLM(models[0], models[1], "crossvocab", max_requests=8, **options) as made:
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
        assert isinstance(foreign, Foreign)
    assert answer.stats.accepted > 0


def test_another_vocabulary_is_refused_with_what_to_do(models: tuple[Path, Path]) -> None:
    with pytest.raises(RefusalError, match="or drafter crossvocab, which translates"):
        LLM(*models, dtype="float32", blocks=60)
    with pytest.raises(RefusalError, match="needs a draft model of any vocabulary"):
        LLM(models[0], drafter="crossvocab", dtype="float32", blocks=60)
