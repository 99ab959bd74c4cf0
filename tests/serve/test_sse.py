"""Clients that go away, over real sockets: their requests are aborted, everybody else's go on."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator

import pytest

from paceline import AsyncLLM
from paceline.core.request import Request
from paceline.serve.errors import ApiError
from paceline.serve.sse import DONE_EVENT, EventStream, event
from tests.patience import PATIENCE_S
from tests.serve.http import post

LONG = {"prompt": "Tom has", "max_tokens": 900, "ignore_eos": True, "seed": 1}


@pytest.fixture
def submitted(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that enters the engine from now on."""
    seen: list[Request] = []
    submit = engine.llm.engine.submit

    def watched(*args: object, **kwargs: object) -> list[Request]:
        requests = submit(*args, **kwargs)  # type: ignore[arg-type]
        seen.extend(requests)
        return requests

    monkeypatch.setattr(engine.llm.engine, "submit", watched)
    return seen


def wire(url: str, body: dict[str, object]) -> socket.socket:
    """A connection on which `body` has been sent."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def until(condition: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_a_client_that_leaves_mid_stream_ends_its_request(url: str, submitted: list[Request]) -> None:
    connection = wire(url, {**LONG, "stream": True, "n": 2})
    while b"data: " not in connection.recv(4096):
        pass
    connection.close()
    until(lambda: submitted and all(r.finish is not None for r in submitted))
    assert {r.finish for r in submitted} == {"abort"} and len(submitted) == 2
    assert all(len(r.output) < 900 for r in submitted)
    assert post(url + "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_a_client_that_leaves_while_it_waits_ends_its_request(url: str, submitted: list[Request]) -> None:
    connection = wire(url, LONG)
    until(lambda: submitted and submitted[0].output)
    connection.close()
    until(lambda: submitted[0].finish is not None)
    assert submitted[0].finish == "abort"


def test_a_client_that_stays_gets_all(url: str, submitted: list[Request]) -> None:
    assert post(url + "/v1/completions", {**LONG, "max_tokens": 30})[0] == 200
    assert [r.finish for r in submitted] == ["length"]


async def test_a_failure_after_the_start_is_an_event_and_closes() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield event({"a": 1})
        raise ApiError(503, "Gone.")

    sent, closed = [], []

    async def send(message: object) -> None:
        sent.append(message)

    async def receive() -> dict[str, str]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    await EventStream(events(), lambda: closed.append(True))({"type": "http"}, receive, send)  # type: ignore[arg-type]
    body = b"".join(m.get("body", b"") for m in sent)  # type: ignore[attr-defined]
    first, failure, done, _ = body.split(b"\n\n")
    assert first == b'data: {"a":1}' and done + b"\n\n" == DONE_EVENT
    assert json.loads(failure.removeprefix(b"data: "))["error"]["message"] == "Gone."
    assert closed == [True]
