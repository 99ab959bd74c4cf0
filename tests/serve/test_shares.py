"""Clients share what a server has: none takes another's room, and none sees what another sent."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.engine.pulse import Pulse
from paceline.engine.turns import Turns
from paceline.serve import pools as pools_module
from paceline.serve.admission import Budget, address_of
from paceline.serve.pools import Pools
from paceline.serve.response_wire import as_items
from paceline.serve.settings import Settings
from paceline.serve.store import Store

from .conftest import running

KEYS = ("key-of-a", "key-of-b")
PROMPT = "Tom has three apples and gives one of them to his sister, who has four. " * 4


@pytest.fixture(scope="module")
def two(engine: AsyncLLM) -> Iterator[str]:
    with running(engine, Settings(api_keys=KEYS, served_model_name=("demo",), max_nodes=8)) as url:
        yield url


def complete(url: str, key: str, **more: object) -> httpx2.Response:
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, **more}
    return httpx2.post(f"{url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def cached(answer: httpx2.Response) -> int:
    count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_client_alone_gets_half_and_the_next_finds_room() -> None:
    budget = Budget(100)
    assert budget.take("a", 50) and not budget.take("a", 1)
    assert budget.take("b", 25) and not budget.take("b", 1)
    assert budget.take("c", 12)
    budget.give("a", 50)
    assert budget.take("b", 10) and budget.size == 47
    whole = Budget(100, parted=False)
    assert whole.take("a", 100) and not whole.take("b", 1)


@pytest.mark.parametrize(
    ("client", "owner"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8:1:2:3::4", 5), "2001:0db8:0001:0002"),
        (("unix", 0), "unix"),
        (None, ""),
    ],
)
def test_whose_connection_it_is(client: object, owner: str) -> None:
    assert address_of({"type": "http", "client": client}) == owner


def test_keys_do_not_share_a_prefix(two: str) -> None:
    assert cached(complete(two, KEYS[0])) == 0
    assert cached(complete(two, KEYS[1])) == 0, "what A sent B does not find"
    assert cached(complete(two, KEYS[0])) > 0
    assert cached(complete(two, KEYS[1])) > 0


def test_a_salt_parts_the_requests_of_one_key(two: str) -> None:
    assert cached(complete(two, KEYS[0], cache_salt="x")) == 0
    assert cached(complete(two, KEYS[0], cache_salt="x")) > 0


def test_drafters_learn_of_each_key_apart(engine: AsyncLLM, two: str) -> None:
    wish = {"speculation": {"drafter": "suffix", "max_nodes": 4}, "max_tokens": 12}
    for key in KEYS:
        assert complete(two, key, **wish).status_code == 200
    kept = [name for name in engine.llm.engine.drafters.drafters if name.startswith("suffix")]
    assert len(kept) >= 2


def test_drafts_have_a_most(two: str) -> None:
    answer = complete(two, KEYS[0], speculation={"drafter": "ngram", "max_nodes": 9})
    assert answer.status_code == 400 and "at most 8" in answer.json()["error"]["message"]


def test_a_body_that_trickles_is_ended(two: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serve.guard.GRACE_S", 0.3)
    parts = urlsplit(two)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=20) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {KEYS[0]}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert b" 408 " in connection.recv(4096)


def test_stored_answers_of_one_do_not_push_out_those_of_another() -> None:
    store = Store(20_000)
    store.put("mine", "a", {"x": 1}, [], [])
    for i in range(50):
        store.put(f"theirs{i}", "b", {"x": "y" * 1000}, [], [])
    assert store.get("mine", "a") is not None and store.size <= 20_000


def test_items_keep_the_fields_that_are_read() -> None:
    given = [
        {"role": "user", "content": [{"type": "input_text", "text": "x", "junk": 1}], "junk": "y" * 1000, "id": "i"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}], "summary": ["z" * 1000]},
    ]
    kept = as_items(given)
    assert "junk" not in json.dumps(kept) and "zzz" not in json.dumps(kept)
    assert kept[0] == {"type": "message", "id": "i", "role": "user", "content": [{"type": "input_text", "text": "x"}]}


def test_turns_go_round() -> None:
    turns, done = Turns(), list[str]()
    for whose in ("a", "a", "a", "b"):
        turns.add(whose, lambda whose=whose: done.append(whose))  # type: ignore[misc]
    while turns:
        turns.take()
    assert done == ["a", "b", "a", "a"]


async def test_memory_goes_back_though_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is freed after memory was given back goes back soon, too: not only when nobody asks for anything."""
    given = list[bool]()
    monkeypatch.setattr(pools_module, "TIDY_S", 0.01)
    monkeypatch.setattr(pools_module, "give_back", given.append)
    pools = Pools()
    pools.busy = lambda: True
    for times in (1, 2):
        pools.tidy()
        async with asyncio.timeout(20):
            while len(given) < times:
                await asyncio.sleep(0.005)
        assert pools._tidying and given == [False] * times, "and no search for garbage meanwhile"
    pools.close()


def test_a_starved_thread_is_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has little of a processor; a hung one has none, or all of it."""
    now, used = [100.0], [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: used[0])
    monkeypatch.setattr("paceline.engine.pulse.processor_time", lambda thread: used[0])

    def after(seconds: float, share: float, steps: int = 10) -> float:
        pulse = Pulse()
        pulse.beat()
        for _ in range(steps):
            now[0] += seconds / steps
            used[0] += share * seconds / steps
            stuck = pulse.stuck(1)
        return stuck

    assert after(100, 0.05) < 10, "others keep it from running"
    assert after(100, 0.0) == pytest.approx(100), "it waits for what never comes"
    assert after(100, 1.0) == pytest.approx(100), "it never ends"
    assert Pulse().stuck(1) == 0.0
    assert after(300, 0.0, steps=1) < 60, "the whole process was stopped, and nobody looked"


def test_a_router_says_for_whom_it_asks_and_nobody_else_is_believed(engine: AsyncLLM) -> None:
    """Seen by whose stored answers are whose."""
    with running(engine, Settings(router_keys=("between",), api_keys=("plain",), served_model_name=("demo",))) as url:

        def asked(key: str, client: str, id: str = "") -> httpx2.Response:
            headers = {"Authorization": f"Bearer {key}", "Paceline-Client": client}
            if id:
                return httpx2.get(f"{url}/v1/responses/{id}", headers=headers, timeout=60)
            body = {"input": "Hi", "max_output_tokens": 1}
            return httpx2.post(f"{url}/v1/responses", json=body, headers=headers, timeout=60)

        routed, plain = (asked(key, "a").json()["id"] for key in ("between", "plain"))
        assert [asked("between", who, routed).status_code for who in ("a", "b")] == [200, 404]
        assert [asked("plain", who, plain).status_code for who in ("a", "b")] == [200, 200]
        assert asked("plain", "key 1 a", routed).status_code == 404
        refused = asked("between", "x" * 200)
        assert refused.status_code == 400 and "Paceline-Client" in refused.json()["error"]["message"]
