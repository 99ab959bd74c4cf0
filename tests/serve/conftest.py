"""One real server on a free port for all tests of this folder: uvicorn in a thread, the demo pair in float32."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from openai import OpenAI

from paceline import LLM, AsyncLLM
from paceline.serve.app import create_app
from paceline.serve.settings import Settings

DEMO: dict[str, Any] = {"dtype": "float32", "memory": "64M"}


@contextmanager
def running(llm: AsyncLLM, settings: Settings) -> Iterator[str]:
    """A server for `llm`; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(llm, settings), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="session")
def engine() -> Iterator[AsyncLLM]:
    llm = AsyncLLM(**DEMO)
    yield llm
    llm.close()


@pytest.fixture(scope="session")
def url(engine: AsyncLLM) -> Iterator[str]:
    with running(engine, Settings(model_name="demo")) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def llm() -> LLM:
    """The same model offline, plain decoding."""
    return LLM(drafter="none", **DEMO)
