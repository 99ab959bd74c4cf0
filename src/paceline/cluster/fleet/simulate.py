"""A fleet on one virtual clock: requests of a trace, the front's policies (`live/freeness.py`), the hand-over machine
(`core/handover.py`) and engines that die. Equal arguments give equal outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Literal

from paceline.cluster.fleet.twin import FleetShape, FleetTwin
from paceline.cluster.live.freeness import (
    MOVES_AT_ONCE,
    ROUND_S,
    EngineLoad,
    EngineRanking,
    ScaleRule,
    ScaleState,
    laden,
    pairs,
    place,
    relieved,
    scaled,
    spared,
    urgent,
    victim,
)
from paceline.core.errors import InputError
from paceline.core.handover import FINAL_STATES, LAST_BLOCKS, Handover, HandoverEvent
from paceline.core.params import SamplingParams
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.engine.desk import lease_of

Dispatch = Literal["round-robin", "least-loaded", "freeness"]
"""`least-loaded` is INFaaS's: the engine with the smallest share of its memory in use, queues included."""
EMPTYING_S = 0.05
"""Between two looks at what is left on a draining engine."""


@dataclass(frozen=True, slots=True)
class FleetJob:
    """A request of a trace."""

    at: float
    prompt: int
    output: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Policies of a run."""

    dispatch: Dispatch = "freeness"
    migrates: bool = True
    headroom: bool = True
    """Are urgent requests distinguished from others by the engines' queues and the policies?"""
    scale: ScaleRule | None = None
    deaths: Mapping[float, int] = field(default_factory=dict)
    """{second: place of the engine that dies then}; a new one is started for it."""


@dataclass(slots=True)
class FleetOutcome:
    """Result of a run."""

    first: dict[int, float] = field(default_factory=dict)
    """{job: seconds to its first token}"""
    whole: dict[int, float] = field(default_factory=dict)
    """{job: seconds to its last token}"""
    gap: dict[int, float] = field(default_factory=dict)
    """{job: longest time between two of its tokens}"""
    moved: int = 0
    refused: int = 0
    """Hand-overs that failed, so that the request stayed on its engine."""
    lost: int = 0
    preemptions: int = 0
    engine_s: float = 0.0
    """Seconds of all engines together, their starts included."""
    pauses: list[float] = field(default_factory=list)
    """Seconds for which a request that moved belonged to no engine's step."""


class FleetRun:
    """One simulated run of a fleet of engines."""

    def __init__(self, jobs: Sequence[FleetJob], engines: int, shape: FleetShape, plan: FleetPlan) -> None:
        """InputError for a request that fits no engine."""
        most = shape.blocks * shape.block_size
        if any(job.prompt + job.output > most for job in jobs) or engines < 1:
            raise InputError(f"A fleet has at least 1 engine, and each request at most {most} tokens.")
        self.jobs, self.shape, self.plan, self.now = jobs, shape, plan, 0.0
        self.twins: dict[str, FleetTwin] = {}
        self.outcome = FleetOutcome()
        self.rankings = {pressing: EngineRanking(pressing=pressing) for pressing in (False, True)}
        self.requests = dict[int, Request]()
        self.at = dict[int, FleetTwin]()
        """{request: the engine that has it}"""
        self.moving = dict[int, FleetMove]()
        """{request under way: its move}"""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._started = self._turn = self._coming = 0
        self._idle: list[Request] = []
        self._last = dict[int, float]()
        self._since = dict[str, float]()
        self._scale = ScaleState()
        for _ in range(engines):
            self._add()

    # -- the clock -----------------------------------------------------------------------------------------------------

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.now + seconds, self._count, then))

    def run(self) -> FleetOutcome:
        """Until all requests have ended."""
        for number, job in enumerate(self.jobs):
            self.after(job.at, lambda number=number: self._arrive(number))  # type: ignore[misc]
        for at, which in self.plan.deaths.items():
            self.after(at, lambda which=which: self._die(which))  # type: ignore[misc]
        if self.plan.migrates or self.plan.scale is not None:
            self.after(ROUND_S, self._round)
        while self._events and len(self.outcome.whole) < len(self.jobs):
            self.now, _, then = heappop(self._events)
            then()
        for name in [*self._since]:
            self._gone(name)
        return self.outcome

    # -- engines -------------------------------------------------------------------------------------------------------

    def _add(self) -> None:
        self._started += 1
        twin = FleetTwin(f"engine-{self._started}", self.shape)
        self.twins[twin.name] = twin
        self._since.setdefault(twin.name, self.now)
        self._tell(twin)
        waiting, self._idle = self._idle, []
        for request in waiting:
            self._place(request)

    def _start(self) -> None:
        """A new engine, in a while."""
        self._coming += 1
        self._since[f"engine-{self._started + self._coming}"] = self.now

        def ready() -> None:
            self._coming -= 1
            self._add()

        self.after(self.shape.start_s, ready)

    def _gone(self, name: str) -> None:
        self.outcome.engine_s += self.now - self._since.pop(name, self.now)

    def _die(self, which: int) -> None:
        names = sorted(self.twins)
        if not names:  # all are dead already
            return
        twin = self.twins.pop(names[which % len(names)])
        twin.alive = False
        self.outcome.lost += 1
        self._tell(twin)
        self._gone(twin.name)
        for request in [*twin.desk.running, *twin.desk.waiting]:
            request.lease = None
            self._place(request)
        self._boundary(twin)  # what waited for the end of its step hears that it is dead
        if not twin.draining:
            self._start()

    def _tell(self, twin: FleetTwin) -> None:
        if self.plan.dispatch == "freeness":
            load = twin.load()
            for ranking in self.rankings.values():
                ranking.tell(load)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        job = self.jobs[number]
        params = SamplingParams(priority=job.priority if self.plan.headroom else 0)
        self.requests[number] = request = Request(
            number, [number] * job.prompt, params, 0, max_tokens=job.output, arrival=self.now, group=number
        )
        self._place(request)

    def _choose(self, request: Request) -> FleetTwin | None:
        taking = None
        match self.plan.dispatch:
            case "freeness":
                taking = self.rankings[urgent(request.params.priority)].best()
            case "round-robin":
                names = [name for name, twin in self.twins.items() if not twin.draining]
                taking = names[self._turn % len(names)] if names else None
                self._turn += 1
            case "least-loaded":
                loads = [twin.load() for twin in self.twins.values() if not twin.draining]
                taking = min(loads, key=lambda load: (load.used + load.queued, load.name)).name if loads else None
        return None if taking is None else self.twins[taking]

    def _place(self, request: Request) -> None:
        """A request goes to an engine, without K/V."""
        twin = self._choose(request)
        if twin is None:
            self._idle.append(request)
            return
        self.at[request.id] = twin
        twin.desk.waiting.append(request)
        self._tell(twin)
        self._step(twin)

    def _step(self, twin: FleetTwin) -> None:
        if twin.stepping or not twin.alive or not twin.desk.busy:
            return
        before = twin.desk.totals.preemptions
        step = twin.begin(self.now)
        self.outcome.preemptions += twin.desk.totals.preemptions - before
        self._tell(twin)
        if step is None:
            self.after(self.shape.step_s, lambda: self._step(twin))  # what a hand-over has reserved is in its way
            return
        twin.stepping = True
        self.after(step[1], lambda: self._stepped(twin, step[0]))

    def _stepped(self, twin: FleetTwin, plan: Plan) -> None:
        if not twin.alive:
            return
        twin.stepping = False
        for request in twin.end(plan):
            last = self._last.get(request.id)
            if last is None:
                self.outcome.first[request.id] = self.now - self.jobs[request.id].at
            else:
                self.outcome.gap[request.id] = max(self.outcome.gap.get(request.id, 0.0), self.now - last)
            self._last[request.id] = self.now
            if request.finish is not None:
                self.outcome.whole[request.id] = self.now - self.jobs[request.id].at
                self.at.pop(request.id, None)
        self._boundary(twin)
        self._go_on(twin)

    def _boundary(self, twin: FleetTwin) -> None:
        """No step of it runs: call who waited for that. None begins before all have been called."""
        waiting, twin.after_step = twin.after_step, []
        twin.stepping = True
        for then in waiting:
            then()
        twin.stepping = False

    def _go_on(self, twin: FleetTwin) -> None:
        """Something has changed on an engine: it leaves if it drains and is empty, else it is ranked and goes on."""
        if twin.draining and not twin.desk.busy and not twin.desk.reserved and twin.name in self.twins:
            del self.twins[twin.name]
            self._gone(twin.name)
        self._tell(twin)
        self._step(twin)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        loads = self._final()
        if self.plan.migrates:
            for source, to in pairs([*loads.values()]):
                twin = self.twins[source]
                if twin.draining:
                    continue
                samples = [(each.params.priority, self._size(each), each) for each in self._movable(twin)]
                if (request := victim(loads[source], samples, loads[to])) is not None:
                    FleetMove(self, request, twin, self.twins[to]).go(Handover())
        if self.plan.scale is not None:
            self._scale, change = scaled(self.plan.scale, self._scale, [*loads.values()], self._coming, self.now)
            if change > 0:
                self._start()
            elif change < 0 and (name := spared(loads.values())) is not None:
                self._drain(self.twins[name])
        self.after(ROUND_S, self._round)

    def _final(self) -> dict[str, EngineLoad]:
        """Loads as after the moves that are under way: each request counts once, as in a live cluster's rounds."""
        loads = {name: twin.load() for name, twin in self.twins.items()}
        for move in self.moving.values():
            request, source, to = move.request, move.source.name, move.to.name
            if source in loads and any(each is request for each in move.source.desk.running):
                loads[source] = relieved(loads[source], len(lease_of(request).blocks), request.params.priority)
            if to in loads:
                blocks = 0 if move.number in move.to.desk.reserved else self._size(request)
                loads[to] = laden(loads[to], blocks, request.params.priority)
        return loads

    def _movable(self, twin: FleetTwin) -> list[Request]:
        return [it for it in twin.desk.running if it.id not in self.moving and it.lease is not None and it.output]

    def _size(self, request: Request) -> int:
        return ceil(len(request.tokens) / self.shape.block_size)

    def _empty(self, twin: FleetTwin) -> None:
        """What runs on a draining engine leaves it, as from one of a live cluster: several at once, each to the engine
        that a new request would get."""
        if not twin.alive or twin.name not in self.twins:
            return
        loads = {each.name: each.load() for each in self.twins.values()}
        places = MOVES_AT_ONCE - sum(move.source is twin for move in self.moving.values())
        for request in self._movable(twin)[: max(0, places)]:
            if (name := place(loads.values(), urgent(request.params.priority))) is not None:
                loads[name] = laden(loads[name], self._size(request), request.params.priority)
                FleetMove(self, request, twin, self.twins[name]).go(Handover())
        self.after(EMPTYING_S, lambda: self._empty(twin))

    def _drain(self, twin: FleetTwin) -> None:
        """What waits there goes elsewhere at once, what runs by migration, or to its end."""
        twin.draining = True
        self._tell(twin)
        queue = [each for each in twin.desk.waiting if each.lease is None]
        for request in queue:
            twin.desk.waiting.remove(request)
            self._place(request)
        self._go_on(twin)
        if self.plan.migrates:
            self._empty(twin)


class FleetMove:
    """A hand-over under way, by the machine that moves requests between real engines."""

    def __init__(self, fleet: FleetRun, request: Request, source: FleetTwin, to: FleetTwin) -> None:
        self.fleet, self.request, self.source, self.to = fleet, request, source, to
        fleet._count += 1
        self.number, self.rows, self.left_at = fleet._count, 0, 0.0
        fleet.moving[request.id] = self

    def go(self, state: Handover) -> None:
        """Do what is next; its answer comes in a while."""
        fleet, shape = self.fleet, self.fleet.shape
        if state.state in FINAL_STATES:
            del fleet.moving[self.request.id]
            fleet.outcome.moved += state.state == "moved"
            fleet.outcome.refused += state.state == "stayed"
            return
        match state.action:
            case "reserve":
                fleet.after(shape.message_s, lambda: self.hear(state, self._reserve()))
            case "copy":
                blocks = max(0, self._sealed() - state.copied)
                seconds = shape.message_s + shape.block_s * blocks
                fleet.after(seconds, lambda: self.hear(state, self._copied(), blocks, state.copied + blocks))
            case "park":
                self._at_boundary(lambda: self._park(state))
            case "settle":
                fleet.after(shape.message_s, lambda: self.hear(state, self._settle()))
            case "restore":
                self._restore()
                self.hear(state, "done")
            case "release":
                if (txn := self.to.desk.reserved.pop(self.number, None)) is not None:
                    self.to.desk.cache.close(txn.lease)
                fleet._go_on(self.to)
                self.hear(state, "done")

    def hear(self, state: Handover, event: HandoverEvent, blocks: int = 0, copied: int = 0) -> None:
        """The answer to an action."""
        self.go(state.step(event, blocks, max(0, self._sealed() - copied)))

    def _sealed(self) -> int:
        return self.request.length // self.fleet.shape.block_size if self.request.lease is not None else 0

    def _here(self) -> HandoverEvent:
        """Is the request where it was, with its K/V?"""
        if self.request.finish is not None or not self.source.alive:
            return "gone"
        return "done" if self.request in self.source.desk.running and self.to.alive else "refused"

    def _reserve(self) -> HandoverEvent:
        desk = self.to.desk
        blocks = ceil(len(self.request.tokens) / self.fleet.shape.block_size) + LAST_BLOCKS + 1
        if not self.to.alive or self.to.draining or desk.waiting or blocks > desk.cache.room():
            return "refused"
        desk.reserve(self.number, blocks)
        self.fleet._tell(self.to)
        return "done"

    def _copied(self) -> HandoverEvent:
        held = self.number in self.to.desk.reserved
        return self._here() if held else "refused"

    def _at_boundary(self, then: Callable[[], None]) -> None:
        if self.source.stepping and self.source.alive:
            self.source.after_step.append(then)
        else:
            then()

    def _park(self, state: Handover) -> None:
        event = self._here()
        seconds = 0.0
        if event == "done":
            left = ceil(self.request.length / self.fleet.shape.block_size) - state.copied
            self.left_at, self.rows = self.fleet.now, self.source.take_out(self.request)
            del self.fleet.at[self.request.id]
            seconds = self.fleet.shape.block_s * left
            self.fleet._go_on(self.source)
        self.fleet.after(seconds, lambda: self.hear(state, event))

    def _settle(self) -> HandoverEvent:
        if not self.to.alive:
            return "gone"
        if not self.to.take_in(self.request, self.number, self.rows):
            return "refused"
        self.fleet.at[self.request.id] = self.to
        self.fleet.outcome.pauses.append(self.fleet.now - self.left_at)
        self.fleet._tell(self.to)
        self.fleet._step(self.to)
        return "done"

    def _restore(self) -> None:
        """It goes on at its source, else anywhere, and computes its K/V again."""
        if self.source.alive and not self.source.draining:
            self.fleet.at[self.request.id] = self.source
            self.source.desk.waiting.insert(0, self.request)
            self.fleet._step(self.source)
        else:
            self.fleet._place(self.request)


def simulate_fleet(
    jobs: Sequence[FleetJob], engines: int, shape: FleetShape | None = None, plan: FleetPlan | None = None
) -> FleetOutcome:
    """Run a recorded trace on a simulated fleet."""
    return FleetRun(jobs, engines, shape or FleetShape(), plan or FleetPlan()).run()
