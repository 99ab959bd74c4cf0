"""The layer around the routes: ids, keys, bodies, limits, time."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.serve.guard import request_id
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import running

LONG = {
    "prompt": "Tom has 3 apples.",
    "max_tokens": 900,
    "n": 8,
    "ignore_eos": True,
    "speculation": {"drafter": "none"},
}
SHORT = {"prompt": "Tom has 3 apples.", "max_tokens": 4}


@pytest.fixture(scope="module")
def strict(engine: AsyncLLM) -> Iterator[httpx2.Client]:
    """A server with every limit set low."""
    settings = Settings(
        api_keys=("sk-one", "sk-two"), max_body_bytes=10_000, max_prompt_tokens=20, max_output_tokens=30,
        request_timeout=30, cors_origins=("https://app.example",),
    )  # fmt: skip
    with running(engine, settings) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        client.headers["Authorization"] = "Bearer sk-two"
        yield client


def idle(engine: AsyncLLM) -> bool:
    """Does the engine come to rest by itself?"""
    for _ in range(500):
        if engine.snapshot.running + engine.snapshot.waiting == 0:
            return True
        time.sleep(0.02)
    return False


def connect(url: str, receive: int | None = None) -> socket.socket:
    """Bare connection with a receive buffer of `receive` bytes."""
    sock = socket.socket()
    if receive is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    return sock


def error(response: httpx2.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    return body


def test_request_ids_are_echoed_or_made(strict: httpx2.Client) -> None:
    assert strict.get("/v1/models", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {strict.get("/nowhere").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("", "with space", "x" * 129, "no\x7f"):
        assert request_id(bad, lambda: "fresh") == "fresh"


def test_keys(strict: httpx2.Client) -> None:
    for given in (None, "sk-one", "Bearer sk-three", "Basic sk-one", "Bearer", "Bearer sk-onesk-two"):
        headers = {"Authorization": given or ""}
        for path in ("/v1/models", "/stats", "/nowhere"):
            response = strict.get(path, headers=headers)
            assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer", (given, path)
            assert error(response)["code"] == "invalid_api_key"
        assert strict.get("/metrics", headers=headers).status_code == 200
    assert strict.get("/v1/models", headers={"Authorization": "bearer sk-one"}).status_code == 200
    assert strict.post("/v1/completions", json=SHORT).status_code == 200


def test_probes_may_be_closed(engine: AsyncLLM) -> None:
    with running(engine, Settings(api_keys=("k",), open_probes=False)) as url:
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert httpx2.get(url + path).status_code == 401
            assert httpx2.get(url + path, headers={"Authorization": "Bearer k"}).status_code in (200, 503)


def test_bodies_that_are_too_large(strict: httpx2.Client) -> None:
    big = json.dumps({"prompt": "x" * 20_000}).encode()
    for content in (big, (big[i : i + 1000] for i in range(0, len(big), 1000))):  # with a length, and chunked
        response = strict.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 413
        assert "10000 bytes" in error(response)["message"]
    assert strict.post("/v1/completions", json=SHORT).status_code == 200


@pytest.mark.parametrize("head", ["Content-Length: 9000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("key", ["sk-two", "wrong"])
@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
def test_a_rejected_client_may_send_all_before_it_reads(strict: httpx2.Client, head: str, key: str, more: str) -> None:
    piece = b"x" * 1_000_000
    framed = piece if "Length" in head else b"%x\r\n%s\r\n" % (len(piece), piece)
    asked = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n{more}{head}\r\n\r\n"
    with connect(str(strict.base_url).rstrip("/")) as sock:
        sock.sendall(asked.encode())
        for _ in range(9):
            sock.sendall(framed)
            time.sleep(0.01)
        if "Length" not in head:
            sock.sendall(b"0\r\n\r\n")
        said = sock.recv(10_000)
        assert said.startswith(b"HTTP/1.1 413 " if key == "sk-two" else b"HTTP/1.1 401 "), said
        if not more:  # the connection goes on
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not said.endswith(b"}}") and b"/1.1 200 " not in said:
                said += sock.recv(10_000)
            assert b"HTTP/1.1 200 " in said or b"HTTP/1.1 200 " in sock.recv(10_000)


def test_pages_of_other_origins_may_not_ask(engine: AsyncLLM) -> None:
    with running(engine, Settings(cors_origins=("https://app.example",))) as url, httpx2.Client(base_url=url) as client:

        def status(**headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return client.post("/v1/completions", json=SHORT, headers=named, timeout=PATIENCE_S).status_code

        own, site = str(client.base_url).rstrip("/"), "Sec_Fetch_Site"
        assert status() == status(Origin=own) == status(Origin="https://app.example", **{site: "cross-site"}) == 200
        assert status(Origin="https://proxied.example", **{site: "same-origin"}) == status(**{site: "none"}) == 200
        for bad in ("https://evil.example", "null", own + "0", "https://app.example.evil", "http://localhost"):
            assert status(Origin=bad) == 403, bad
        assert status(**{site: "cross-site"}) == status(**{site: "same-site"}) == status(**{site: "what"}) == 403
        for method in ("PUT", "DELETE", "PATCH"):
            asked = client.request(method, "/v1/models", headers={"Origin": "https://evil.example"})
            assert asked.status_code == 403 and error(asked)["code"] == "origin_not_allowed"
        assert client.get("/v1/models", headers={"Origin": "https://evil.example"}).status_code == 200


def test_token_limits(strict: httpx2.Client) -> None:
    response = strict.post("/v1/completions", json={"prompt": [5] * 21})
    assert response.status_code == 400 and "prompt has 21 tokens" in error(response)["message"]
    assert error(response)["param"] == "prompt"
    response = strict.post("/v1/completions", json={**SHORT, "max_tokens": 31})
    assert response.status_code == 400 and error(response)["param"] == "max_tokens"
    message = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    response = strict.post("/v1/chat/completions", json=message)
    assert response.json()["usage"]["completion_tokens"] == 30


def test_cors(strict: httpx2.Client) -> None:
    origin = {"Origin": "https://app.example", "Authorization": ""}
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    response = strict.options("/v1/chat/completions", headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    refused = strict.get("/v1/models", headers=origin)
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://app.example"
    assert (
        "access-control-allow-origin" not in strict.get("/v1/models", headers={"Origin": "https://bad.example"}).headers
    )


def test_a_request_that_takes_too_long(engine: AsyncLLM) -> None:
    with (
        running(engine, Settings(request_timeout=1.0)) as url,
        httpx2.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        response = client.post("/v1/completions", json=LONG)
        assert response.status_code == 408 and error(response)["code"] == "timeout"
        assert idle(engine)
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        assert len(lines) > 2 and idle(engine)
        assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_body_that_does_not_come(engine: AsyncLLM) -> None:
    with running(engine, Settings(request_timeout=0.3)) as url, connect(url) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert sock.recv(100).startswith(b"HTTP/1.1 408 ")


async def test_a_full_queue(engine: AsyncLLM) -> None:
    """The engine runs 64 at once and 2 may wait: of 90 samples at once some are told to come later, none is lost."""
    places = engine.llm.engine.config.max_requests + 2
    with running(engine, Settings(queue_limit=2)) as url:
        async with httpx2.AsyncClient(
            base_url=url, timeout=PATIENCE_S, limits=httpx2.Limits(max_connections=200)
        ) as client:
            wish = {**SHORT, "max_tokens": 60, "ignore_eos": True}
            responses = await asyncio.gather(*(client.post("/v1/completions", json=wish) for _ in range(90)))
            codes = [r.status_code for r in responses]
            assert set(codes) == {200, 429} and codes.count(200) >= places
            late = next(r for r in responses if r.status_code == 429)
            assert error(late)["code"] == "queue_full" and 1 <= int(late.headers["retry-after"]) <= 60
            assert (await client.post("/v1/completions", json=wish)).status_code == 200
            too_many = await client.post("/v1/completions", json={**wish, "n": places + 1})
            assert too_many.status_code == 400 and error(too_many)["param"] == "n"
