"""One tiny target and draft for all engine tests."""

from pathlib import Path

import pytest

from paceline import LLM
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return tiny_checkpoint(root / "target", seed=1), tiny_checkpoint(root / "draft", seed=2, layers=1)


@pytest.fixture(scope="module")
def llm(pair: tuple[Path, Path]) -> LLM:
    return LLM(*pair, dtype="float32", memory="100M", block_size=4, check=True)
