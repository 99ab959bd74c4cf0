"""Recurrent and hybrid models in an engine: what transformers would write, whoever drafts, and whatever happens."""

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from tests.oracle.cases import Oracle
from tests.tiny import tiny_checkpoint

FAMILIES = ["mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "qwen3_next", "qwen3_5_text"]
DRAFTERS = ("none", "ngram", "model", "topk", "dyspec", "ngram+topk", "auto")
NEAR_TIE = 1e-3
"""Logits that are closer than this are a tie: either token is right."""
PROMPTS = [[5, 9, 70, 5, 9, 70, 5], [3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4, 5], [40]]


def greedy(drafter: str, length: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=length, drafter=drafter, ignore_eos=True)


def ties(oracle: Oracle, prompt: list[int], text: list[int]) -> int:
    """Near-ties among the tokens of a text; AssertionError for one that transformers would not choose."""
    logits = oracle.logits(prompt + text)[len(prompt) - 1 : -1]
    chosen = logits.gather(1, logits.new_tensor(text).long()[:, None])[:, 0]
    gap = logits.max(1).values - chosen
    assert gap.max() < NEAR_TIE
    return int((gap > 0).sum())


@pytest.mark.parametrize(
    "family",
    [name if name == "qwen3_5_text" else pytest.param(name, marks=pytest.mark.full) for name in FAMILIES],
)
def test_greedy_texts(family: str, tmp_path: Path) -> None:
    """40 tokens by lookups, chains, trees, their merger and `auto`, in blocks of 4, prefixes shared."""
    layers = 2 if family == "granitemoehybrid" else 3
    target, draft = (tiny_checkpoint(tmp_path / name, family, seed=1, layers=layers) for name in ("target", "draft"))
    drafters = DRAFTERS if family == "bamba" else DRAFTERS[:-1]  # one measures the times of its steps
    length = 24 if family == "qwen3_5_text" else 40
    llm = LLM(target, draft, dtype="float32", memory="200M", block_size=4, check=True, nodes=64, drafter=drafters[-1])
    texts = {d: [o.token_ids for o in llm.generate(PROMPTS, greedy(d, length), progress=False)] for d in drafters}
    assert llm.engine.drafters.errors == []
    oracle = Oracle(target)
    counts = [ties(oracle, prompt, text) for each in texts.values() for prompt, text in zip(PROMPTS, each)]
    assert all(text == texts["none"] for text in texts.values()) or sum(counts)


@pytest.mark.parametrize("family", ["falcon_h1", "qwen3_next"])
def test_crowded_engine(family: str, tmp_path: Path) -> None:
    """Requests that share a prefix, two samples of each, in a cache for two of them: pre-emption, forks and prefix hits
    leave each text what it is alone."""
    path = tiny_checkpoint(tmp_path, family, seed=1)
    prompts = [[*range(3, 23), last] for last in (5, 9, 23)]
    asked = SamplingParams(temperature=0.8, seed=4, n=2, max_tokens=12, drafter="ngram", ignore_eos=True)
    alone = LLM(path, dtype="float32", blocks=64, block_size=4, prefix_cache=False, drafter="ngram")
    texts = [[sample.token_ids for sample in it.outputs] for it in alone.generate(prompts, asked, progress=False)]
    llm = LLM(
        path, dtype="float32", blocks=20, block_size=4, check=True, max_requests=6, row_budget=16, drafter="ngram"
    )
    for _ in range(2):
        made = llm.generate(prompts, asked, progress=False)
        assert [[sample.token_ids for sample in it.outputs] for it in made] == texts
    assert llm.engine.cache.pool.hits > 0 and llm.engine.desk.totals.preemptions > 0
