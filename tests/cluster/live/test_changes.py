"""Changes of a cluster under way: who asked leaves, others ask too, engines say nothing for a while."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.freeness import MOVES_AT_ONCE, ScaleRule
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, EngineLink, Submitted
from paceline.cluster.live.voyage import Voyage
from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.totals import Snapshot
from tests.cluster.live.fakes import FakeLink, sample
from tests.cluster.live.test_engines import fakes, link, quick
from tests.cluster.waits import until

__all__ = ["quick"]
RULE = ScaleRule(low=1, high=1000, patience_s=0.02, fewest=2, most=3)
"""The load changes nothing."""


class SlowStart(FakeLink):
    """It is not ready before `go` is set, and broken if that is said."""

    go: asyncio.Event
    broken = False

    async def facts(self) -> Any:
        await self.go.wait()
        if self.broken:
            raise EngineGoneError("no memory")
        return await super().facts()


def slow_starts(engines: Engines) -> asyncio.Event:
    class Slow(SlowStart):
        go = asyncio.Event()

    engines.make = Slow
    return Slow.go


async def rounds(count: int = 5) -> None:
    """A while in which the load is looked at."""
    await asyncio.sleep(count * (live.LOOK_S + 0.01))


async def given_up(work: Any, when: Callable[[], bool]) -> None:
    """Begin work, and leave once it has come so far."""
    task = asyncio.create_task(work)
    await until(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("what", ["more", "fewer", "drain", "renew"])
async def test_a_change_whose_caller_leaves_is_done(what: str) -> None:
    engines = await fakes(2)
    go = slow_starts(engines)
    held = [sample(engines, link(engines, number), 1, number=number) for number in (1, 2)]

    def one_drains() -> bool:
        return any(state.draining for state in engines.states.values())

    work: dict[str, Any] = {"more": lambda: engines.scale(3), "fewer": lambda: engines.scale(1),
                            "drain": lambda: engines.drain("engine-1"), "renew": engines.renew}  # fmt: skip
    await given_up(work[what](), one_drains if what in ("fewer", "drain") else lambda: engines.coming == 1)
    for voyage in held:
        engines.voyages.going.discard(voyage)
    go.set()
    want = {"more": 3, "fewer": 1, "drain": 1, "renew": 2}[what]
    await until(lambda: len(engines.states) == want and not one_drains() and not engines.coming)
    if what == "renew":
        await until(lambda: {*engines.states} == {"engine-3", "engine-4"})
    assert engines.wanted == want and engines.lacking == 0
    await engines.close()


async def test_a_change_that_fails_after_its_caller_left_is_told(caplog: pytest.LogCaptureFixture) -> None:
    engines = await fakes(1)
    go = slow_starts(engines)
    SlowStart.broken = True
    try:
        await given_up(engines.scale(2), lambda: engines.coming == 1)
        go.set()
        await until(lambda: not engines.coming)
        await until(lambda: "no memory" in caplog.text)
    finally:
        SlowStart.broken = False
    assert engines.wanted == 1
    await engines.close()


async def test_two_renewals_at_once_are_one() -> None:
    engines = await fakes(2)
    await asyncio.gather(engines.renew(), engines.renew())
    assert [*engines.states] == ["engine-3", "engine-4"] and engines.lacking == 0
    await engines.renew()
    assert [*engines.states] == ["engine-5", "engine-6"]
    await engines.close()


@pytest.mark.parametrize("how", ["scale", "drain"])
async def test_the_load_does_not_undo_what_was_asked_for(how: str) -> None:
    engines = await fakes(2)
    engines.rule = RULE
    await (engines.scale(1) if how == "scale" else engines.drain("engine-1"))
    await rounds()
    assert len(engines.states) == engines.wanted == 1 and engines.coming == 0
    await engines.scale(3)
    engines.rule = ScaleRule(0, 1, 0.0, engines.rule.fewest, 3)
    await rounds()
    assert len(engines.states) == engines.wanted == 3, "nor more than there were at first"
    await engines.close()


async def test_engines_without_room_are_refused() -> None:
    """Also those of a renewal, in which one more is there for a while."""
    engines = await fakes(2)

    def check_room(count: int) -> None:
        if count > 2:
            raise InputError(f"no room for {count}")

    engines.check_room = check_room
    for change in (engines.scale(3), engines.renew()):
        with pytest.raises(InputError, match="no room for 3"):
            await change
    assert engines.wanted == 2 and engines.coming == 0
    await engines.close()


async def test_more_than_the_most_are_refused() -> None:
    engines = await fakes(2)
    engines.rule = RULE
    with pytest.raises(InputError, match=r"engines is 4, .* at most 3 \(max_engines\); ask for 1 to 3"):
        await engines.scale(4)
    assert engines.wanted == 2 and engines.coming == 0
    await engines.close()


async def test_a_failed_start_is_not_tried_at_each_look() -> None:
    engines, tries = await fakes(2), list[str]()
    engines.rule = RULE

    def broken(name: str) -> FakeLink:
        tries.append(name)
        raise EngineGoneError("no memory")

    engines.make = broken
    with pytest.raises(EngineGoneError):
        await engines.scale(3)
    await rounds()
    assert len(tries) == 1 and engines.wanted == 2
    await engines.close()


class SilentLink(FakeLink):
    """It answers nothing while `quiet`."""

    quiet = False
    asked = 0

    async def snapshot(self) -> Snapshot:
        self.asked += 1
        if self.quiet:
            await asyncio.sleep(3600)
        return await super().snapshot()


async def test_a_silent_engine_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are asked, decided on and given requests, it is not; and it is not replaced, for it may come back."""
    monkeypatch.setattr(live, "SIGN_OF_LIFE_S", 0.02)
    monkeypatch.setattr(live, "ANSWER_S", 1.0)
    engines = Engines(SilentLink)
    await engines.start(3)
    engines.rule = ScaleRule(1, 1000, 0.02, 3, 4)
    silent = engines.states["engine-1"].link
    assert isinstance(silent, SilentLink)
    silent.quiet = True
    await until(lambda: engines.states["engine-1"].silent)
    for number in range(40):
        sample(engines, link(engines, 2 + number % 2), 1, number=number)
    assert (await engines.freest()).name != "engine-1", "though it is the freest"
    other = engines.states["engine-2"].link
    assert isinstance(other, SilentLink)
    before = other.asked
    await until(lambda: other.asked > before + 3)
    assert "engine-1" in engines.states and len(engines.states) == 3 and engines.lost_count == 0
    assert silent.asked < other.asked, "one question at a time"
    await until(lambda: engines.lost_count == 1)
    await until(lambda: len(engines.states) == 3)
    await engines.close()


async def test_a_silent_engine_is_dead_sooner_while_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has goes on elsewhere, and nobody takes its place."""
    monkeypatch.setattr(live, "SIGN_OF_LIFE_S", 0.01)
    monkeypatch.setattr(live, "LAST_ANSWER_S", 0.1)
    engines = Engines(SilentLink)
    await engines.start(2)
    silent = engines.states["engine-1"].link
    assert isinstance(silent, SilentLink)
    silent.quiet = True
    await until(lambda: engines.states["engine-1"].silent)
    await asyncio.sleep(0.3)
    assert engines.lost_count == 0
    engines.ending = lambda: True
    await until(lambda: engines.lost_count == 1)
    await rounds()
    assert silent.dead.is_set() and [*engines.states] == ["engine-2"] and engines.coming == 0
    await engines.close()


async def test_a_silent_engine_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SIGN_OF_LIFE_S", 0.01)
    engines, answer = await fakes(2), asyncio.Event()
    late, plain = link(engines, 1), link(engines, 1).snapshot

    async def slowly() -> Snapshot:
        await answer.wait()
        return await plain()

    monkeypatch.setattr(late, "snapshot", slowly)
    await until(lambda: engines.states["engine-1"].silent)
    engines.states["engine-2"].draining = True
    assert (await engines.freest()) is late, "where no other takes any, it is asked"
    answer.set()
    await until(lambda: not engines.states["engine-1"].silent)
    await engines.close()


@pytest.mark.parametrize("broken", [False, True])
async def test_a_scale_waits_for_an_engine_that_is_being_revived(broken: bool) -> None:
    engines = await fakes(2)
    go = slow_starts(engines)
    SlowStart.broken = broken
    try:
        link(engines, 1).kill()
        await until(lambda: engines.coming == 1)
        change = asyncio.create_task(engines.scale(2))
        await rounds(3)
        assert not change.done()
        go.set()
        if broken:
            with pytest.raises(EngineGoneError, match="no memory"):
                await change
            assert engines.wanted == 2, "it is tried again"
        else:
            await change
            assert len(engines.states) == 2
    finally:
        SlowStart.broken = False
    await engines.close()


async def test_a_scale_does_not_wait_for_an_engine_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its revival is tried again and again, and who asks is told."""
    monkeypatch.setattr(live, "FIRST_REVIVAL_S", 0.05)
    engines = await fakes(2)

    def broken(name: str) -> FakeLink:
        raise EngineGoneError("no memory")

    engines.make = broken
    link(engines, 1).kill()
    await until(lambda: engines.coming == 1)
    with pytest.raises(EngineGoneError, match="no memory"):
        await asyncio.wait_for(engines.scale(2), 5)
    engines.make = FakeLink
    await until(lambda: len(engines.states) == 2)
    await engines.close()


async def test_a_drain_moves_several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more than it may, and each where there is room after those that are on their way."""
    engines, held = await fakes(3), asyncio.Event()
    for number in range(20):
        sample(engines, link(engines, 1), 4, number=number)
    went, now, most = list[str](), 0, 0

    async def slow_move(voyages: object, voyage: Voyage, to: EngineLink) -> str:
        nonlocal now, most
        now, voyage.moving = now + 1, True
        most = max(most, now)
        went.append(to.name)
        await held.wait()
        now, voyage.moving, voyage.link = now - 1, False, to
        return "moved"

    monkeypatch.setattr(live, "move", slow_move)
    monkeypatch.setattr(engines, "_round", lambda: None)  # no round moves any before the drain
    drain = asyncio.create_task(engines.drain("engine-1"))
    await until(lambda: now == MOVES_AT_ONCE)
    assert sorted(went) == ["engine-2"] * (MOVES_AT_ONCE // 2) + ["engine-3"] * (MOVES_AT_ONCE // 2)
    held.set()
    await asyncio.wait_for(drain, 20)
    assert most == MOVES_AT_ONCE and len(went) == 20 and "engine-1" not in engines.states and engines.moved_count == 20
    await engines.close()


async def test_a_move_counts_at_both_ends() -> None:
    """The blocks at the destination are reserved, and those at the source held until it has left."""
    engines, held = await fakes(2), asyncio.Event()
    voyage = sample(engines, link(engines, 1), 4)

    async def waits(*_: object) -> None:
        await held.wait()

    link(engines, 2).ask = waits  # type: ignore[method-assign,assignment]
    moving = asyncio.create_task(engines.move(voyage, link(engines, 2)))
    await asyncio.sleep(0.01)
    assert [load.used for load in engines.loads()] == [4, 4]
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert [load.used for load in engines.loads()] == [4, 0]
    await engines.close()


async def test_a_sample_that_waits_for_its_turn_outlives_several_engines() -> None:
    """It got no token of five in a row, and is not what ended them."""
    engines = await fakes(2)
    [voyage] = await engines.voyages.begin(Submitted([1, 2], SamplingParams()), lambda request: None)
    for _ in range(5):
        dead = voyage.link
        dead.kill()
        await until(lambda dead=dead: voyage.over or voyage.link is not dead)
    assert voyage.request.finish is None and voyage in engines.voyages.going
    engines.voyages.end([voyage])
    await engines.close()


async def test_one_that_drains_serves_on_where_no_other_is_left() -> None:
    """The others died; it goes when a new one is there."""
    ready = asyncio.Event()
    engines = await fakes(2)
    drained = asyncio.create_task(engines.drain("engine-1"))
    held = sample(engines, link(engines, 1), 2)
    await until(lambda: engines.states["engine-1"].draining)

    class SlowLink(FakeLink):
        async def facts(self) -> EngineFacts:
            await ready.wait()
            return await super().facts()

    engines.make = SlowLink
    engines.lost(link(engines, 2), EngineGoneError("killed"))
    assert (await engines.freest(patience_s=1.0)).name == "engine-1"
    engines.voyages.going.discard(held)
    await asyncio.sleep(0.2)
    assert "engine-1" in engines.states and not drained.done()
    with pytest.raises(InputError, match="drains already"):
        await engines.drain("engine-1")
    with pytest.raises(InputError, match="no engine 'engine-9'"):
        await engines.drain("engine-9")
    ready.set()
    await drained
    assert [*engines.states] == ["engine-3"]
    await engines.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_what_dies_while_a_renewal_has_one_more_is_replaced(count: int) -> None:
    """Of three, one that is not its turn yet; of one, itself and the one that is to come after it."""
    ready = asyncio.Event()
    engines = await fakes(count)

    class LateLink(FakeLink):
        async def facts(self) -> EngineFacts:
            await ready.wait()
            if count == 1 and self.name == "engine-2":
                raise EngineGoneError("killed as it loads")
            return await super().facts()

    engines.make = LateLink
    renewal = asyncio.create_task(engines.renew())
    await until(lambda: engines.coming == 1)
    engines.lost(link(engines, count), EngineGoneError("killed"))
    ready.set()
    if count == 1:
        with pytest.raises(EngineGoneError):
            await renewal
    else:
        await renewal
    await until(lambda: engines.serving == count and not engines.coming)
    assert engines.wanted == count and not {f"engine-{n}" for n in range(1, count + 1)} & engines.states.keys()
    await engines.close()


async def test_one_more_that_is_asked_for_during_a_renewal_comes_on_top() -> None:
    """What the renewal starts is no answer to it."""
    engines = await fakes(2)
    go = slow_starts(engines)
    renewal = asyncio.create_task(engines.renew())
    await until(lambda: engines.coming == 1)
    assert engines.lacking == 0
    more = asyncio.create_task(engines.scale(3))
    await until(lambda: engines.coming == 2)
    go.set()
    await asyncio.gather(renewal, more)
    assert engines.serving == 3 and engines.coming == 0 and not {"engine-1", "engine-2"} & engines.states.keys()
    await engines.close()
