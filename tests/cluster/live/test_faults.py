"""Faults that kill nobody: slow links, clocks that jump, clients that leave late, a front that is replaced."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.front import ClusterLLM
from paceline.cluster.live.messages import Opening, PendingAnswer, Word
from paceline.cluster.live.voyage import Voyage
from paceline.core.operations import Reserve
from paceline.engine.options import Options
from tests.cluster.live.links import DirectLink, held
from tests.cluster.live.test_live import ASKED, KINDS, OPTIONS, Heard, alone, clean, cluster, heard, links, under_way
from tests.cluster.waits import CLUSTER_WAIT_S, until

__all__ = ["alone", "cluster"]


class SlowLink(DirectLink):
    """Each message takes a while, and never the same."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__(name, options)
        self.rng = random.Random(name)

    async def _late(self) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.02, 0.2)))

    async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        await self._late()
        async for word in super().open(key, opening):
            await self._late()
            yield word

    async def ask(self, verb: str, *args: Any) -> Any:
        await self._late()
        answer = await super().ask(verb, *args)
        await self._late()
        return answer


async def test_a_slow_link_changes_no_text(alone: list[Heard]) -> None:
    """Requests move over it all the while, and one engine dies."""
    engines = Engines(lambda name: SlowLink(name, OPTIONS))
    await engines.start(2)
    llm, rng, moves = ClusterLLM(engines, Options(**OPTIONS)), random.Random(1), set[asyncio.Task[str]]()
    asking = [asyncio.create_task(heard(llm, params)) for params in KINDS]
    for turn in range(25):
        await asyncio.sleep(0.05)
        going, there = list(engines.voyages.going), links(llm)
        if turn == 12:
            there[0].kill()
        elif going and there:
            moves.add(asyncio.create_task(engines.move(rng.choice(going), rng.choice(there))))
    assert list(await asyncio.wait_for(asyncio.gather(*asking), 60)) == alone
    assert {await each for each in moves} <= {"moved", "stayed", "ended"}
    await clean(llm)
    await engines.close()


async def test_an_engine_that_answers_too_late_is_dead(
    alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ANSWER_S", 0.05)
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, _ = await under_way(cluster, asking)

    async def never() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(voyage.link, "snapshot", never)
    await until(lambda: cluster.engines.lost_count == 1)
    monkeypatch.setattr(live, "ANSWER_S", 30.0)
    assert await asyncio.wait_for(asking, 30) == alone[1]
    await clean(cluster)


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
async def test_a_wall_clock_that_jumps_changes_nothing(
    seconds: float, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = [asyncio.create_task(heard(cluster, params)) for params in KINDS]
    with held(links(cluster)):
        await until(lambda: any(len(v.request.output) > 2 for v in cluster.engines.voyages.going), asking)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    for voyage in list(cluster.engines.voyages.going):
        await cluster.engines.move(voyage, random.Random(0).choice(links(cluster)))
    assert (
        list(await asyncio.wait_for(asyncio.gather(*asking), CLUSTER_WAIT_S)) == alone
        and cluster.engines.lost_count == 0
    )
    await clean(cluster)


@pytest.mark.parametrize("when", ["peek", "park", "open"])
async def test_an_engine_whose_own_clock_jumps_gives_its_reservations_back(
    when: str, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour passes at the destination between two messages; the request stays, or is computed again."""
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, to = await under_way(cluster, asking)
    engine, ahead = to.host.llm.llm.engine, [0.0]
    real = engine.now
    monkeypatch.setattr(engine, "now", lambda: real() + ahead[0])
    for link in links(cluster):
        for verb in ("give", "open"):
            plain = getattr(link, verb)

            def jumping(first: str, *args: Any, plain: Any = plain, verb: str = verb) -> Any:
                if when in (first, verb):
                    ahead[0] = 3600.0
                return plain(first, *args)

            monkeypatch.setattr(link, verb, jumping)
    assert await asyncio.wait_for(cluster.engines.move(voyage, to), 30) in ("stayed", "ended")
    assert await asyncio.wait_for(asking, 30) == alone[1]
    await clean(cluster)


@pytest.mark.parametrize("when", ["peek", "park", "open"])
async def test_a_client_leaves_in_each_stage_of_a_move(
    when: str, cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = await cluster.submit([(cluster.llm.text.encode(ASKED), replace(KINDS[0], max_tokens=400))])
    voyage, to = await under_way(cluster)
    left = list[str]()
    for link in links(cluster):
        for verb in ("give", "open"):
            plain = getattr(link, verb)

            def leaving(first: str, *args: Any, plain: Any = plain, verb: str = verb) -> Any:
                if when in (first, verb) and not left:
                    left.append(verb)
                    cluster.abort(subscription)
                return plain(first, *args)

            monkeypatch.setattr(link, verb, leaving)
    await asyncio.wait_for(cluster.engines.move(voyage, to), 30)
    assert left
    await clean(cluster)


async def test_a_new_front_gives_the_same_text(alone: list[Heard], cluster: ClusterLLM) -> None:
    """Its streams end with a front; what is sent again to the next one is answered as before."""
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    await under_way(cluster, asking)
    dead = links(cluster)
    await cluster.engines.close()
    asking.cancel()
    assert all(link.dead.is_set() for link in dead)
    again = Engines(lambda name: DirectLink(name, OPTIONS))
    await again.start(1)
    assert await heard(ClusterLLM(again, Options(**OPTIONS)), KINDS[1]) == alone[1]
    await again.close()


async def swapped(cluster: ClusterLLM, one: Voyage, two: Voyage) -> list[str]:
    """What became of one, two, and one again."""
    moves = ((one, two.link), (two, one.link), (one, two.link))
    return await asyncio.gather(*(cluster.engines.move(voyage, to) for voyage, to in moves))


async def test_requests_that_swap_places(alone: list[Heard], cluster: ClusterLLM) -> None:
    """Both go at once, again and again, and one is sent twice."""
    asking = [asyncio.create_task(heard(cluster, KINDS[which])) for which in (0, 5)]
    with held(links(cluster)):
        await until(lambda: sum(len(v.request.output) > 1 for v in cluster.engines.voyages.going) == 2, asking)
        one, two = cluster.engines.voyages.going
        if one.link is two.link:
            assert await cluster.engines.move(two, next(it for it in links(cluster) if it is not one.link)) == "moved"
        became = await swapped(cluster, one, two)
    for _ in range(2):
        await swapped(cluster, one, two)
    assert became == ["moved", "moved", "stayed"]
    assert list(await asyncio.wait_for(asyncio.gather(*asking), CLUSTER_WAIT_S)) == [alone[0], alone[5]]
    await clean(cluster)


@pytest.mark.parametrize("when", ["reserve", "peek", "settle", "sealed", "park", "open"])
async def test_the_destination_fills_up_in_each_stage_of_a_move(
    when: str, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was reserved is the request's own: it moves, or it stays where its first question came too late."""
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, to = await under_way(cluster, asking)
    engine, taken = to.host.llm.llm.engine, list[int]()

    def fill() -> None:
        if not taken and (room := engine.cache.room()):
            taken.append(engine.apply(Reserve(room)))

    for link in links(cluster):
        for verb in ("ask", "give", "open"):
            plain = getattr(link, verb)

            async def filled(plain: Any, *args: Any) -> Any:
                await to.host.llm.call(fill)
                return await plain(*args)

            def asked(first: str, *args: Any, plain: Any = plain, verb: str = verb) -> Any:
                if when == first and verb == "ask":
                    return filled(plain, first, *args)
                if when in (first, verb):
                    fill()
                return plain(first, *args)

            monkeypatch.setattr(link, verb, asked)
    became = await asyncio.wait_for(cluster.engines.move(voyage, to), 30)
    assert taken and became in (("stayed", "ended") if when == "reserve" else ("moved", "ended"))
    assert await asyncio.wait_for(asking, 30) == alone[1]
    monkeypatch.undo()
    await to.ask("settle", taken[0], None)
    await clean(cluster)


@pytest.mark.parametrize("dies", [False, True])
async def test_a_request_is_its_clients_wherever_it_goes_on(dies: bool, cluster: ClusterLLM) -> None:
    """Clients share an engine's places: of those that came from elsewhere, too."""
    params = replace(KINDS[0], max_tokens=400, client="one of many")
    subscription = await cluster.submit([(cluster.llm.text.encode(ASKED), params)])
    voyage, to = await under_way(cluster)
    before = voyage.link
    if dies:
        before.kill()
        await until(lambda: voyage.link is not before)
    else:
        assert await cluster.engines.move(voyage, to) == "moved"
    engine = voyage.link.host.llm.llm.engine  # type: ignore[attr-defined]
    assert engine.session.requests[voyage.number].params.client == "one of many"
    cluster.abort(subscription)
    await clean(cluster)


@pytest.mark.parametrize("when", ["reserve", "peek", "settle", "park", "open"])
async def test_both_engines_die_in_each_state_of_a_move(
    when: str, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, to = await under_way(cluster, asking)
    both, killed = links(cluster), list[str]()
    for link in both:
        for verb in ("ask", "give", "open"):
            plain = getattr(link, verb)

            def dying(first: str, *args: Any, plain: Any = plain, verb: str = verb) -> Any:
                if when in (first, verb) and not killed:
                    killed.append(verb)
                    for each in both:
                        each.kill()
                return plain(first, *args)

            monkeypatch.setattr(link, verb, dying)
    assert await asyncio.wait_for(cluster.engines.move(voyage, to), 30) in ("stayed", "ended")
    assert await asyncio.wait_for(asking, 30) == alone[1] and killed
    await clean(cluster)


@pytest.mark.parametrize("when", ["peek", "park"])
async def test_what_finds_no_place_on_its_way_costs_no_engine(
    when: str, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's object store is full, and so is the disk that it spills to: what an engine gives is lost, the last blocks
    of a request among it."""
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, to = await under_way(cluster, asking)
    lost = list[str]()
    plain = voyage.link.give

    async def full(given: PendingAnswer) -> Any:
        await given.ref
        raise OSError("no space left on device")

    def give(verb: str, *args: Any) -> PendingAnswer:
        given = plain(verb, *args)
        if verb != when:
            return given
        lost.append(verb)
        return PendingAnswer(asyncio.ensure_future(full(given)))

    monkeypatch.setattr(voyage.link, "give", give)
    assert await asyncio.wait_for(cluster.engines.move(voyage, to), 30) != "moved"
    assert await asyncio.wait_for(asking, 30) == alone[1] and lost
    assert cluster.engines.lost_count == 0
    await clean(cluster)


@pytest.mark.parametrize("who", ["drained", "other"])
async def test_an_engine_dies_while_one_drains(
    who: str, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its samples are on their way to the other one."""
    asking = [asyncio.create_task(heard(cluster, params)) for params in KINDS]
    with held(links(cluster)):
        await until(lambda: len(cluster.engines.voyages.going) >= 4, asking)
    busy = next(iter(cluster.engines.voyages.going)).link.name
    [other] = [each for each in links(cluster) if each.name != busy]
    drained = next(each for each in links(cluster) if each.name == busy)
    plain, killed = drained.give, list[str]()

    def dying(verb: str, *args: Any) -> PendingAnswer:
        if not killed:
            killed.append(verb)
            (drained if who == "drained" else other).kill()
        return plain(verb, *args)

    monkeypatch.setattr(drained, "give", dying)
    await asyncio.wait_for(cluster.engines.drain(busy), 30)
    assert list(await asyncio.wait_for(asyncio.gather(*asking), CLUSTER_WAIT_S)) == alone
    assert busy not in cluster.engines.states and killed
    await until(lambda: cluster.engines.serving == 1)
    await clean(cluster)
