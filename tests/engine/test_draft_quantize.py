"""A draft model in fewer bits than its target: another draft, the same text."""

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.core.component import DRAFT
from paceline.core.errors import InputError, RefusalError
from paceline.engine.budget import memory_of
from paceline.engine.options import Options
from paceline.native.build import library
from tests.tiny import tiny_checkpoint

PROMPTS = ["one two three one two three one", "the cat sat on the mat", "a"]


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
@pytest.mark.parametrize(("quantize", "draft", "form"), [
    ("int8", "int4", "int4"), (None, "int8", "int8"), ("int4", None, "int4"), ("int8", "none", "native"),
])  # fmt: skip
def test_the_text_is_the_targets(tmp_path: Path, quantize: str | None, draft: str | None, form: str) -> None:
    target, small = (tiny_checkpoint(tmp_path / name, "llama", seed=i) for i, name in enumerate(("target", "draft")))
    params = [SamplingParams(temperature=t, max_tokens=24, seed=3) for t in (0.0, 0.8, 0.0)]
    texts = {}
    for drafter in ("none", "model", "topk"):
        with LLM(target, small, drafter, quantize=quantize, draft_quantize=draft, memory="100M", check=True) as llm:
            texts[drafter] = [out.token_ids for out in llm.generate(PROMPTS, params, progress=False)]
            models = llm.engine.model, llm.engine.components[DRAFT]
            packings = [model.describe().split(",")[1].split()[-1] for model in models]
            assert packings == [quantize or "native", form]
    assert texts["model"] == texts["topk"] == texts["none"]


@pytest.mark.skipif(library() is None, reason="needs the native decoder")
def test_the_budget_knows_it(tmp_path: Path) -> None:
    target = tiny_checkpoint(tmp_path / "target", "llama")
    alike, fewer = (memory_of(Options(quantize="int8", draft_quantize=q), target, target) for q in (None, "int4"))
    assert alike.draft and fewer.draft and alike.target == fewer.target == alike.draft
    assert fewer.draft.weights < alike.draft.weights


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    target = tiny_checkpoint(tmp_path / "target", "llama")
    with pytest.raises(InputError, match="draft_quantize is 'int4', but there is no draft model here; leave it out"):
        LLM(target, drafter="ngram", draft_quantize="int4")
    with pytest.raises(RefusalError, match="quantize is 'int3', which is not known; use int8, int4 or none"):
        LLM(target, target, "model", draft_quantize="int3")
