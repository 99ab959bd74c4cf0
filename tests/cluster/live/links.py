"""Engines of a cluster in this process: real ones, whose death is that nothing answers any more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from paceline.cluster.live.host import EngineHost
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, Opening, Pending, Word
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

    def give(self, verb: str, *args: Any) -> Pending:
        return Pending(asyncio.ensure_future(self._while_alive(self.host.ask(verb, *args))))

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
