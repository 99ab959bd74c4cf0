"""Drafts of few tokens: other drafts, the same text."""

from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.component import DRAFT
from paceline.core.errors import InputError, RefusalError
from paceline.draft import vocabulary
from paceline.engine.budget import memory_of
from paceline.engine.options import Options
from paceline.native.build import library
from tests.tiny import tiny_checkpoint

PROMPTS = ["one two three one two three one", "the cat sat on the mat", "a"]
PARAMS = [SamplingParams(temperature=t, max_tokens=24, seed=3) for t in (0.0, 0.8, 0.0)]


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize("form", [{}, {"quantize": "int4"}, {"dtype": "float64"}])
def test_the_text_is_the_targets(tmp_path: Path, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "COMPARED_EVERY", 8)
    target, small = (tiny_checkpoint(tmp_path / name, "llama", seed=i) for i, name in enumerate(("target", "draft")))
    with LLM(target, drafter="none", memory="100M", **form) as llm:
        want = [out.token_ids for out in llm.generate(PROMPTS, PARAMS, progress=False)]
    for drafter, given in (("model", small), ("topk", small), ("ngram+topk", small), ("early_exit", None)):
        for words in ("64", "learn:80"):
            with LLM(target, given, drafter, draft_vocab=words, memory="100M", check=True, **form) as llm:
                assert [out.token_ids for out in llm.generate(PROMPTS, PARAMS, progress=False)] == want
                model: Any = llm.engine.components[DRAFT] if given else llm.engine.model
                learned = llm.engine.vocabulary
                assert len(model.narrowed.words) == (64 if learned is None else 80)
                assert (learned is not None) == words.startswith("learn")
                if learned is not None:
                    assert learned.changes and model.narrowed.words.tolist() == learned.words.tolist()
                    learned.counts.zero_()
                    private = SamplingParams(temperature=0.0, max_tokens=8, tenant="me")
                    llm.generate(PROMPTS, private, progress=False)
                    assert not learned.counts.any()  # nobody else profits from it


def test_the_budget_knows_it(tmp_path: Path) -> None:
    target = tiny_checkpoint(tmp_path / "target", "llama")
    whole, narrow = (memory_of(Options(draft_vocab=words), target, target) for words in (None, "64"))
    assert narrow.rest > whole.rest


def test_what_has_no_head_to_draft_with_is_refused(tmp_path: Path) -> None:
    target = tiny_checkpoint(tmp_path / "target", "llama")
    with pytest.raises(RefusalError, match="drafter 'ngram' has no head to draft with"):
        LLM(target, drafter="ngram", draft_vocab="64")
    with pytest.raises(RefusalError, match="is of another vocabulary"):
        LLM(target, target, "crossvocab", draft_vocab="64")
    with pytest.raises(InputError, match="draft_vocab is 'few'"):
        LLM(target, target, "model", draft_vocab="few")
