"""Engines of a cluster in this process: real ones, whose death is that nothing answers any more."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.cluster.live.host import EngineHost
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, Opening, PendingAnswer, Word
from paceline.engine.totals import Snapshot


class DirectLink:
    """The way to an `EngineHost` in this process."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.host, self.dead = name, EngineHost(options), asyncio.Event()
        self.began = 0

    async def _while_alive(self, work: Any) -> Any:
        """What comes of it, or EngineGoneError once the engine is dead."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self.dead.wait())
        await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
        if self.dead.is_set():
            task.cancel()
            raise EngineGoneError(f"{self.name} was killed")
        death.cancel()
        return task.result()

    async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        stream = self.host.open(key, opening)
        while True:
            try:
                yield await self._while_alive(anext(stream))
            except StopAsyncIteration:
                return

    def give(self, verb: str, *args: Any) -> PendingAnswer:
        return PendingAnswer(asyncio.ensure_future(self._while_alive(self.host.ask(verb, *args))))

    async def ask(self, verb: str, *args: Any) -> Any:
        answer = await self._while_alive(self.host.ask(verb, *args))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def facts(self) -> EngineFacts:
        facts: EngineFacts = await self._while_alive(self.host.facts())
        return facts

    async def snapshot(self) -> Snapshot:
        now: Snapshot = await self._while_alive(self.host.snapshot())
        return now

    def kill(self) -> None:
        if not self.dead.is_set():
            self.dead.set()
            asyncio.get_running_loop().run_in_executor(None, self.host.close)


@contextmanager
def held(links: Iterable[DirectLink], tokens: int = 4) -> Iterator[None]:
    """Meanwhile these engines make no step once each sample has a token and one has so many: what a test waits for
    stays true until it has seen it. They answer all the same."""
    go, engines = threading.Event(), [link.host.llm.llm.engine for link in links]
    for engine in engines:
        plain = engine.step

        def step(engine: Any = engine, plain: Any = plain) -> Any:
            sizes = [len(request.output) for request in engine.session.requests.values()]
            if go.is_set() or not all(sizes) or max(sizes, default=0) < tokens:
                return plain()
            time.sleep(0.001)
            return None

        engine.step = step
    try:
        yield
    finally:
        go.set()
        for engine in engines:
            del engine.step
