"""Priority, deadline and user over HTTP: what they become in the engine, and what is refused."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.core.request import Request
from paceline.schedule.fair import cost
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, running

BODY = {"prompt": "Tom has 3 apples.", "max_tokens": 2}


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    engine = AsyncLLM(order="deadline", drafter="none", **DEMO)
    yield engine
    engine.close()


def asked(llm: AsyncLLM, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch, **more: object) -> Request:
    """What the engine was given for a body."""
    seen: list[Request] = []
    submit = llm.llm.engine.submit
    monkeypatch.setattr(llm.llm.engine, "submit", lambda *a, **k: seen.extend(made := submit(*a, **k)) or made)
    answer = client.post("/v1/completions", json={**BODY, **more})
    monkeypatch.undo()
    assert answer.status_code == 200, answer.text
    return seen[0]


def test_wishes_reach_the_engine(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(llm, Settings()) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        request = asked(llm, client, monkeypatch, deadline_ms=1500, user="ann")
        assert (request.params.deadline_ms, request.key) == (1500, "ann")
        assert request.admitted is not None and 0 < request.arrival <= request.admitted


def test_where_there_are_api_keys_they_tell_users_apart(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets a larger share by giving many names."""
    with (
        running(llm, Settings(api_keys=("one", "two"))) as url,
        httpx2.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        keys = []
        for key, user in (("one", "ann"), ("one", "bob"), ("two", "ann")):
            client.headers["Authorization"] = f"Bearer {key}"
            keys.append(asked(llm, client, monkeypatch, user=user).key)
        assert keys[0] == keys[1] != keys[2] and "one" not in keys[0]


@pytest.mark.full
def test_a_key_pays_for_drafts_that_are_not_kept_and_unequal_loads_get_equal_shares() -> None:
    """One place. Key `many` sends eight requests with drafts, then key `few` four without: they take turns by cost,
    so all of `few` are admitted while `many` still waits, though it came first and has twice as many."""
    engine, seen = AsyncLLM(order="fair", max_requests=1, prefix_cache=False, **DEMO), list[Request]()
    submit = engine.llm.engine.submit
    engine.llm.engine.submit = lambda *a, **k: seen.extend(made := submit(*a, **k)) or made  # type: ignore[method-assign]
    body = {**BODY, "max_tokens": 12, "ignore_eos": True, "temperature": 1.0}
    wishes = {"many": {"drafter": "model", "max_nodes": 8}, "few": {"drafter": "none"}}
    try:
        with (
            running(engine, Settings(api_keys=("many", "few"))) as url,
            httpx2.Client(base_url=url, timeout=PATIENCE_S) as client,
            ThreadPoolExecutor(12) as pool,
        ):

            def ask(key: str, number: int) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                more = {**body, "speculation": wishes[key], "seed": number}
                return client.post("/v1/completions", json=more, headers=headers).status_code

            asked = [pool.submit(ask, key, i) for key, count in (("many", 8), ("few", 4)) for i in range(count)]
            assert {each.result() for each in asked} == {200}
    finally:
        engine.close()
    by_key = [[r for r in seen if (r.drafter == "none") == plain] for plain in (True, False)]
    few, many = by_key
    assert (len(few), len(many)) == (4, 8) and all(r.stats.drafted > r.stats.accepted for r in many)
    prompt = {r.id: len(r.prompt) - r.stats.cached for r in seen}
    for r in seen:
        assert cost(r) == prompt[r.id] + 2 * len(r.output) + r.stats.drafted - r.stats.accepted
    last = max(r.admitted or 0.0 for r in few)
    assert sum((r.admitted or 0.0) > last for r in many) >= 3, (
        "the many still wait when the last of the few is admitted"
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"priority": 1}, "priority and order deadline cannot be combined"),
        ({"priority": 1.5}, "a whole number in [-100, 100]"),
        ({"deadline_ms": 0}, "a positive number of milliseconds"),
    ],
)
def test_what_is_wrong_or_would_be_ignored_is_refused(llm: AsyncLLM, wrong: dict, words: str) -> None:
    with running(llm, Settings()) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        answer = client.post("/v1/completions", json={**BODY, **wrong})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]
