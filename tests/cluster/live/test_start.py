"""An engine that never becomes ready."""

import asyncio
from typing import Any

import pytest

from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.messages import EngineGoneError


class SilentLink:
    """The way to an engine that never answers."""

    def __init__(self, name: str) -> None:
        self.name, self.killed = name, False

    async def facts(self) -> Any:
        await asyncio.Event().wait()

    def kill(self) -> None:
        self.killed = True


async def test_an_engine_whose_start_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "START_S", 0.05)
    made = list[SilentLink]()

    def make(name: str) -> Any:
        made.append(SilentLink(name))
        return made[-1]

    engines = Engines(make)
    with pytest.raises(EngineGoneError, match=r"engine-1 was not ready within 0\.05 s"):
        await asyncio.wait_for(engines.start(1), 30)
    assert made[0].killed and not engines.states
    await engines.close()
