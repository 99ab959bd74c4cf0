"""Which engines there are and what goes where, with engines that compute nothing."""

import asyncio
from typing import Any

import pytest

from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.freeness import ScaleRule
from paceline.cluster.live.messages import EngineGoneError, EngineLink, Submitted
from paceline.cluster.live.voyage import Voyage
from paceline.core.params import SamplingParams
from tests.cluster.live.fakes import FakeLink, sample
from tests.cluster.waits import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FIRST_REVIVAL_S", 0.01)
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    monkeypatch.setattr(live, "ROUND_S", 0.01)


def link(engines: Engines, number: int) -> FakeLink:
    found = engines.states[f"engine-{number}"].link
    assert isinstance(found, FakeLink)
    return found


async def fakes(count: int, slow: asyncio.Event | None = None) -> Engines:
    engines = Engines(lambda name: FakeLink(name, slow))
    await engines.start(count)
    return engines


async def test_what_is_not_taken_in_yet_counts() -> None:
    """Requests that come together go to different engines, though none has answered."""
    slow = asyncio.Event()
    engines = await fakes(3, slow)
    prompt = Submitted([1] * 160, SamplingParams(max_tokens=8))
    begun = [asyncio.create_task(engines.voyages.begin(prompt, lambda request: None)) for _ in range(6)]
    await asyncio.sleep(0.01)
    assert [load.waiting for load in engines.loads()] == [2, 2, 2]
    assert [load.queued for load in engines.loads()] == [20, 20, 20]
    slow.set()
    await asyncio.gather(*begun)
    assert not engines._opening and [load.waiting for load in engines.loads()] == [2, 2, 2]
    await engines.close()


async def test_urgent_samples_of_a_dead_engine_go_where_urgent_ones_find_room() -> None:
    engines = await fakes(3)
    sample(engines, link(engines, 1), 1, priority=-1)  # its headroom is closed to others alone
    sample(engines, link(engines, 2), 40, number=2)
    engines.states["engine-3"].draining = True
    for priority, place in ((-1, 1), (0, 2)):
        lost = sample(engines, link(engines, 3), 2, priority, 3)
        await engines.voyages.restore([lost])
        assert lost.link.name == f"engine-{place}"
        engines.voyages.going.discard(lost)
    await engines.close()


async def test_a_drain_knows_what_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, went = await fakes(3), dict[int, str]()
    sample(engines, link(engines, 1), 1, priority=-1)
    sample(engines, link(engines, 2), 40, number=2)
    sample(engines, link(engines, 3), 2, priority=-1, number=3)
    sample(engines, link(engines, 3), 2, number=4)

    async def move(voyage: Voyage, to: EngineLink) -> str:
        went[voyage.request.id] = to.name
        engines.voyages.going.discard(voyage)
        return "moved"

    monkeypatch.setattr(engines, "move", move)
    await engines.drain("engine-3")
    assert went == {3: "engine-1", 4: "engine-2"} and len(engines.states) == 2
    await engines.close()


async def test_a_drain_waits_for_what_is_being_taken_in() -> None:
    slow = asyncio.Event()
    engines = await fakes(2, slow)
    begun = asyncio.create_task(engines.voyages.begin(Submitted([1], SamplingParams()), lambda request: None))
    await until(lambda: bool(engines._opening))
    [(name, _)] = engines._opening.values()
    drain = asyncio.create_task(engines.drain(name))
    await asyncio.sleep(0.1)
    assert name in engines.states and not drain.done()
    slow.set()
    [voyage] = await begun
    assert voyage.link.name == name
    engines.voyages.end([voyage])
    await asyncio.wait_for(drain, 20)
    await engines.close()


async def test_a_new_engine_comes_for_one_that_dies_while_another_drains() -> None:
    """What drains is no engine that is wanted."""
    engines = await fakes(2)
    held = sample(engines, link(engines, 1), 1)
    drain = asyncio.create_task(engines.drain("engine-1"))
    await asyncio.sleep(0.01)
    link(engines, 2).kill()
    await until(lambda: "engine-3" in engines.states)
    engines.voyages.going.discard(held)
    await asyncio.wait_for(drain, 20)
    assert list(engines.states) == ["engine-3"] and engines.wanted == 1 and engines.lacking == 0
    await engines.close()


async def test_engines_that_cannot_be_started_are_not_wanted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, sizes = await fakes(2), list[int]()
    engines.resized = lambda: sizes.append(engines.wanted)

    async def broken(self: FakeLink) -> Any:
        raise EngineGoneError("no memory")

    monkeypatch.setattr(FakeLink, "facts", broken)
    with pytest.raises(EngineGoneError, match="no memory"):
        await engines.scale(4)
    assert engines.wanted == 2 and engines.coming == 0 and sizes == [4, 2]
    await engines.close()


async def test_starts_that_fail_leave_what_others_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts fail after somebody else wanted one engine alone: one is wanted."""
    engines, start = await fakes(2), asyncio.Event()

    async def broken(self: FakeLink) -> Any:
        await start.wait()
        raise EngineGoneError("no memory")

    monkeypatch.setattr(FakeLink, "facts", broken)
    more = asyncio.create_task(engines.scale(4))
    await until(lambda: engines.coming == 2)
    await engines.scale(1)
    start.set()
    with pytest.raises(EngineGoneError):
        await more
    assert engines.wanted == 1 and len(engines.states) == 1
    await engines.close()


@pytest.mark.parametrize("how", ["dies", "is drained"])
async def test_an_engine_that_goes_while_its_successor_starts(how: str) -> None:
    """The renewal goes on, and there are as many engines as are wanted."""
    engines, start = await fakes(3), asyncio.Event()

    class SlowStart(FakeLink):
        async def facts(self) -> Any:
            await start.wait()
            return await super().facts()

    engines.make = SlowStart
    renewal = asyncio.create_task(engines.renew())
    await until(lambda: engines.coming == 1)
    if how == "dies":
        link(engines, 1).kill()
        await until(lambda: "engine-1" not in engines.states)
    else:
        await engines.drain("engine-1")
    start.set()
    await asyncio.wait_for(renewal, 20)
    await until(lambda: engines.coming == 0)
    assert len(engines.states) == engines.wanted == (3 if how == "dies" else 2) and engines.lacking == 0
    await engines.close()


async def test_fewer_are_wanted_while_one_is_being_started() -> None:
    engines = await fakes(2)
    start = asyncio.Event()

    class SlowStart(FakeLink):
        async def facts(self) -> Any:
            await start.wait()
            return await super().facts()

    engines.make = SlowStart
    link(engines, 1).kill()
    await until(lambda: engines.coming == 1)
    await engines.scale(1)
    assert list(engines.states) == ["engine-2"], "the only one that serves stays"
    start.set()
    await until(lambda: engines.coming == 0)
    assert list(engines.states) == ["engine-2"]
    await engines.close()


async def test_their_number_follows_the_load() -> None:
    engines = await fakes(1)
    engines.rule = ScaleRule(low=50, high=90, patience_s=0.02, fewest=1, most=3)
    busy = [sample(engines, link(engines, 1), 30, number=n) for n in range(4)]
    await until(lambda: len(engines.states) == 3)
    await asyncio.sleep(0.1)
    assert engines.wanted == 3
    for voyage in busy:
        engines.voyages.going.discard(voyage)
    await until(lambda: len(engines.states) == 1)
    assert engines.wanted == 1 and engines.lost_count == 0
    await engines.close()


async def test_a_round_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, calls = await fakes(1), list[int]()

    def round_() -> None:
        calls.append(1)
        raise RuntimeError("a slip")

    monkeypatch.setattr(engines, "_round", round_)
    await until(lambda: len(calls) > 2)
    link(engines, 1).kill()
    await until(lambda: "engine-2" in engines.states)
    await engines.close()
