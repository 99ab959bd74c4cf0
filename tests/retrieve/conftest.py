"""A small index of all kinds, and a tiny model whose text depends on its passage."""

from collections.abc import Iterator

import pytest

from paceline import LLM, AsyncLLM
from paceline.retrieve import PassageIndex, build
from tests.retrieve.scenes import Hashed, folder
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="package")
def index(tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    root = tmp_path_factory.mktemp("index")
    return build(folder(root / "texts"), root / "out", Hashed(), words=20)


@pytest.fixture(scope="package")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)
    with LLM(path, dtype="float32", blocks=400, block_size=8, check=True) as made:
        yield made


@pytest.fixture(scope="package")
def engine() -> Iterator[AsyncLLM]:
    """The demo pair behind the HTTP tests."""
    made = AsyncLLM(dtype="float32", blocks=200)
    yield made
    made.close()
