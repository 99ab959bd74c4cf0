"""Engines as Ray actors (extra `paceline[cluster]`). Ray has the processes, the transport and the restarts."""

import asyncio
from typing import Any

from paceline.cluster.control.engines import REPLY_TIMEOUT_S, EngineLost, Reply
from paceline.model.spread.rays import ray_for

READY_S = 5.0
"""Longest wait for an actor's word that it is ready; a new one loads longer, and is asked again."""


class ActorHost:
    """What runs in the actor: an engine behind the application that `paceline serve` has, asked without a socket."""

    def __init__(self, options: dict[str, Any], name: str, slow: float = 0.0) -> None:
        """`options` as for `AsyncLLM`; `slow`: factor: each call waits for this multiple of its own duration
        afterwards, so that an engine can be made slow on purpose."""
        from paceline import AsyncLLM
        from paceline.serve.app import create_app
        from paceline.serve.settings import Settings

        self._llm = AsyncLLM(**options)
        self._app = create_app(self._llm, Settings(served_model_name=(name,)))
        self._slow = slow

    async def ask(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        began = asyncio.get_running_loop().time()
        reply = await through(self._app, "/v1" + path, body)
        await asyncio.sleep(self._slow * (asyncio.get_running_loop().time() - began))
        return reply

    async def ready(self) -> bool:
        return True

    def leave(self) -> None:
        """Dies at once, as a crash would."""
        import os

        os._exit(1)


async def through(app: Any, path: str, body: bytes | None) -> tuple[int, bytes]:
    """One request to an ASGI application: status and body."""
    status, data = 500, b""
    sent = asyncio.Event()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body or b"")).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": "GET" if body is None else "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers], "client": ("actor", 0), "server": ("actor", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        if sent.is_set():
            await asyncio.Event().wait()  # nobody hangs up
        sent.set()
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, data
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            data += message.get("body", b"")

    await app(scope, receive, send)
    return status, data


class RayEngine:
    """An actor that Ray restarts as often as it dies; a call that was lost is given back, not repeated."""

    def __init__(
        self, options: dict[str, Any], name: str, slow: float = 0.0, cpus: float = 1.0, timeout: float = REPLY_TIMEOUT_S
    ) -> None:
        ray = ray_for("Engines as actors")
        self._timeout = timeout
        remote = ray.remote(num_cpus=cpus, max_restarts=-1, max_task_retries=0, max_concurrency=64)(ActorHost)
        self.actor = remote.remote(options, name, slow)

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        try:
            status, data = await asyncio.wait_for(self.actor.ask.remote(path, body), self._timeout)
        except TimeoutError:
            raise EngineLost(f"no answer within {self._timeout:g} s") from None
        except ray_for("Engines as actors").exceptions.RayError as error:
            raise EngineLost(str(error).splitlines()[0]) from error
        return Reply(status, data)

    async def alive(self) -> bool:
        try:
            return bool(await asyncio.wait_for(self.actor.ready.remote(), READY_S))
        except (TimeoutError, ray_for("Engines as actors").exceptions.RayError):
            return False
