"""What waits for an engine has an end, whatever the engine, Ray or the connection do not say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cluster.control import ray_engine
from paceline.cluster.control.controller import Controller
from paceline.cluster.control.engines import EngineLost, HttpEngine, Reply, StreamPieces
from paceline.cluster.control.ray_engine import RayEngine
from paceline.cluster.live import actors
from paceline.cluster.live import engines as live
from paceline.cluster.live.actors import ActorLink, RaySession
from paceline.cluster.live.adapters import MOST_READERS_LOST
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.messages import EngineGoneError, Opening, PendingAnswer, Submitted, Word
from paceline.cluster.workflow.policies import DispatcherSetup
from paceline.cluster.workflow.tasks import CallWork
from paceline.core.errors import LostError
from paceline.core.params import SamplingParams
from tests.cluster.live.fakes import FakeLink
from tests.cluster.waits import CLUSTER_WAIT_S, until

PROMPT = Submitted([1, 2], SamplingParams())


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


class MuteActor:
    """An actor that Ray says nothing of."""

    def __init__(self) -> None:
        self.open = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._stream))

    async def _stream(self, *_: Any) -> AsyncIterator[Any]:
        await never()
        yield

    def __getattr__(self, verb: str) -> Any:
        return SimpleNamespace(remote=never)


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> MuteActor:
    """In place of all actors, with a Ray that takes no notice of it."""
    actor = MuteActor()
    made = SimpleNamespace(remote=lambda *_: actor)
    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=KeyError),
        kill=lambda *_: None,
        remote=lambda **_: lambda cls: made,
        options=lambda **_: made,
    )
    monkeypatch.setattr(actors, "ray_for", lambda what: ray)
    monkeypatch.setattr(ray_engine, "ray_for", lambda what: ray)
    return actor


@pytest.mark.parametrize("what", ["open", "ask", "snapshot"])
async def test_who_waits_for_an_actor_is_told_when_it_is_given_up(what: str, mute: MuteActor) -> None:
    """Also where Ray never says that it is dead."""
    host = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: mute))
    link = ActorLink("engine-1", {}, 0.0, {}, RaySession("127.0.0.1:1", Path("logs"), host))
    waits = {"open": lambda: anext(link.open("key", PROMPT)), "ask": lambda: link.ask("leave", "key")}
    asking = asyncio.ensure_future(waits.get(what, link.snapshot)())
    await asyncio.sleep(0.01)
    assert not asking.done()
    link.kill()
    with pytest.raises(EngineGoneError, match="engine-1 was given up"):
        await asyncio.wait_for(asking, CLUSTER_WAIT_S)


async def test_an_actor_that_never_answers_a_call_loses_it(monkeypatch: pytest.MonkeyPatch, mute: MuteActor) -> None:
    monkeypatch.setattr(ray_engine, "READY_S", 0.01)
    engine = RayEngine({}, "demo", timeout=0.01)
    with pytest.raises(EngineLost, match=r"no answer within 0\.01 s"):
        await asyncio.wait_for(engine.ask("/completions", b"{}"), CLUSTER_WAIT_S)
    assert not await asyncio.wait_for(engine.alive(), CLUSTER_WAIT_S)


async def test_an_adapter_that_ends_whoever_reads_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FIRST_REVIVAL_S", 0.01)
    reads = list[str]()

    class Reader(FakeLink):
        async def ask(self, verb: str, *args: Any) -> Any:
            reads.append(self.name)
            self.kill()
            raise EngineGoneError("killed")

    engines = Engines(Reader)
    await engines.start(2)
    with pytest.raises(LostError, match="check them"):
        await asyncio.wait_for(engines.adapters.read(Path("deadly"), None), CLUSTER_WAIT_S)
    assert len({*reads}) == MOST_READERS_LOST
    await engines.close()


async def test_a_move_ends_where_the_news_of_its_sample_cannot_be_read() -> None:
    """Its source never answers, and what comes of its stream is no news."""
    parked = asyncio.Event()

    class Garbled(FakeLink):
        async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
            async for word in super().open(key, opening):
                yield word
                await parked.wait()
                yield ValueError("no news")

        def give(self, verb: str, *args: Any) -> PendingAnswer:
            if verb == "park":
                parked.set()
            return PendingAnswer(asyncio.ensure_future(never()))

        async def ask(self, verb: str, *args: Any) -> Any:
            return 0

    engines = Engines(Garbled)
    await engines.start(2)
    [voyage] = await engines.voyages.begin(PROMPT, lambda request: None)
    to = next(state.link for state in engines.states.values() if state.link is not voyage.link)
    assert await asyncio.wait_for(engines.move(voyage, to), CLUSTER_WAIT_S) == "ended"
    assert voyage.request.finish == "error" and not engines._arriving
    await engines.close()


async def test_a_call_that_fails_in_an_unknown_way_has_an_end() -> None:
    class Odd:
        async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
            raise ValueError("odd")

        async def alive(self) -> bool:
            return True

    setup = DispatcherSetup("hexgen", (("one", "k", 2),), {"k": (0.01, 0.1, 1.0)})
    made = Controller(setup.dispatcher(), {"one": Odd()})
    made.most_losses = 1
    with pytest.raises(EngineLost, match="odd"):
        await asyncio.wait_for(made.call("w", CallWork("a"), "/x", b"1"), CLUSTER_WAIT_S)
    await made.close()


async def test_a_stream_that_fails_in_an_unknown_way_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, begun = HttpEngine("http://127.0.0.1:9"), list[StreamPieces]()

    async def breaks(path: str, sink: Any, *_: Any) -> None:
        sink.head(200, "text/event-stream")
        sink.body(b"data: 1\n\n", 0.0)
        raise ValueError("odd")

    monkeypatch.setattr(engine._client, "send", breaks)

    def take(reply: Reply) -> None:
        assert reply.stream is not None
        begun.append(reply.stream)

    asking = asyncio.create_task(engine.stream("/completions", b"{}", take))
    await until(asking.done)
    assert isinstance(asking.exception(), ValueError)
    with pytest.raises(EngineLost, match="odd"):
        async with asyncio.timeout(CLUSTER_WAIT_S):
            assert [piece async for piece in begun[0]] == []
