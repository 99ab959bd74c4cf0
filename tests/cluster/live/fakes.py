"""Engines of a cluster that compute nothing: they take in what comes, and say no more."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from paceline.cluster.live.engines import Engines
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, Opened, Opening, PendingAnswer, Submitted, Word
from paceline.cluster.live.mirror import written
from paceline.cluster.live.voyage import Voyage
from paceline.core.errors import CapacityError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.packing import Origin
from paceline.engine.totals import Snapshot, Totals

ORIGIN = Origin("fake", 1000, False)
FACTS = EngineFacts(
    ORIGIN, Path("fake"), {}, frozenset({2}), 4096, 1600, 16, 100, 16, 64, "none", ("none",), 1, "here"
)  # fmt: skip


class FakeLink:
    """The way to none."""

    def __init__(self, name: str, slow: asyncio.Event | None = None) -> None:
        """`slow`: until it is set, the engine takes nothing in."""
        self.name, self.slow, self.dead = name, slow, asyncio.Event()
        self.opened = list[Opening]()

    async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        if self.slow is not None:
            await self.slow.wait()
        self.opened.append(opening)
        if isinstance(opening, Submitted):
            request = Request(0, opening.prompt, opening.params, 0, max_tokens=8)
            yield Opened([1], [written(request, ORIGIN)])
        else:
            yield Opened([1])
        await self.dead.wait()
        raise EngineGoneError(f"{self.name} was killed")

    def give(self, verb: str, *args: Any) -> PendingAnswer:
        return PendingAnswer(None)

    async def ask(self, verb: str, *args: Any) -> Any:
        if verb == "reserve":
            raise CapacityError("no sample moves to an engine that computes nothing")
        return None

    async def facts(self) -> EngineFacts:
        return FACTS

    async def snapshot(self) -> Snapshot:
        if self.dead.is_set():
            raise EngineGoneError(f"{self.name} was killed")
        return Snapshot(0, 0, 100, 0, 0, Totals(), block_size=16)

    def kill(self) -> None:
        self.dead.set()


def sample(engines: Engines, on: FakeLink, blocks: int, priority: int = 0, number: int = 1) -> Voyage:
    """A sample of so many blocks that an engine decodes."""
    params = SamplingParams(priority=priority)
    request = Request(number, [1] * (16 * blocks), params, 0, max_tokens=8, admitted=1.0)
    voyage = Voyage(request, lambda: None, on, number, f"key {number}")
    engines.voyages.going.add(voyage)
    return voyage
