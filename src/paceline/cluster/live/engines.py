"""The engines of a cluster: which there are, which take requests, and new ones in place of the dead."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic

from paceline.cluster.live.adapters import LaterAdapters
from paceline.cluster.live.freeness import (
    MOVES_AT_ONCE,
    ROUND_S,
    EngineLoad,
    ScaleRule,
    ScaleState,
    pairs,
    place,
    scaled,
    spared,
    urgent,
    victim,
)
from paceline.cluster.live.loads import by_engine, load_of, together
from paceline.cluster.live.messages import EngineFacts, EngineGoneError, EngineLink
from paceline.cluster.live.moving import move
from paceline.cluster.live.voyage import START_S, Voyage, Voyages
from paceline.core.errors import InputError, LostError
from paceline.core.request import Request
from paceline.engine.totals import Snapshot, Totals, added

log = logging.getLogger("paceline")
NO_LINK_S = 60.0
"""How long new requests wait while no engine takes any. Those that run wait as long as an engine may take to start."""
ANSWER_S, LAST_ANSWER_S = 30.0, 5.0
"""Time for an engine's sign of life; then it counts as dead. The second holds while the server shuts down: what it has
must go on elsewhere in time. Both are counted in looks: a machine that stood still kills none."""
SIGN_OF_LIFE_S = 1.0
"""Time for an engine's sign of life; then decisions are made without it."""
LOOK_S = 1.0
"""Between two looks at all engines."""
ROUND_PAUSES = 20
"""Least pause between two rounds of decisions, in the time of one: with very many samples they come less often."""
POLLING_S = 0.05
"""Between two looks at what is waited for."""
FIRST_REVIVAL_S, LAST_REVIVAL_S = 0.5, 30.0
"""Wait before an engine is started in place of a dead one; doubled while they die at their start."""
Make = Callable[[str], EngineLink]
"""Begins to start an engine of this name."""


@dataclass(slots=True)
class EngineState:
    """An engine as the front knows it."""

    link: EngineLink
    snapshot: Snapshot
    facts: EngineFacts
    draining: bool = False
    silent: bool = False
    """Has the engine given no sign of life for `SIGN_OF_LIFE_S`? Decisions leave such an engine out."""
    look: "asyncio.Task[None] | None" = None
    """The question for a sign of life that is under way."""
    missed: int = 0
    """Looks at the engine since it was last asked for a sign of life."""


class Engines:
    """The engines of a cluster, owned by one event loop."""

    def __init__(self, make: Make) -> None:
        self.make = make
        self.voyages = Voyages(self)
        self.adapters = LaterAdapters(self)
        self.states: dict[str, EngineState] = {}
        self.facts: EngineFacts
        self.wanted = 0
        """How many there should be."""
        self.rule: ScaleRule | None = None
        """By it their number follows the load."""
        self.check_room: Callable[[int], None] = lambda count: None
        """Check of room: InputError where this number of engines cannot run at the same time."""
        self.resized: Callable[[], object] = lambda: None
        """Called when `wanted` has changed."""
        self.ending: Callable[[], bool] = bool
        """Does the server shut down?"""
        self.lost_count = self.moved_count = 0
        self.coming = 0
        """Engines that are being started."""
        self._spares = 0
        """Engines among them that come in place of one that is still there."""
        self._opening: dict[object, tuple[str, Sequence[Request]]] = {}
        """{opening: (engine, its samples)} of which the engine has not said yet that it took them in."""
        self._arriving: dict[object, tuple[str, Request]] = {}
        """{move: (its destination, the sample)}: blocks are reserved there."""
        self._scale = ScaleState()
        self._failure: Exception | None = None
        """Why the latest start failed."""
        self._renewal: asyncio.Task[None] | None = None
        self._past = Totals()
        """Counters of the engines that are no more."""
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()
        self._closed = False

    async def start(self, count: int) -> None:
        """Start this number of engines, and wait until all are ready."""
        self.want(count)
        await asyncio.gather(*(self._begin() for _ in range(count)))
        self._run(self._watch())
        self._run(self._balance())

    def want(self, count: int) -> None:
        """From now on there should be this number."""
        self.wanted = count
        self.resized()

    @property
    def serving(self) -> int:
        """Engines that do not drain."""
        return sum(not state.draining for state in self.states.values())

    @property
    def lacking(self) -> int:
        """Engines that are wanted, neither there nor on their way; below 0: too many."""
        return self.wanted - (self.coming - self._spares) - self.serving

    async def _begin(self, spare: bool = False) -> None:
        """Start one. Raises EngineGoneError, and InputError for an engine of another model than the first. `spare`:
        even where it is one more than is wanted."""
        self.coming, self._spares = self.coming + 1, self._spares + spare
        try:
            await self._start_one(spare)
        finally:
            self.coming, self._spares = self.coming - 1, self._spares - spare

    async def _start_one(self, spare: bool = False) -> None:
        try:
            link, facts, snapshot = await self._made()
        except Exception as error:
            self._failure = error
            raise
        async with self.adapters.turn:
            try:
                await self.adapters.teach(link, facts)
            except BaseException as error:
                link.kill()
                self._failure = error if isinstance(error, Exception) else self._failure
                raise
            if self._closed or (self.lacking < 0 and not spare):
                link.kill()
                return
            self.states[link.name] = EngineState(link, snapshot, facts)
        self._change.set()

    async def _made(self) -> tuple[EngineLink, EngineFacts, Snapshot]:
        self._number += 1
        link = self.make(f"engine-{self._number}")
        try:
            async with asyncio.timeout(START_S):
                facts, snapshot = await link.facts(), await link.snapshot()
            first = self.facts if hasattr(self, "facts") else facts
            if facts.origin != first.origin or (facts.block_size, facts.max_len) != (first.block_size, first.max_len):
                raise InputError(f"{link.name} has another model than the engines before it.")
            if facts.adapters != first.adapters:
                raise InputError(
                    f"{link.name} has other adapters than the engines before it: their files have changed; put them "
                    "back, or start the cluster again."
                )
            self.facts = first
        except TimeoutError:
            link.kill()
            raise EngineGoneError(f"{link.name} was not ready within {START_S:g} s") from None
        except BaseException:
            link.kill()
            raise
        return link, facts, snapshot

    def _run(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_its_end(self, work: Coroutine[None, None, None]) -> None:
        """As `_to_its_end`, begun now."""
        await self._to_its_end(self._run(work))

    async def _to_its_end(self, task: "asyncio.Task[None]") -> None:
        """Wait for work, which goes on where who asked for it is cancelled: half of it would leave an engine that
        drains and never goes."""
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(_tell_failure)
            raise

    def has(self, link: EngineLink) -> bool:
        """Is this engine in the cluster?"""
        state = self.states.get(link.name)
        return state is not None and state.link is link

    def takes(self, link: EngineLink) -> bool:
        """Is this engine in the cluster, and not draining?"""
        state = self.states.get(link.name)
        return state is not None and state.link is link and not state.draining

    def loads(self, final: bool = False) -> list[EngineLoad]:
        """By what this front has on each engine. Those that are silent count as not alive, where others are there.
        `final`: as after the moves that are under way, so that these are not decided again."""
        size, going = self.facts.block_size, [(voyage.link.name, voyage.request) for voyage in self.voyages.going]
        on = by_engine([*self._opening.values()], [*self._arriving.values()], going, final)
        heard = any(not state.silent and not state.draining for state in self.states.values())
        loads = [
            load_of(name, state.snapshot.blocks, size, on.get(name, []), state.draining)
            for name, state in self.states.items()
        ]
        return [replace(load, alive=not (heard and self.states[load.name].silent)) for load in loads]

    @contextmanager
    def expecting(self, link: EngineLink, requests: Sequence[Request]) -> Iterator[None]:
        """These samples count as that engine's while it is asked to take them in."""
        key = object()
        self._opening[key] = (link.name, requests)
        try:
            yield
        finally:
            del self._opening[key]

    async def freest(self, pressing: bool = False, patience_s: float | None = None) -> EngineLink:
        """The engine for a request, which may be urgent; one that drains where no other is left. Raises LostError
        when none takes any for so long; for a new request that is `NO_LINK_S`."""
        until = monotonic() + (NO_LINK_S if patience_s is None else patience_s)
        while (name := place(self.loads(), pressing) or self._last_resort(pressing)) is None:
            self._change.clear()
            try:
                await asyncio.wait_for(self._change.wait(), max(0.0, until - monotonic()))
            except TimeoutError:
                raise LostError("No engine answers; try again later.") from None
        return self.states[name].link

    def _last_resort(self, pressing: bool) -> str | None:
        return None if self.serving else place([replace(load, draining=False) for load in self.loads()], pressing)

    def lost(self, link: EngineLink, error: Exception) -> None:
        """An engine is dead. Another one is started in its place."""
        state = self.states.get(link.name)
        if state is None or state.link is not link:
            return
        log.warning("%s is lost: %s", link.name, error)
        self._forget(state)
        self.lost_count += 1
        link.kill()
        if not state.draining:
            self._run(self._revive())

    async def _revive(self) -> None:
        if self.lacking <= 0 or (self.ending() and self.serving):
            return
        self.coming += 1
        wait = FIRST_REVIVAL_S
        try:
            while not self._closed and self.lacking >= 0:
                try:
                    await self._start_one()
                    return
                except (EngineGoneError, InputError) as error:
                    log.warning("An engine could not be started: %s", error)
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LAST_REVIVAL_S)
        finally:
            self.coming -= 1

    async def scale(self, count: int) -> None:
        """Change the number of engines: new ones are ready, those that are too many drained, when this returns. Raises
        what kept a new one from its start; the number is smaller by it then. It goes on where the caller is cancelled.
        Where the number follows the load, it is at least this one from now on."""
        if count < 1:
            raise InputError(f"A cluster has at least 1 engine, not {count}.")
        if self.rule is not None and count > self.rule.most:
            raise InputError(
                f"engines is {count}, but this cluster has at most {self.rule.most} (max_engines); "
                f"ask for 1 to {self.rule.most}, or start it with more."
            )
        self.check_room(count)
        await self.to_its_end(self._scale_to(count, count))

    async def _scale_to(self, count: int, fewest: int | None = None) -> None:
        self.want(count)
        self._at_least(fewest)
        more = [self._begin() for _ in range(self.lacking)]
        fewer = []
        while self.serving > count:
            name = spared(self.loads())
            assert name is not None
            self.states[name].draining = True
            fewer.append(self._empty(name))
        ends = await asyncio.gather(*more, *fewer, return_exceptions=True)
        if failures := [end for end in ends if isinstance(end, BaseException)]:
            self.want(max(1, self.wanted - min(len(failures), max(0, self.lacking))))  # others may have asked, too
            self._at_least(None)
            raise failures[0]
        await self._there(count)

    def _at_least(self, fewest: int | None) -> None:
        """What is asked for by hand is what the load starts from; it adds no engine in place of one that was taken
        out."""
        if self.rule is not None:
            self.rule = replace(self.rule, fewest=min(self.rule.fewest if fewest is None else fewest, self.wanted))

    async def _there(self, count: int) -> None:
        """Wait for engines that others are starting, until this number serves. Raises what keeps one from its start."""
        before = self._failure
        while self.coming and self.serving < min(count, self.wanted):
            if self._failure is not before and self._failure is not None:
                raise self._failure
            await asyncio.sleep(POLLING_S)

    async def drain(self, name: str) -> None:
        """Take an engine out: its samples go to the others while they are decoded, then it ends. It goes on where the
        caller is cancelled."""
        state = self.states.get(name)
        if state is not None and state.draining:
            raise InputError(f"The engine {name!r} drains already; it goes when it is empty.")
        if state is None:
            known = ", ".join(each for each, now in self.states.items() if not now.draining)
            raise InputError(f"There is no engine {name[:60]!r}; those that serve are {known}.")
        if self.serving < 2:
            raise InputError("The last engine cannot be drained; add another one first.")
        state.draining = True
        self.want(self.wanted - 1)
        self._at_least(None)
        await self.to_its_end(self._empty(name))

    async def renew(self) -> None:
        """A new engine in place of each, one after the other: the new one is ready before the old one is drained. It
        goes on where the caller is cancelled, and who asks meanwhile waits for the same."""
        if self._renewal is None or self._renewal.done():
            self.check_room(self.serving + 1)
            self._renewal = self._run(self._renew())
        await self._to_its_end(self._renewal)

    async def _renew(self) -> None:
        for name, state in list(self.states.items()):
            if not state.draining and self.states.get(name) is state:
                await self._begin(spare=True)
                gone = self.states.get(name) is not state or state.draining  # it died or was drained meanwhile
                old = name if not gone else spared(self.loads()) if self.serving > self.wanted else None
                if old is not None:
                    await self._empty(old)

    async def _empty(self, name: str) -> None:
        state, moves = self.states[name], set[asyncio.Task[None]]()
        state.draining = True
        while self.states.get(name) is state:
            left = self._on(state.link)
            if not left and self.serving and all(engine != name for engine, _ in self._comings()):
                break
            for voyage in left:
                if voyage.moving or voyage.link is not state.link or len(moves) >= MOVES_AT_ONCE:
                    continue
                if (target := place(self.loads(), urgent(voyage.request.params.priority))) is not None:
                    moves.add(self._run(self._carry(voyage, self.states[target].link)))
                    await asyncio.sleep(0)  # what it reserves counts for the next one
            if moves:
                _, moves = await asyncio.wait(moves, timeout=POLLING_S, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(POLLING_S)
        if self.states.get(name) is state:
            self._forget(state)
            state.link.kill()

    def _comings(self) -> Iterable[tuple[str, object]]:
        """(engine, what it is asked to take in)"""
        return (*self._opening.values(), *self._arriving.values())

    def _forget(self, state: EngineState) -> None:
        del self.states[state.link.name]
        self._past = added(self._past, state.snapshot.totals).retired()

    async def move(self, voyage: Voyage, to: EngineLink) -> str:
        """Live migration of a sample; one whose adapter was replaced or unloaded stays."""
        if not self.adapters.has(voyage.request):
            return "stayed"
        key = object()
        self._arriving[key] = (to.name, voyage.request)
        try:
            became = await move(self.voyages, voyage, to)
        finally:
            del self._arriving[key]
        self.moved_count += became == "moved"
        return became

    async def _carry(self, voyage: Voyage, to: EngineLink) -> None:
        """A move that nobody waits for."""
        try:
            await self.move(voyage, to)
        except Exception:
            log.exception("A sample could not be moved; it is tried again while it must go.")

    def _on(self, link: EngineLink) -> list[Voyage]:
        return [voyage for voyage in self.voyages.going if voyage.link is link]

    async def _watch(self) -> None:
        """Look after all engines: signs of life, figures, and new ones for those that died."""
        lacked = 0
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look_at_all()
            for _ in range(min(lacked, self.lacking)):  # what died while a renewal had one more, or at its start
                self._run(self._revive())
            lacked = self.lacking

    async def _balance(self) -> None:
        """Decide again and again who gives samples to whom, and how many engines there are."""
        while True:
            began = monotonic()
            try:
                self._round()
            except Exception:
                log.exception("A round of a cluster's decisions failed; the next one comes in %g s.", LOOK_S)
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(max(ROUND_S, ROUND_PAUSES * (monotonic() - began)))

    async def _look_at_all(self) -> None:
        """Ask each for a sign of life, all at once; one that answers late is silent until it has, and dead where that
        takes too long."""
        asked = []
        most = (LAST_ANSWER_S if self.ending() else ANSWER_S) / LOOK_S
        for state in [*self.states.values()]:
            if state.look is None or state.look.done():
                state.look, state.missed = self._run(self._look(state)), 0
            elif state.missed >= most:
                state.look.cancel()
                self.lost(state.link, EngineGoneError("it gives no sign of life"))
                continue
            state.missed += 1
            if not state.silent:
                asked.append((state, state.look))
        if asked:
            await asyncio.wait([look for _, look in asked], timeout=SIGN_OF_LIFE_S)
        for state, look in asked:
            state.silent = not look.done()

    def _round(self) -> None:
        loads, size = {load.name: load for load in self.loads(final=True)}, self.facts.block_size
        for source, to in pairs([*loads.values()]):
            if not self.states[source].draining:
                here = (each for each in self._on(self.states[source].link) if not each.moving)
                samples = ((each.request.params.priority, ceil(len(each.request.tokens) / size), each) for each in here)
                if (voyage := victim(loads[source], samples, loads[to])) is not None:
                    self._run(self._carry(voyage, self.states[to].link))
        if self.rule is not None:
            coming = self.coming - self._spares
            self._scale, change = scaled(self.rule, self._scale, [*loads.values()], coming, monotonic())
            if change:
                self._run(self._scale_by(change))

    async def _scale_by(self, change: int) -> None:
        assert self.rule is not None
        try:
            await self._scale_to(min(max(self.wanted + change, self.rule.fewest), self.rule.most))
        except (EngineGoneError, InputError) as error:
            log.warning("An engine could not be started: %s", error)

    async def _look(self, state: EngineState) -> None:
        try:
            state.snapshot = await state.link.snapshot()
            state.silent = False
        except EngineGoneError as error:
            self.lost(state.link, error)

    @property
    def snapshot(self) -> Snapshot:
        """All engines together."""
        return together([Snapshot(0, 0, 0, 0, 0, self._past), *(state.snapshot for state in self.states.values())])

    async def close(self) -> None:
        """End all."""
        self._closed = True
        for task in (*self._tasks, *self.voyages.tasks):
            task.cancel()
        for state in self.states.values():
            state.link.kill()
        self.states.clear()


def _tell_failure(task: "asyncio.Task[None]") -> None:
    """Log an error of work that nobody waits for any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("A change of the cluster failed: %s", error)
