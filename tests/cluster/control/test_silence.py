"""An engine that hangs closes nothing: it is asked whether it is there, and its calls go to others."""

import asyncio
import json
from collections.abc import Callable
from functools import partial

import orjson
import pytest

from paceline.cluster.control import bounds
from paceline.cluster.control import controller as controller_module
from paceline.cluster.control import engines as engines_module
from paceline.cluster.control.controller import Controller
from paceline.cluster.control.engines import HttpEngine, Reply, SmallCall, StreamPieces
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.tasks import CallWork
from tests.bench.load.scripted import Asked, Script, says, scripted
from tests.cluster.waits import until

NAMES = ("hung", "well")
WORK = CallWork("a", 1.0, 1.0)
TINY = b'{"max_tokens": 1}'


class Engine:
    """One in this process; `hung`: it answers nothing."""

    def __init__(self, name: str) -> None:
        self.name, self.hung, self.deaf, self.heard, self.worked, self.asked = name, False, False, 0, 0, 0

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        self.asked += 1
        while self.hung or self.deaf:
            await asyncio.sleep(0.01)
        self.heard += 1
        self.worked += 1
        return Reply(200, self.name.encode())

    async def stream(self, path: str, body: bytes, begun: Callable[[Reply], None], client: str = "") -> Reply:
        self.asked += 1
        pieces = StreamPieces()
        begun(Reply(200, b"", pieces))
        pieces.put(b"data: 1\n\n")
        try:
            while self.hung:
                await asyncio.sleep(0.01)
        finally:
            pieces.end()
        return Reply(200, b"", pieces)

    async def alive(self) -> bool:
        return not self.hung

    there = alive

    async def computes(self, call: SmallCall) -> bool:
        self.asked += 1
        while self.deaf:
            await asyncio.sleep(0.01)
        return True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[Controller, dict[str, Engine]]:
    monkeypatch.setattr(controller_module, "ENGINE_SILENCE_S", 0.02)
    setup = DispatcherSetup("heft", tuple((n, n, 8) for n in NAMES), dict.fromkeys(NAMES, (0.01, 0.0, 0.0)), 0.3, 99.0)
    engines = {name: Engine(name) for name in NAMES}
    return Controller(setup.dispatcher(), engines), engines


async def test_calls_leave_an_engine_that_hangs(made: tuple[Controller, dict[str, Engine]]) -> None:
    controller, engines = made
    engines["hung"].hung = True
    replies = await asyncio.wait_for(asyncio.gather(*(controller.call(str(i), WORK, "/x", b"") for i in range(8))), 30)
    assert {reply.body for reply in replies} == {b"well"} and engines["hung"].asked > 0
    assert not controller.dispatcher.instances["hung"].alive
    engines["hung"].hung = False
    async with asyncio.timeout(30):
        while not controller.dispatcher.instances["hung"].alive:
            await asyncio.sleep(0.01)
    await controller.close()


async def test_one_that_is_there_is_left_alone(made: tuple[Controller, dict[str, Engine]]) -> None:
    """However long a call takes; and one without another next to it has nobody to give its calls to."""
    controller, engines = made
    for engine in engines.values():
        engine.there = always  # type: ignore[method-assign]
        engine.hung = True
    asking = asyncio.ensure_future(controller.call("a", WORK, "/x", b""))
    await asyncio.sleep(0.2)
    assert not asking.done() and all(each.alive for each in controller.dispatcher.instances.values())
    for engine in engines.values():
        del engine.there
    controller.dispatcher.turn("well", False, controller.clock())
    controller.dispatcher.turn("hung", False, controller.clock())
    controller.dispatcher.turn("hung", True, controller.clock())
    controller._soon()
    await asyncio.sleep(0.2)
    assert not asking.done() and controller.dispatcher.instances["hung"].alive
    asking.cancel()
    await controller.close()


@pytest.mark.parametrize("several", [False, True], ids=["deaf", "computes several calls at once"])
async def test_calls_leave_an_engine_that_says_it_is_there_and_computes_nothing(
    several: bool, made: tuple[Controller, dict[str, Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not one whose calls take long while it answers a small one."""
    monkeypatch.setattr(controller_module, "TRIAL_AFTER_S", 0.02)
    monkeypatch.setattr(controller_module, "LEAST_PATIENCE_S", 0.2)
    monkeypatch.setattr(bounds, "SLOW_OUTPUT_RATE", 1e9)
    monkeypatch.setattr(bounds, "SLOW_PROMPT_RATE", 1e9)
    controller, engines = made
    hung = engines["hung"]
    hung.deaf = True
    hung.there = always  # type: ignore[method-assign]
    if several:
        hung.computes = lambda call: always()  # type: ignore[method-assign]
    asking = [asyncio.ensure_future(controller.call(str(i), WORK, "/x", TINY)) for i in range(8)]
    if several:
        await until(lambda: hung.worked > 5)
        assert controller.dispatcher.instances["hung"].alive and not all(each.done() for each in asking)
        hung.deaf = False
    replies = await asyncio.wait_for(asyncio.gather(*asking), 30)
    assert several or {reply.body for reply in replies} == {b"well"}
    assert controller.dispatcher.instances["hung"].alive == several
    if not several:  # it comes back when it computes, not when it says that it is there
        asked = hung.asked
        await until(lambda: hung.asked > asked)
        assert not controller.dispatcher.instances["hung"].alive
        hung.deaf = False
        await until(lambda: controller.dispatcher.instances["hung"].alive)
    await controller.close()


@pytest.mark.parametrize(
    ("status", "up"), [("404 Not Found", True), ("401 Unauthorized", True), ("503 Loading", False)]
)
async def test_an_engine_without_a_list_of_models_comes_back(status: str, up: bool) -> None:
    async with scripted(says(plain(status))) as server:
        assert await HttpEngine(server.url).alive() is up


async def test_what_counts_as_computed() -> None:
    """An answer to a call and the events of a stream; neither a list of models, nor a refusal, nor a comment."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if b"stream" in asked.body:
            writer.write(head + b": wait\n\n")
            await writer.drain()
            await until(lambda: engine.heard == 4)
            assert engine.worked == 1
            writer.write(b"data: 1\n\n")
            await writer.drain()
            writer.close()
        else:
            writer.write(plain("400 Bad Request" if b"bad" in asked.body else "200 OK"))

    async with scripted(script) as server:
        engine = HttpEngine(server.url)
        for body, worked in ((None, 0), (b"bad", 0), (b"{}", 1)):
            await engine.ask("/completions", body)
            assert engine.worked == worked
        await engine.stream("/completions", b"stream", lambda reply: None)
        assert engine.heard >= 5 and engine.worked >= 2
        assert await engine.computes(SmallCall.like("/chat/completions", b'{"model": "m", "messages": []}'))
        small = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        assert server.asked[-1].json == small and server.asked[-1].path == "/v1/chat/completions"
        assert orjson.loads(SmallCall.like("/completions", b"[").body) == {"prompt": "a", "max_tokens": 1}


async def always() -> bool:
    return True


async def test_one_that_speaks_while_it_is_probed_is_left_alone(made: tuple[Controller, dict[str, Engine]]) -> None:
    controller, engines = made
    probes = 0

    async def late(engine: Engine) -> bool:
        nonlocal probes
        probes += 1
        engine.heard += 1
        return False

    for engine in engines.values():
        engine.there = partial(late, engine)  # type: ignore[method-assign]
        engine.hung = True
    asking = asyncio.ensure_future(controller.call("a", WORK, "/x", b""))
    await until(lambda: probes > 2 * controller_module.MOST_SILENT_PROBES)
    assert not asking.done() and all(each.alive for each in controller.dispatcher.instances.values())
    asking.cancel()
    await controller.close()


def over_http(*urls: str) -> Controller:
    setup = DispatcherSetup("heft", tuple((u, u, 8) for u in urls), dict.fromkeys(urls, (0.01, 0.0, 0.0)), 0.3, 99.0)
    return Controller(setup.dispatcher(), {url: HttpEngine(url) for url in urls})


def plain(status: str, body: bytes = b"{}") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def answering(call: asyncio.Event, probe: Script) -> Script:
    """An engine that answers calls after an event, and probes as this script does."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/v1/models":
            await probe(asked, writer)
            return
        await call.wait()
        writer.write(plain("200 OK"))

    return script


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "429 Too Many Requests", "503 Loading"])
async def test_any_status_says_that_an_engine_is_there(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "ENGINE_SILENCE_S", 0.01)
    call = asyncio.Event()
    script = answering(call, says(plain(status)))
    async with scripted(script) as one, scripted(script) as two:
        controller = over_http(one.url, two.url)
        asking = asyncio.ensure_future(controller.call("a", WORK, "/completions", b"{}"))
        await until(lambda: len(one.asked + two.asked) > 3 * controller_module.MOST_SILENT_PROBES)
        assert not asking.done() and all(each.alive for each in controller.dispatcher.instances.values())
        call.set()
        assert (await asyncio.wait_for(asking, 30)).status == 200
        await controller.close()


async def test_calls_leave_an_engine_that_takes_connections_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "ENGINE_SILENCE_S", 0.01)
    monkeypatch.setattr(engines_module, "ENGINE_PROBE_S", 0.1)
    never = asyncio.Event()

    async def hangs(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await never.wait()

    async with scripted(hangs) as hung, scripted(says(plain("200 OK"))) as well:
        controller = over_http(hung.url, well.url)
        asking = (controller.call(str(i), WORK, "/completions", b"{}") for i in range(4))
        replies = await asyncio.wait_for(asyncio.gather(*asking), 30)
        assert {reply.status for reply in replies} == {200}
        probes = sum(asked.path == "/v1/models" for asked in hung.asked)
        assert probes >= controller_module.MOST_SILENT_PROBES
        await controller.close()
        never.set()


async def test_a_probe_waits_for_an_answer_but_not_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed connection is asked again: this router's calls may have all places."""
    assert controller_module.MOST_SILENT_PROBES * engines_module.ENGINE_PROBE_S >= 60
    monkeypatch.setattr(engines_module, "PROBE_AGAIN_S", 0.01)

    async def full(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.number > 2:
            writer.write(plain("200 OK"))
        else:
            writer.close()

    async with scripted(full) as server:
        url = server.url
        assert await HttpEngine(url).there() and len(server.asked) == 4
    assert not await asyncio.wait_for(HttpEngine(url).there(), engines_module.ENGINE_PROBE_S / 2)
    monkeypatch.setattr(engines_module, "ENGINE_PROBE_S", 0.1)
    async with scripted(says(b"", close=True)) as server:
        assert not await HttpEngine(server.url).there() and len(server.asked) > 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_is_too_large_costs_no_engine(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.load.client.MOST_ANSWER_BYTES", 10_000)
    async with scripted(says(plain("200 OK", b"x" * 20_000))) as one, scripted(says(plain("200 OK"))) as two:
        controller = over_http(one.url, two.url)
        assert await controller.engines[one.url].there()  # type: ignore[attr-defined]
        controller.dispatcher.turn(two.url, False, controller.clock())
        asking = controller.call("a", WORK, "/completions", b"{}", stream=stream)
        reply = await asyncio.wait_for(asking, 30)
        error = json.loads(reply.body)["error"]
        assert reply.status == 502 and error["code"] == "response_too_large" and "ask for fewer" in error["message"]
        assert controller.dispatcher.instances[one.url].alive and len(one.asked) == 2 and not two.asked
        await controller.close()
