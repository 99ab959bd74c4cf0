"""Tiny checkpoints with tokenizers, and prompts of our own."""

import json
from pathlib import Path

import pytest

from tests.tiny import tiny_checkpoint

QUESTIONS = ["Tom has 3 apples and buys 4 more.", "def add(a, b):", "The quick brown fox jumps over the"]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("pair") / "target", seed=0)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draft model with the target's weights: its drafts are accepted, so accepted runs are tested."""
    return tiny_checkpoint(tmp_path_factory.mktemp("pair") / "draft", seed=0)


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"question": q}) for q in QUESTIONS), encoding="utf-8")
    return path
