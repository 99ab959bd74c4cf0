"""One real server on a free port for all tests of this folder: uvicorn in a thread, the demo pair in float32."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openai import OpenAI

from paceline import LLM, AsyncLLM
from paceline.engine.pair import DEMO as DEMO_PAIR
from paceline.serve.app import create_app
from paceline.serve.server import ServedHost
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S

DEMO: dict[str, Any] = {"dtype": "float32", "blocks": 600}


@contextmanager
def running(llm: AsyncLLM | ServedHost, settings: Settings) -> Iterator[str]:
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
    with running(engine, Settings(served_model_name=("demo",))) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


@pytest.fixture(scope="session")
def llm() -> LLM:
    """Offline engine with the served model, plain decoding."""
    return LLM(drafter="none", **DEMO)


HERMES = """{%- if tools %}<|system|>
# Tools: {% for t in tools %}{{ t | tojson }}
{% endfor %}Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|end|>
{% endif %}{%- for m in messages %}<|{{ m.role }}|>
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""
"""A template in the style of Hermes and Qwen; the demo pair's own has no tools."""


@pytest.fixture(scope="session")
def tools_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with a chat template that shows tools."""
    path = tmp_path_factory.mktemp("tools") / "target"
    shutil.copytree(DEMO_PAIR / "target", path)
    (path / "chat_template.jinja").write_text(HERMES)
    return path


@pytest.fixture(scope="session")
def tools_engine(tools_model: Path) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(tools_model, DEMO_PAIR / "draft", **DEMO)
    yield llm
    llm.close()


@pytest.fixture(scope="session")
def tools_client(tools_engine: AsyncLLM) -> Iterator[OpenAI]:
    with running(tools_engine, Settings(served_model_name=("tools",))) as address:
        yield OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


@pytest.fixture(scope="session")
def tools_llm(tools_model: Path) -> LLM:
    """Offline engine with the tools model, plain decoding."""
    return LLM(tools_model, drafter="none", **DEMO)
