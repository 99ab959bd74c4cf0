"""Drives real engines by a dispatcher: the clock, the waiting and the transport that decisions do without."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from paceline.cluster.control.bounds import slowest_s
from paceline.cluster.control.engines import EngineLost, HeardEngine, RemoteEngine, Reply, SmallCall, StreamingEngine
from paceline.cluster.control.pace import SparePace
from paceline.cluster.workflow.dispatch import Dispatcher, Start
from paceline.cluster.workflow.hexgen import HexGen
from paceline.cluster.workflow.models import Predicted
from paceline.cluster.workflow.simulate import SimulatedJob, SimulatedRun, Simulation
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from paceline.cluster.workflow.tune import Tuner, best

log = logging.getLogger("paceline")
ENGINE_RETRY_S, LAST_ENGINE_RETRY_S = 0.5, 30.0
"""How long an engine that was lost is left alone before it is looked at: twice as long after each loss without an
answer between, up to the last."""
ENGINE_SILENCE_S, MOST_SILENT_PROBES = 2.0, 2
"""How long an engine that has calls may say nothing before it is asked whether it is there, again and again; and how
often it may not answer that. An engine over HTTP has ENGINE_PROBE_S for each answer: about a minute in all, unless it
cannot be reached."""
TRIAL_AFTER_S, LEAST_PATIENCE_S = 15.0, 60.0
"""How long an engine that has calls may compute nothing before it is given a call of one token, too; and how long
before its calls go elsewhere, whatever it says of itself. An engine that computes several calls at once has soon
answered the small one. One that computes them one after another says nothing for as long as a call takes: so it has,
beyond this, the time that a slow engine takes for each call that it was given."""
WORKFLOW_LINGER_S = 20.0
"""A workflow without a call for so long has ended, unless it says more."""


@dataclass(slots=True)
class WaitingCall:
    """A call whose reply somebody waits for, or whose stream somebody reads."""

    task: Task
    future: asyncio.Future[Reply]
    path: str
    body: bytes
    client: str = ""
    stream: bool = False
    """May it be answered with a stream?"""
    streams: bool = False
    """Has the stream begun?"""
    losses: int = 0
    """Engines that were lost while they were at it."""
    taken: bool = False
    """Was it taken away from an engine that computed nothing? It is not a second time: it may be the call that takes
    long."""
    slowest_s: float | None = None
    """Seconds that a slow engine takes for it, once somebody has asked."""


@dataclass(slots=True)
class Controller:
    """Calls in, replies out. Each call gets one reply: when an engine is lost, its calls go to others, and what it may
    still bring is dropped. Used from one event loop."""

    dispatcher: Dispatcher
    engines: Mapping[str, RemoteEngine]
    used: Callable[[Reply, CallWork], tuple[float, float] | None] = lambda reply, work: None
    """Tokens (prompt, output) of the reply to a call that was expected to be this work."""
    learns_of_all: bool = True
    """Do the seconds of replies without known tokens, too, say how long other calls take?"""
    clock: Callable[[], float] = monotonic
    tuner: Tuner | None = None
    answered: dict[str, int] = field(default_factory=dict)
    """Replies by engine."""
    dropped: int = 0
    """Replies that came too late to be used."""
    most_losses: float = inf
    """Engines that a call may lose before it is given up: what kills one may kill each."""
    _waiting: dict[str, WaitingCall] = field(default_factory=dict)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """The latest attempt of each call."""
    _losses: dict[str, int] = field(default_factory=dict)
    """{engine: losses since its last answer}"""
    _listening: set[str] = field(default_factory=set)
    """Engines that have calls, and are listened to."""
    _deaf: dict[str, SmallCall] = field(default_factory=dict)
    """Engines that were lost although they say that they are there, and the calls that they must answer."""
    _trials: dict[str, tuple[float, SmallCall]] = field(default_factory=dict)
    """{engine: since when it has had small calls and computed nothing, and the latest}"""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _pumping: bool = False
    """Will it decide when the loop has a moment?"""
    _tuning: bool = False
    _touched: dict[str, float] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    async def call(
        self, workflow: str, work: CallWork, path: str, body: bytes,
        *, deadline: float = inf, expected: Sequence[CallWork] = (), stream: bool = False, client: str = "",
    ) -> Reply:  # fmt: skip
        """One call of a workflow; `deadline` in seconds from now is the workflow's. Waits while no engine is alive.
        `stream`: the reply may come with its stream. `client`: whose call it is; each has a share of the slots.
        Cancelling ends the call where it runs. Raises EngineLost for one that has lost too many engines."""
        now = self.clock()
        flow = self.dispatcher.workflows.get(workflow)
        if flow is None:
            flow = Workflow(workflow, now, now + deadline)
            self.dispatcher.submit(flow, now)
            self._numbers[workflow] = 0
        number = self._numbers[workflow]
        self._numbers[workflow] = number + 1
        task = Task(f"{workflow}.{number}", flow, work, client=client)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[task.id] = WaitingCall(task, future, path, body, client, stream)
        self.dispatcher.extend(flow, [task], now, expected)
        self._touch(workflow)
        self._soon()
        try:
            return await future
        except asyncio.CancelledError:
            self.drop(task)
            raise

    def drop(self, task: Task) -> None:
        """Nobody waits for this call any more: end it, wherever it is."""
        if self._waiting.pop(task.id, None) is None:
            return
        if (running := self._running.pop(task.id, None)) is not None:
            running.cancel()
        self.dispatcher.drop(task, self.clock())
        self._soon()

    def calls(self, workflow: str) -> int:
        """Calls that a workflow has made; 0 for one that has ended."""
        return self._numbers.get(workflow, 0)

    def end(self, workflow: str) -> None:
        """A workflow has ended; while calls of it are open, it has not."""
        flow = self.dispatcher.workflows.get(workflow)
        if flow is None or flow.open:
            return
        self.dispatcher.close(flow, self.clock())
        self._touched.pop(workflow, None)
        self._numbers.pop(workflow, None)
        if self.tuner is not None and self.tuner.due and not self._tuning:
            self._tuning = True
            self._spawn(self._tune(self.tuner))

    async def close(self) -> None:
        """Give up all that runs, and cancel all waiting calls."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for call in self._waiting.values():
            call.future.cancel()
        for workflow in list(self.dispatcher.workflows):
            self.dispatcher.close(self.dispatcher.workflows[workflow], self.clock())

    def _soon(self) -> None:
        """Decide once the calls that come together are all there, for all of them."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        now = self.clock()
        for start in self.dispatcher.decide(now):
            self._running[start.task.id] = self._spawn(self._run(start))
            self._listen(start.instance)
        wake = self.dispatcher.wake(now)
        if wake < inf:
            asyncio.get_running_loop().call_later(wake - now, self._pump)

    async def _run(self, start: Start) -> None:
        call, name = self._waiting[start.task.id], start.instance.name
        engine = self.engines[name]
        try:
            if call.stream and isinstance(engine, StreamingEngine):
                begun = partial(self._begun, start.task, call)
                reply = await engine.stream(call.path, call.body, begun, call.client)
            else:
                reply = await engine.ask(call.path, call.body, call.client)
        except Exception as error:
            if not isinstance(error, EngineLost):
                log.exception("A call to engine %s failed in an unknown way.", name)
            lost = error if isinstance(error, EngineLost) else EngineLost(f"{name}: {error!r}")
            self._give_up(start.task, call, lost)
            self._lost(name, lost)
            return
        self._losses.pop(name, None)
        used = self.used(reply, start.task.work)
        teaches = self.learns_of_all or used is not None
        if not self.dispatcher.finish(start.task, start.attempt, self.clock(), used, teaches):
            self.dropped += not call.streams
            if call.streams:
                self._waiting.pop(start.task.id, None)
            return
        self.answered[name] = self.answered.get(name, 0) + 1
        del self._waiting[start.task.id]
        self._running.pop(start.task.id, None)
        if not call.future.done():
            call.future.set_result(reply)
        self._touch(start.task.workflow.id)
        self._soon()

    def _begun(self, task: Task, call: "WaitingCall", reply: Reply) -> None:
        """A stream has begun: its client has it, and its end is that of the call."""
        call.streams = True
        if call.future.done():
            self.drop(task)
            return
        assert reply.stream is not None
        reply.stream.left = lambda: self.drop(task)
        call.future.set_result(reply)

    def _give_up(self, task: Task, call: "WaitingCall", lost: EngineLost, counts: bool = True) -> None:
        """No further attempt of a call whose client has got a part of the answer, or that has lost many engines."""
        call.losses += counts
        if call.streams or call.losses >= self.most_losses:
            self._waiting.pop(task.id, None)
            self._running.pop(task.id, None)
            self.dispatcher.drop(task, self.clock())
            if not call.future.done():
                call.future.set_exception(lost)

    def _lost(self, name: str, lost: EngineLost) -> None:
        if self.dispatcher.instances[name].alive:
            self._losses[name] = self._losses.get(name, 0) + 1
            for call in self._waiting.values():
                if call.streams and call.task.place == name:  # nobody else can go on with what was said
                    self.dispatcher.drop(call.task, self.clock())
            if self._tried(name):
                self._deaf[name] = self._trials[name][1]
            log.warning("Engine %s is down: %s. Its calls go elsewhere.", name, lost)
            self.dispatcher.turn(name, False, self.clock())
            self._spawn(self._revive(name))
        self._soon()

    def _listen(self, instance: Instance) -> None:
        """While an engine has calls, see that it says something."""
        engine = self.engines[instance.name]
        if isinstance(engine, HeardEngine) and instance.name not in self._listening:
            self._listening.add(instance.name)
            self._spawn(self._hear_out(instance, engine))

    async def _hear_out(self, instance: Instance, engine: HeardEngine) -> None:
        """A process that is stopped, or whose network is gone, closes no connection: its calls go elsewhere, if there
        is another engine."""
        heard, silent, name = engine.heard, 0, instance.name
        began, worked, since = heard, engine.worked, self.clock()
        trial: asyncio.Task[None] | None = None
        small, deaf = self._small(instance), False
        owed = dict[str, float]()  # seconds for each call that it was given since it last computed something
        left = False  # its clients have left without a word from it
        try:
            while (instance.running or trial or left) and instance.alive and silent < MOST_SILENT_PROBES and not deaf:
                await asyncio.sleep(ENGINE_SILENCE_S)
                there = engine.heard != heard or await engine.there() or engine.heard != heard
                others = any(each.alive for each in self.dispatcher.instances.values() if each is not instance)
                heard, silent = engine.heard, 0 if there or not others else silent + 1
                if engine.worked != worked or not others:
                    worked, since = engine.worked, self.clock()
                    owed.clear()
                    self._trials.pop(name, None)
                left = others and heard == began
                if trial is not None and trial.done():
                    trial = None
                calls = [call for id in instance.running if (call := self._waiting.get(id)) is not None]
                owed.update({call.task.id: slowest(call) for call in calls})
                now, small = self.clock(), self._small(instance) or small
                if trial is None and now - since > TRIAL_AFTER_S and small is not None:
                    self._trials[name] = self._trials.get(name, (now, small))[0], small
                    trial = self._spawn(self._try(engine, small))
                late = now - since > LEAST_PATIENCE_S + sum(owed.values())
                deaf = late and self._tried(name) and not any(call.taken for call in calls)
            if (silent >= MOST_SILENT_PROBES or deaf) and instance.alive:
                self._abandon(instance, deaf)
        finally:
            self._listening.discard(name)
            self._trials.pop(name, None)
            if trial is not None:
                trial.cancel()

    def _abandon(self, instance: Instance, deaf: bool) -> None:
        """The calls of an engine go elsewhere. `deaf`: it is there, and computes nothing; perhaps they are what takes
        long, so that counts as no loss of theirs."""
        lost = EngineLost(f"{instance.name}: it {'computes nothing' if deaf else 'does not answer'}")
        for task in list(instance.running.values()):
            if (running := self._running.pop(task.id, None)) is not None:
                running.cancel()
            if (waiting := self._waiting.get(task.id)) is not None:
                waiting.taken |= deaf
                self._give_up(task, waiting, lost, counts=not deaf)
        self._lost(instance.name, lost)

    def _tried(self, name: str) -> bool:
        """Has it had time for a small call, and not answered it?"""
        return name in self._trials and self.clock() - self._trials[name][0] > LEAST_PATIENCE_S - TRIAL_AFTER_S

    def _small(self, instance: Instance) -> SmallCall | None:
        """A small call like one that it has."""
        calls = (self._waiting.get(id) for id in instance.running)
        return next((SmallCall.like(call.path, call.body) for call in calls if call is not None), None)

    async def _try(self, engine: HeardEngine, call: SmallCall) -> None:
        """Let it compute something: it counts what it does."""
        if await engine.computes(call):
            engine.worked += 1

    async def _back(self, name: str) -> bool:
        """Does an engine that was lost answer again?"""
        engine, deaf = self.engines[name], self._deaf.get(name)
        if deaf is None or not isinstance(engine, HeardEngine):
            return await engine.alive()
        try:
            async with asyncio.timeout(LEAST_PATIENCE_S):
                return await engine.computes(deaf)
        except TimeoutError:
            return False

    async def _revive(self, name: str) -> None:
        wait = min(LAST_ENGINE_RETRY_S, ENGINE_RETRY_S * 2 ** min(self._losses.get(name, 1) - 1, 20))
        await asyncio.sleep(wait if self._losses.get(name, 0) > 1 else 0.0)
        while not await self._back(name):
            await asyncio.sleep(wait)
            wait = min(LAST_ENGINE_RETRY_S, 2 * wait)
        self._deaf.pop(name, None)
        log.warning("Engine %s is up.", name)
        self.dispatcher.turn(name, True, self.clock())
        self._soon()

    def _touch(self, workflow: str) -> None:
        """Ends a workflow once it has been idle for long."""
        self._touched[workflow] = now = self.clock()

        def look() -> None:
            flow = self.dispatcher.workflows.get(workflow)
            if flow is not None and not flow.open and self._touched.get(workflow) == now:
                self.end(workflow)

        asyncio.get_running_loop().call_later(WORKFLOW_LINGER_S, look)

    async def _tune(self, tuner: Tuner) -> None:
        """In a thread, on copies and in what time the calls leave: decisions go on meanwhile."""
        made, work, pace = deepcopy_idle(self.dispatcher), tuner.take(), SparePace()
        try:
            if not work:  # no call of theirs has a number of tokens
                return
            alpha = await asyncio.to_thread(best, lambda a, jobs: rehearse(made, a, jobs, pace), work)
        finally:
            pace.stop()
            self._tuning = False
        if alpha != tuner.planner.alpha:
            tuner.planner.alpha = alpha
            for watcher in self.dispatcher.watchers:
                watcher.tuned(alpha, self.clock())

    def _spawn(self, run: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(run)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def slowest(call: WaitingCall) -> float:
    """Seconds that a slow engine takes for a call."""
    if call.slowest_s is None:
        call.slowest_s = slowest_s(call.body, call.task.work.tokens_in)
    return call.slowest_s


def deepcopy_idle(dispatcher: Dispatcher) -> Dispatcher:
    """A dispatcher like it, with what it has learned, without its work."""
    memo: dict[int, Any] = {}
    predictor = deepcopy(dispatcher.predictor, memo)
    instances = {i.name: Instance(i.name, i.kind, i.slots, i.room) for i in dispatcher.instances.values()}
    return Dispatcher(instances, deepcopy(dispatcher.planner, memo), deepcopy(dispatcher.queue, memo), predictor)


def rehearse(
    like: Dispatcher, alpha: float, jobs: Sequence[SimulatedJob], tick: Callable[[float], None] | None = None
) -> SimulatedRun:
    """Simulates jobs under an alpha, on instances that take what was learned."""
    made = deepcopy_idle(like)
    assert isinstance(made.planner, HexGen)
    made.planner.alpha = alpha
    models = {name: Predicted(deepcopy(made.predictor), each) for name, each in made.instances.items()}
    return Simulation(made, dict(models), jobs, tick=tick).run()
