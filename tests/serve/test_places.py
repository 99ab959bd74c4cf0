"""Long streams of one client, read or not, do not keep another's request from being answered."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S

from .conftest import DEMO, running

PLACES = 4
KEYS = ("key-of-a", "key-of-b")
LONG = {"max_tokens": 1500, "ignore_eos": True, "stream": True, "temperature": 0}
SHORT = {"prompt": "Tom has", "max_tokens": 2, "temperature": 0}
SHAPES: dict[str, tuple[int, dict[str, object]]] = {
    "streams": (PLACES, {"prompt": "Tom has 3 apples."}),
    "samples": (1, {"prompt": "Tom has 3 apples.", "n": PLACES, "temperature": 1.0}),
    "prompts": (1, {"prompt": [f"Tom has {i} apples." for i in range(PLACES)]}),
}
"""(requests, body) that fill the places."""


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    made = AsyncLLM(max_requests=PLACES, drafter="none", **DEMO)
    yield made
    made.close()


def unread(url: str, body: dict[str, object], key: str = "", source: str = "127.0.0.1") -> socket.socket:
    """A request of which no answer is read."""
    parts, data = urlsplit(url), json.dumps(body).encode()
    made = socket.create_connection((parts.hostname, parts.port), PATIENCE_S, (source, 0))
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n{auth}Content-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return made


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def of(llm: AsyncLLM, client: str) -> list[int]:
    """Ids of its requests that have not ended."""
    return [number for number, r in list(llm.llm.engine.session.requests.items()) if r.params.client == client]


@pytest.mark.parametrize("shape", SHAPES)
def test_another_key_is_answered_while_all_places_are_taken(llm: AsyncLLM, shape: str) -> None:
    count, body = SHAPES[shape]
    with running(llm, Settings(api_keys=KEYS)) as url, ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(unread(url, {**LONG, **body}, KEYS[0]))
        wait(lambda: len(llm.llm.engine.desk.running) == PLACES)
        answer = httpx2.post(
            f"{url}/v1/completions", json=SHORT, headers={"Authorization": f"Bearer {KEYS[1]}"}, timeout=PATIENCE_S
        )
        assert answer.status_code == 200, answer.text
        assert len(of(llm, "key 0")) == PLACES, "all of the other's streams go on"
    wait(lambda: not of(llm, "key 0"))


def test_another_address_is_answered_where_there_are_no_keys(llm: AsyncLLM) -> None:
    with running(llm, Settings()) as url, ExitStack() as stack:
        for _ in range(PLACES):
            stack.enter_context(unread(url, {**LONG, "prompt": "Tom has 3 apples."}))
        wait(lambda: len(llm.llm.engine.desk.running) == PLACES)
        other = stack.enter_context(unread(url, SHORT, source="127.0.0.2"))
        assert b" 200 " in other.recv(4096)
        assert len(of(llm, "127.0.0.1")) == PLACES
    wait(lambda: not of(llm, "127.0.0.1"))


def test_a_stream_that_gave_way_has_the_text_of_one_that_did_not(llm: AsyncLLM) -> None:
    body = {"prompt": "Tom has 3 apples.", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    heads = [{"Authorization": f"Bearer {key}"} for key in KEYS]
    texts, answered = [""] * PLACES, False
    with running(llm, Settings(api_keys=KEYS)) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        alone = client.post("/v1/completions", json=body, headers=heads[0]).json()["choices"][0]["text"]
        given = {**body, "prompt": [body["prompt"]] * PLACES, "stream": True}
        before = llm.llm.engine.desk.totals.preemptions
        with client.stream("POST", "/v1/completions", json=given, headers=heads[0]) as answer:
            for line in answer.iter_lines():
                for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                    texts[choice["index"]] += choice["text"]
                if not answered:
                    assert client.post("/v1/completions", json=SHORT, headers=heads[1]).status_code == 200
                    answered = True
    assert llm.llm.engine.desk.totals.preemptions > before
    assert set(texts) == {alone}
