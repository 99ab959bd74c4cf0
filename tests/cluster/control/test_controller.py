"""The controller over real servers and over engines that fail: each call gets one reply."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from paceline import AsyncLLM
from paceline.cluster.control import router as router_module
from paceline.cluster.control.controller import Controller
from paceline.cluster.control.engines import EngineLost, HttpEngine, Reply, StreamPieces
from paceline.cluster.control.router import create, read, tokens_of
from paceline.cluster.workflow import predict
from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.log import Event, WorkflowRecorder, replay
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.tasks import CallWork
from paceline.cluster.workflow.tune import Tuner
from paceline.serve.errors import ApiError
from paceline.serve.settings import Settings
from tests.cluster.waits import until
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, running

httpx2 = pytest.importorskip("httpx2", reason="needs paceline[test]")
PRIOR = {"k": (0.01, 0.1, 1.0)}


class Fragile:
    """Answers after some turns of the loop; dies at its n-th call, until it has been looked for three times."""

    def __init__(self, name: str, dies_at: int = 0) -> None:
        self.name, self.dies_at, self.asked, self.away = name, dies_at, 0, 0
        self.bodies, self.clients = list[bytes](), list[str]()

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        self.asked += 1
        if self.asked == self.dies_at:
            self.away = 3
        for _ in range(4):
            await asyncio.sleep(0)
        if self.away:
            raise EngineLost(f"{self.name} died")
        self.bodies.append(body or b"")
        self.clients.append(client)
        return Reply(200, b'{"usage": {"prompt_tokens": 9, "completion_tokens": 3}, "said": ' + (body or b"0") + b"}")

    async def alive(self) -> bool:
        self.away = max(0, self.away - 1)
        return not self.away


def controller(*engines: Fragile, policy: str = "hexgen") -> tuple[Controller, list[Event]]:
    setup, events = DispatcherSetup(policy, tuple((e.name, "k", 2) for e in engines), PRIOR), list[Event]()
    made = Controller(setup.dispatcher(), {engine.name: engine for engine in engines}, used=tokens_of)
    made.dispatcher.watchers.append(WorkflowRecorder(setup, events.append))
    return made, events


@pytest.mark.parametrize("policy", ["hexgen", "rr+fcfs", "heft"])
async def test_no_call_is_lost_or_answered_twice_when_an_engine_dies(policy: str) -> None:
    one, two = Fragile("one", dies_at=12), Fragile("two")
    made, events = controller(one, two, policy=policy)

    async def program(n: int) -> list[Any]:
        out = []
        for stage in range(3):
            calls = (
                made.call(f"w{n}", CallWork(f"s{stage}"), "/x", f"{n}{stage}{k}".encode(), deadline=9.0) for k in (1, 2)
            )
            out += [json.loads(reply.body)["said"] for reply in await asyncio.gather(*calls)]
        made.end(f"w{n}")
        return out

    said = await asyncio.gather(*(program(n) for n in range(1, 13)))
    assert said == [[int(f"{n}{s}{k}") for s in range(3) for k in (1, 2)] for n in range(1, 13)]
    finished = [event["id"] for event in events if event["event"] == "finish"]
    assert len(finished) == len(set(finished)) == 72
    assert any(event["event"] == "turn" and not event["alive"] for event in events)
    assert replay(json.loads(json.dumps(events))) is None, "the simulator's objects decide as the controller did"
    await made.close()


async def test_calls_wait_while_no_engine_is_alive() -> None:
    made, events = controller(Fragile("one", dies_at=1))
    reply = await asyncio.wait_for(made.call("w", CallWork("a"), "/x", b"7"), 10)
    assert json.loads(reply.body)["said"] == 7 and made.answered == {"one": 1}
    assert [event["alive"] for event in events if event["event"] == "turn"] == [False, True]
    await made.close()


async def test_closing_cancels_who_waits() -> None:
    one = Fragile("one", dies_at=1)
    made, _ = controller(one)
    call = asyncio.create_task(made.call("w", CallWork("a"), "/x", b"7"))
    await asyncio.sleep(0.05)
    await made.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 5)


async def test_alpha_is_tuned_beside_the_calls_and_the_log_still_replays() -> None:
    made, events = controller(Fragile("one"), Fragile("two"))
    made.tuner = Tuner(made.dispatcher.planner, window=10, every=5)  # type: ignore[arg-type]
    made.dispatcher.planner.alpha = 0.5  # type: ignore[attr-defined]
    events[0]["alpha"] = 0.5
    made.dispatcher.watchers.append(WorkflowRecorder(None, made.tuner.sink))
    for n in range(12):
        await made.call(f"w{n}", CallWork("a"), "/x", b"1", deadline=5.0)
        made.end(f"w{n}")
    await asyncio.gather(*made._tasks)
    assert any(event["event"] == "tune" for event in events)
    assert replay(json.loads(json.dumps(events))) is None
    await made.close()


async def test_workflows_that_tell_no_tokens_teach_no_alpha() -> None:
    made, _ = controller(Fragile("one"))
    made.used = lambda *_: None
    made.tuner = Tuner(made.dispatcher.planner, window=10, every=5)  # type: ignore[arg-type]
    made.dispatcher.watchers.append(WorkflowRecorder(None, made.tuner.sink))
    for n in range(5):
        await made.call(f"w{n}", CallWork("a"), "/x", b"1")
        made.end(f"w{n}")
    assert made._tuning
    await asyncio.gather(*made._tasks)
    assert not made._tuning and made.tuner.ended == 0
    await made.close()


async def test_one_rehearsal_at_a_time_which_ends_with_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = list[int](), threading.Event()

    def endless(made: Dispatcher, alpha: float, jobs: object, tick: Callable[[], None]) -> None:
        begun.append(len(begun))
        try:
            while True:
                tick()
        finally:
            ended.set()

    monkeypatch.setattr("paceline.cluster.control.controller.rehearse", endless)
    made, _ = controller(Fragile("one"))
    made.tuner = Tuner(made.dispatcher.planner, window=10, every=2)  # type: ignore[arg-type]
    made.dispatcher.watchers.append(WorkflowRecorder(None, made.tuner.sink))
    for n in range(12):
        await made.call(f"w{n}", CallWork("a"), "/x", b"1")
        made.end(f"w{n}")
    await until(lambda: bool(begun))
    assert begun == [0] and not ended.is_set()
    await made.close()
    assert await asyncio.to_thread(ended.wait, 60)


def test_hints_are_taken_out_of_the_request_and_checked() -> None:
    data, hint = read(orjson.dumps({"prompt": "x", "workflow": {"id": "q", "step": "a", "deadline_s": 3}}))
    assert data == {"prompt": "x"} and hint.deadline_s == 3 and not hint.last
    assert read(b'{"prompt": "x"}')[1].last
    for body, says in (
        (b"[]", "not a JSON object"),
        (b'{"workflow": {"id": ""}}', "workflow.id"),
        (b'{"workflow": {"id": "a", "more": 1}}', "workflow.more"),
        (b'{"workflow": 3}', "workflow"),
        (b'{"workflow": {"id": "a", "deadline_s": "nan"}}', "workflow.deadline_s"),
    ):
        with pytest.raises(ApiError, match=says):
            read(body)


async def test_a_router_over_two_real_servers() -> None:
    llms = [AsyncLLM(**DEMO) for _ in range(2)]
    with (
        running(llms[0], Settings(served_model_name=("demo",))) as one,
        running(llms[1], Settings(served_model_name=("demo",))) as two,
    ):
        setup = DispatcherSetup("hexgen", ((one, "k", 2), (two, "k", 2), ("http://127.0.0.1:9", "k", 2)), PRIOR)
        urls = [name for name, _, _ in setup.instances]
        made, events = Controller(setup.dispatcher(), {url: HttpEngine(url) for url in urls}), list[Event]()
        made.dispatcher.watchers.append(WorkflowRecorder(setup, events.append))
        transport = httpx2.ASGITransport(create(made))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE_S) as client:
            body = {"prompt": "Tom has 3", "max_tokens": 5, "temperature": 0, "seed": 1}
            hints = [{"id": f"q{n // 2}", "step": "draft", "deadline_s": 60.0, "expected": ["check"]} for n in range(8)]
            replies = await asyncio.gather(
                *(client.post("/v1/completions", json={**body, "workflow": hint}) for hint in hints),
                client.post("/v1/completions", json=body),
            )
            texts = {reply.json()["choices"][0]["text"] for reply in replies}
            assert len(texts) == 1, "the text is the same from every engine"
            bad = await client.post("/v1/completions", json={"prompt": "x", "nonsense": 1})
            assert bad.status_code == 400 and "nonsense" in bad.json()["error"]["message"]
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "demo"
            stats = (await client.get("/stats")).json()
        assert sum(each["answered"] for each in stats["instances"].values()) == 10
        assert replay(json.loads(json.dumps(events))) is None
        await made.close()
    for llm in llms:
        llm.close()


def test_lengths_of_a_step_are_learned() -> None:
    from paceline.cluster.control.router import Router

    made, _ = controller(Fragile("one"))
    router = Router(made)
    assert router.work("a", 400, {"max_tokens": 100}).tokens_out == 50
    for _ in range(60):
        router.learn("a", (100.0, 20.0))
    assert router.work("a", 400, {"max_tokens": 100}).tokens_out == pytest.approx(20.0)
    assert np.isfinite(router.state(0.0)["instances"]["one"]["backlog_s"])


class Refusing(Fragile):
    """Refuses bodies without a prompt at once."""

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        found = await super().ask(path, body, client)
        return found if b"prompt" in (body or b"") else Reply(400, b'{"error": {"message": "no prompt"}}')


async def test_refusals_teach_nothing() -> None:
    """Else anybody could have the router believe that long calls are short, or that short ones are long."""
    made, events = controller(Refusing("one"))
    router, one = router_module.Router(made), made.dispatcher.instances["one"]
    await router.post("/completions", {"prompt": "x"}, router_module.Hint(id="good", last=True), 10)
    asked = [CallWork("call", 10, length) for length in (10, 300)]
    before = [made.dispatcher.predictor.seconds(work, one) for work in asked]
    for n, most in enumerate((2**62, -(2**62), 1, True)):
        await router.post("/completions", {"max_tokens": most}, router_module.Hint(id=f"{n}", last=True), 10)
    assert [made.dispatcher.predictor.seconds(work, one) for work in asked] == before
    assert replay(json.loads(json.dumps(events))) is None
    assert sum(event.get("teaches") is False for event in events) == 4
    router._lengths.clear()
    assert 0 < router.work("call", 10, {"max_tokens": -5}).tokens_out < 1
    assert router.work("call", 10, {"max_tokens": 2**62}).tokens_out == router_module.MOST_EXPECTED_TOKENS / 2
    await made.close()


class Streams(Fragile):
    """Streams some events, without usage."""

    events = 7

    async def stream(self, path: str, body: bytes, begun: Callable[[Reply], None], client: str = "") -> Reply:
        pieces = StreamPieces()
        begun(Reply(200, b"", pieces))
        for n in range(self.events):
            pieces.put(b'data: {"n": %d}\n\n' % n)
            await asyncio.sleep(0)
        pieces.end()
        return Reply(200, b'data: {"n": 6}\n\n', pieces)


async def test_streams_without_usage_teach_by_their_events() -> None:
    """Most clients ask for no usage: else a router of streams alone would never know how fast its engines are."""
    made, events = controller(Streams("one"))
    router, asked, one = router_module.Router(made), CallWork("call", 10, 7), made.dispatcher.instances["one"]
    before = made.dispatcher.predictor.seconds(asked, one)
    reply = await router.post("/completions", {"stream": True}, router_module.Hint(id="w", last=True), 40)
    assert reply.stream is not None
    assert b"".join([piece async for piece in reply.stream]).count(b"data: ") == 7  # some of them in one piece
    await until(lambda: any(event["event"] == "finish" for event in events), what="the note of the stream's end")
    [end] = [event for event in events if event["event"] == "finish"]
    assert end["used"] == (10.0, 7.0) and "teaches" not in end
    assert made.dispatcher.predictor.seconds(asked, one) != before
    await made.close()


async def test_names_that_clients_choose_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and workflows without an end: what is kept of them has one."""
    monkeypatch.setattr(router_module, "MOST_CALLS", 4)
    monkeypatch.setattr(predict, "MOST_STEPS", 8)
    made, events = controller(Fragile("one"))
    router = router_module.Router(made)
    for n in range(20):
        await router.post("/completions", {}, router_module.Hint(id="w", step=f"s{n}"), 10)
        await router.post("/completions", {}, router_module.Hint(id=f"x{n}", last=True), 10)
    factors = made.dispatcher.predictor.factors  # type: ignore[attr-defined]
    assert len(router._lengths) <= 8 and len(factors["one"]) <= 8 and "s19" in factors["one"]
    assert max(len(flow.tasks) for flow in made.dispatcher.workflows.values()) <= 4
    assert set(made._numbers) == set(made.dispatcher.workflows) == {"w", *(f"w.{n}" for n in range(1, 5))}
    assert replay(json.loads(json.dumps(events))) is None
    await made.close()


async def test_an_engine_that_breaks_off_is_asked_a_bounded_number_of_times() -> None:
    class Breaks(Fragile):
        asked = 0

        async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
            self.asked += 1
            raise EngineLost("it closed")

        async def alive(self) -> bool:
            return True

    engines = [Breaks("one"), Breaks("two")]
    made, _ = controller(*engines)
    made.most_losses = 3
    for _ in range(2):
        with pytest.raises(EngineLost):
            await asyncio.wait_for(made.call("w", CallWork("s", 1, 1), "/completions", b"{}"), 20)
    assert sum(engine.asked for engine in engines) <= 6
    await made.close()


async def test_a_call_that_nobody_waits_for_is_ended() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow(Fragile):
        async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return Reply(200, b"{}")

    made, _ = controller(Slow("one"))
    call = asyncio.create_task(made.call("w", CallWork("s", 1, 1), "/completions", b"{}"))
    await until(begun.is_set, [call])
    call.cancel()
    await asyncio.wait_for(ended.wait(), 5)
    assert not made._waiting and not made.dispatcher.instances["one"].running
    await made.close()


async def test_a_router_has_the_servers_guard() -> None:
    made, _ = controller(Fragile("one"))
    app = create(made, Settings(api_keys=("secret",), max_body_bytes=1000))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost", timeout=20
    ) as client:
        body, key = b'{"prompt": "x"}', {"Authorization": "Bearer secret"}
        json_ = {"Content-Type": "application/json"}
        assert (await client.post("/v1/completions", content=body, headers=json_)).status_code == 401
        plain = {**key, "Content-Type": "text/plain"}
        assert (await client.post("/v1/completions", content=body, headers=plain)).status_code == 400
        assert (await client.post("/v1/completions", content=b"x" * 2000, headers=key | json_)).status_code == 413
        deep = b'{"prompt": ' + b"[" * 300 + b"]" * 300 + b"}"
        assert (await client.post("/v1/completions", content=deep, headers=key | json_)).status_code == 400
    open_ = create(made, Settings())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(open_), base_url="http://evil.example") as client:
        assert (await client.get("/v1/models")).status_code == 403
    await made.close()


async def test_engines_learn_which_of_a_routers_clients_asks_but_neither_key_nor_address() -> None:
    one = Fragile("one")
    made, events = controller(one)
    app = create(made, Settings(api_keys=("key-a", "key-b")))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=20) as client:
        for key in ("key-a", "key-b", "key-a"):
            headers = {"Authorization": f"Bearer {key}", "Paceline-Client": "somebody"}
            assert (await client.post("/v1/completions", json={"prompt": "x"}, headers=headers)).status_code == 200
    assert one.clients[0] == one.clients[2] != one.clients[1]
    assert not any(word in told for told in one.clients for word in ("key", "somebody", "127"))
    assert [call["client"] for event in events if event["event"] == "extend" for call in event["tasks"]] == one.clients
    assert replay(json.loads(json.dumps(events))) is None
    await made.close()
