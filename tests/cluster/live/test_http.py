"""The HTTP API over a cluster of real engines in this process: the same answers, and words to those who run it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest

from paceline import AsyncLLM
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.freeness import ScaleRule
from paceline.cluster.live.messages import EngineFacts, EngineGoneError
from paceline.cluster.live.serve import application
from paceline.engine.options import Options
from paceline.serve.app import create_app
from paceline.serve.settings import MOST_ENGINES, Settings
from paceline.serve.stats import History
from tests.cluster.live.links import DirectLink, held
from tests.cluster.waits import until

OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "blocks": 300, "drafter": "ngram"}
SETTINGS = Settings(served_model_name=("demo",))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
BODIES = [
    ("/v1/completions", {"prompt": "Tom has", "max_tokens": 24, "seed": 1, "temperature": 0.8, "logprobs": 1, "n": 2}),
    ("/v1/completions", {"prompt": ["a", "b c"], "max_tokens": 8, "seed": 4, "echo": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24, "seed": 2,
     "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "seed": 5}),
    ("/v1/embeddings", {"input": ["a", "b"], "model": "demo"}),
]  # fmt: skip
CHANGING = ("id", "created", "speculation", "system_fingerprint")


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)


def lasting(answer: Any) -> Any:
    """An answer without what each has of its own."""
    if isinstance(answer, dict):
        return {name: lasting(value) for name, value in answer.items() if name not in CHANGING}
    return [lasting(each) for each in answer] if isinstance(answer, list) else answer


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    made = Engines(lambda name: DirectLink(name, OPTIONS))
    await made.start(2)
    yield made
    await made.close()


async def test_answers_are_those_of_one_server(engines: Engines) -> None:
    async with AsyncLLM(**OPTIONS) as llm, client(create_app(llm, SETTINGS)) as one:
        want = [lasting((await one.post(path, json=body)).json()) for path, body in BODIES]
    async with client(application(engines, Options(**OPTIONS), SETTINGS)) as many:
        got = [lasting((await many.post(path, json=body)).json()) for path, body in BODIES]
        assert got == want
        for path in ("/health", "/stats", "/metrics", "/v1/models"):
            assert (await many.get(path)).status_code == 200, path
        stats = (await many.get("/stats")).json()
        assert stats["max_requests"] == 2 * engines.facts.max_requests
        refused = await many.post("/v1/completions", json={"prompt": "a", "drafter": "no_such"})
        assert refused.status_code == 400


async def test_a_stream_goes_on_when_its_engine_dies(engines: Engines) -> None:
    body = {"prompt": "Tom has 3", "max_tokens": 200, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    async with client(application(engines, Options(**OPTIONS), SETTINGS)) as many:
        want = (await many.post("/v1/completions", json=body)).json()["choices"][0]
        with held(state.link for state in engines.states.values()):  # type: ignore[misc]
            asking = asyncio.create_task(many.post("/v1/completions", json={**body, "stream": True}))
            await until(lambda: any(len(voyage.request.output) > 3 for voyage in engines.voyages.going), [asking])
            next(iter(engines.voyages.going)).link.kill()
        lines = (await asking).text.splitlines()
    events = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert "".join(event["text"] for event in events) == want["text"] and engines.lost_count == 1
    assert events[-1]["finish_reason"] == want["finish_reason"] and lines[-2:] == ["data: [DONE]", ""]


async def test_words_to_those_who_run_it(engines: Engines) -> None:
    async with client(application(engines, Options(**OPTIONS), SETTINGS)) as many:
        state = (await many.post("/cluster/scale", json={"engines": 3})).json()
        assert len(state["engines"]) == state["wanted"] == 3
        state = (await many.post("/cluster/drain", json={"engine": "engine-1"})).json()
        assert {each["name"] for each in state["engines"]} == {"engine-2", "engine-3"}
        state = (await many.post("/cluster/scale", json={"engines": 1})).json()
        [left] = state["engines"]
        assert left["freeness"] == 300 and not left["draining"]
        missing = await many.post("/slots/0?action=save", json={})
        assert missing.status_code == 501 and "a cluster does not serve them" in missing.text
        missing = await many.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "a"})
        assert missing.status_code == 403 and "start the server with --lora-root" in missing.text
        for path, body in (("scale", {"engines": 0}), ("drain", {"engine": left["name"]}), ("drain", {"engine": "x"})):
            assert (await many.post(f"/cluster/{path}", json=body)).status_code == 400
        [renewed] = (await many.post("/cluster/renew", json={})).json()["engines"]
        assert renewed["name"] != left["name"] and (await many.get("/cluster")).json()["lost"] == 0


async def test_each_engine_is_seen(engines: Engines) -> None:
    app = application(engines, Options(**OPTIONS), SETTINGS)
    async with client(app) as many:
        await many.post("/v1/completions", json={"prompt": "Tom has", "max_tokens": 8, "ignore_eos": True})
        for state in engines.states.values():
            state.snapshot = await state.link.snapshot()
        cluster = (await many.get("/stats")).json()["cluster"]
        assert cluster == (await many.get("/cluster")).json() and cluster["wanted"] == 2 and cluster["coming"] == 0
        assert sum(each["generated"] for each in cluster["engines"]) == 8
        assert all(each["process"] == os.getpid() and each["machine"] for each in cluster["engines"])
        keeping = asyncio.create_task((history := History()).keep(app.state.operation.stats))
        await asyncio.sleep(0.01)
        keeping.cancel()
        assert [{"cluster", "running"} & set(reading) for reading in history.readings] == [{"running"}]
        figures = (await many.get("/metrics")).text
        for each in cluster["engines"]:
            label = f'{{engine="{each["name"]}"}}'
            assert f"paceline_engine_generation_tokens_total{label} {float(each['generated'])}" in figures
            assert f"paceline_engine_freeness{label} 300.0" in figures
            assert f"paceline_engine_kv_cache_usage_perc{label} 0.0" in figures
        assert "paceline_cluster_engines_wanted 2.0" in figures and "paceline_cluster_moved_total 0.0" in figures


async def test_places_follow_the_number_of_engines(engines: Engines) -> None:
    settings, most = Settings(served_model_name=("demo",), queue_limit=1, max_choices=4096), engines.facts.max_requests
    async with client(application(engines, Options(**OPTIONS), settings)) as many:
        for count in (1, 3):
            await many.post("/cluster/scale", json={"engines": count})
            assert (await many.get("/stats")).json()["max_requests"] == count * most
            body = {"prompt": ["a"] * (count * most + 2), "max_tokens": 1}
            refused = await many.post("/v1/completions", json=body)
            assert refused.status_code == 400 and f"holds {count * most + 1};" in refused.text


async def test_an_engine_that_cannot_be_started_is_told(engines: Engines) -> None:
    def broken(name: str) -> DirectLink:
        raise EngineGoneError("no memory")

    engines.make = broken
    async with client(application(engines, Options(**OPTIONS), SETTINGS)) as many:
        for path, body in (("scale", {"engines": 3}), ("renew", {})):
            answer = await many.post(f"/cluster/{path}", json=body)
            assert answer.status_code == 503 and "no memory" in answer.text
        assert (await many.get("/cluster")).json()["wanted"] == 2


async def test_keys_guard_the_words_too(engines: Engines) -> None:
    settings = Settings(api_keys=("secret",))
    async with client(application(engines, Options(**OPTIONS), settings)) as many:
        for path in ("scale", "drain", "renew"):
            assert (await many.post(f"/cluster/{path}", json={})).status_code == 401
        assert (await many.get("/cluster")).status_code == 401


async def test_a_client_that_leaves_changes_nothing_about_what_it_asked_for(engines: Engines) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class SlowStart(DirectLink):
        async def facts(self) -> EngineFacts:
            begun.set()
            await go.wait()
            return await super().facts()

    engines.make = lambda name: SlowStart(name, OPTIONS)
    async with client(application(engines, Options(**OPTIONS), SETTINGS)) as many:
        asking = asyncio.create_task(many.post("/cluster/renew", json={}))
        await until(begun.is_set, [asking])
        asking.cancel()
        await asyncio.wait([asking])
        go.set()
        await until(lambda: {*engines.states} == {"engine-3", "engine-4"})
        assert (await many.get("/cluster")).json()["wanted"] == 2


async def test_what_a_wish_must_be_is_said(engines: Engines) -> None:
    engines.rule = ScaleRule(fewest=2, most=3)
    app = application(engines, Options(**OPTIONS), SETTINGS)
    async with client(app) as many:
        for count, says in ((0, f"1 to {MOST_ENGINES}"), (MOST_ENGINES + 1, f"1 to {MOST_ENGINES}"), (4, "at most 3")):
            answer = await many.post("/cluster/scale", json={"engines": count})
            assert answer.status_code == 400 and says in answer.text, answer.text
        assert (await many.get("/cluster")).json()["wanted"] == 2


async def test_not_ready_without_an_engine(engines: Engines) -> None:
    app = application(engines, Options(**OPTIONS), SETTINGS)
    app.state.operation.warm = True
    async with client(app) as many:
        assert (await many.get("/ready")).status_code == 200
        for state in engines.states.values():
            state.draining = True
        closed = await many.get("/ready")
        assert closed.status_code == 503 and "No engine serves" in closed.text


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("/cluster/scale", {"engines": 1}), ("/cluster/drain", {"engine": "engine-1"}), ("/cluster/renew", {}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), CHANGES)
async def test_a_change_comes_through_the_guard(engines: Engines, path: str, body: dict[str, Any]) -> None:
    settings = Settings(max_body_bytes=1000)
    async with client(application(engines, Options(**OPTIONS), settings)) as many:
        for header, value in (("Host", "evil.example"), ("Origin", "https://evil.example")):
            assert (await many.post(path, json=body, headers={header: value})).status_code == 403
        large = await many.post(path, json={**body, "more": "x" * 2000})
        assert large.status_code == 413 and (await many.get(path)).status_code == 405
        if body:
            kinds = {"Content-Type": "text/plain"}
            for sent in (json.dumps(body).encode(), b"", b"[]", b'{"engines": 1e400}', b'{"engine": []}', b'{"x": 1}'):
                assert (await many.post(path, content=sent, headers=kinds)).status_code == 400
                assert (await many.post(path, content=b"[" * 999, headers={})).status_code == 400
    assert engines.wanted == len(engines.states) == 2 and "engine-1" in engines.states


async def test_clients_take_no_engine_from_each_other(engines: Engines) -> None:
    for keys, right in ((("a", "b"), None), (("a",), "run"), (("a", "b"), "run")):
        settings = Settings(api_keys=keys, operator_keys=() if right is None else (right,))
        async with client(application(engines, Options(**OPTIONS), settings)) as many:
            for path, body in (*CHANGES, ("/cluster", None)):
                ask = many.get(path) if body is None else many.post(path, json=body)
                assert (await ask).status_code == 401
            for path, body in CHANGES:
                refused = await many.post(path, json=body, headers={"X-Api-Key": "a"})
                assert refused.status_code == 403 and "--operator-key" in refused.text
            if right is not None:
                scaled = await many.post("/cluster/scale", json={"engines": 2}, headers={"X-Api-Key": right})
                assert scaled.status_code == 200
    assert engines.wanted == 2 and "engine-1" in engines.states
