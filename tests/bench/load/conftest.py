"""The real server, on the bundled demo pair."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.engine.async_llm import AsyncLLM
from paceline.serve.app import create_app


class Counted:
    """An application, and how many completions were asked of it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.count = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.count += scope.get("method") == "POST"
        await self.app(scope, receive, send)


@pytest.fixture(scope="session")
def llm() -> Iterator[AsyncLLM]:
    own = AsyncLLM(dtype="float32", blocks=600, max_requests=8)
    yield own
    own.close()


@pytest.fixture(scope="session")
def served(llm: AsyncLLM) -> Counted:
    return Counted(create_app(llm))


@pytest.fixture(scope="session")
def url(served: Counted) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
