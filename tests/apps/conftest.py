"""One real server with the demo pair for all applications' tests."""

from collections.abc import Iterator

import pytest

from paceline import AsyncLLM
from paceline.serve.settings import Settings
from tests.serve.conftest import DEMO, running


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    llm = AsyncLLM(**DEMO)
    with running(llm, Settings(served_model_name=("demo",))) as address:
        yield address
    llm.close()
