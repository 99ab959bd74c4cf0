"""Texts on `device="cuda"`, by Triton's interpreter where there is no GPU: a drafter of each kind says what plain
decoding says."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from paceline import LLM, SamplingParams
from tests.tiny import tiny_checkpoint

DRAFTERS = ["ngram", "suffix", "model", "topk", "dyspec", "early_exit", "swift", "lookahead", "ngram+model", "auto"]
"""From the text, by a draft model as a chain and as trees, by the model's own layers, by probes, and merged."""
PROMPTS = ["Tom has 3 apples", "def add(a, b):\n"]
WISHES = [
    SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=3, max_tokens=8, ignore_eos=True),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen3", layers=3)


def texts(checkpoint: Path, drafter: str) -> list[list[list[int]]]:
    llm = LLM(checkpoint, checkpoint, dtype="float32", device="cuda", blocks=64, block_size=4, drafter=drafter, nodes=4)
    return [[out.token_ids for out in llm.generate(PROMPTS, wish)] for wish in WISHES]


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> list[list[list[int]]]:
    """Each prompt by itself, without a drafter."""
    llm = LLM(checkpoint, dtype="float32", device="cuda", blocks=64, block_size=4, drafter="none")
    return [[llm.generate([prompt], wish)[0].token_ids for prompt in PROMPTS] for wish in WISHES]


@pytest.mark.full
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_those_of_plain_decoding(checkpoint: Path, plain: list[list[list[int]]], drafter: str) -> None:
    assert texts(checkpoint, drafter) == plain
