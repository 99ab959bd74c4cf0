"""Real arithmetic: tiny random models of every family, float32; the text of every drafter equals plain decoding."""

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from tests.tiny import FAMILIES, tiny_checkpoint

PROMPTS = ["one two three one two three one", "the cat sat on the mat and the cat sat", "a", "to be or not to be, to"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


OFTEN = ("llama", "gemma2", "phi3")
"""Families of every run: the plain one, the one with the most of its own, and the one of fused matrices."""


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in OFTEN else pytest.mark.full) for f in FAMILIES])
def test_speculation_is_invisible(family: str, root: Path) -> None:
    target = tiny_checkpoint(root / family, family, seed=1)
    draft = tiny_checkpoint(root / f"{family}-draft", "llama", seed=2, layers=1)
    llm = LLM(target, draft, dtype="float32", memory="100M", block_size=4, check=True, nodes=4)
    texts = {}
    for drafter in ("none", "ngram", "model"):
        each = [
            SamplingParams(
                temperature=t, top_k=0, seed=7, max_tokens=24, drafter=drafter, repetition_penalty=r, ignore_eos=True
            )
            for t, r in ((0.0, 1.0), (0.0, 1.3), (1.0, 1.0), (0.7, 1.2))
        ]
        outputs = llm.generate(PROMPTS, each, progress=False)
        texts[drafter] = [o.token_ids for o in outputs]
    assert llm.engine.drafters.errors == []
    assert texts["ngram"] == texts["none"]
    assert texts["model"] == texts["none"]


def test_a_perfect_draft_is_always_accepted(root: Path) -> None:
    """The target as its own draft: all nodes are kept, greedy and at temperature 1 (shared noise)."""
    target = tiny_checkpoint(root / "self", "llama", seed=3)
    llm = LLM(target, target, "model", dtype="float32", memory="100M", nodes=4, check=True)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, top_k=0, seed=1, max_tokens=41, ignore_eos=True)
        stats = llm.generate(PROMPTS[0], params, progress=False)[0].stats
        assert stats.acceptance_rate > 0.95
        assert stats.tau > 1.5
