"""Drives real engines by a dispatcher: the clock, the waiting and the transport that decisions do without."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

from paceline.cluster.control.engines import EngineLost, RemoteEngine, Reply
from paceline.cluster.workflow.dispatch import Dispatcher, Start
from paceline.cluster.workflow.hexgen import HexGen
from paceline.cluster.workflow.models import Predicted
from paceline.cluster.workflow.simulate import SimulatedJob, SimulatedRun, Simulation
from paceline.cluster.workflow.tasks import CallWork, Instance, Task, Workflow
from paceline.cluster.workflow.tune import Tuner, best

log = logging.getLogger("paceline")
ENGINE_RETRY_S = 0.5
"""Between two looks at an engine that is down."""
WORKFLOW_LINGER_S = 20.0
"""A workflow without a call for so long has ended, unless it says more."""


@dataclass(slots=True)
class Controller:
    """Calls in, replies out. Each call gets one reply: when an engine is lost, its calls go to others, and what it may
    still bring is dropped. Used from one event loop."""

    dispatcher: Dispatcher
    engines: Mapping[str, RemoteEngine]
    used: Callable[[Reply], tuple[float, float] | None] = lambda reply: None
    """Tokens (prompt, output) of a reply."""
    clock: Callable[[], float] = monotonic
    tuner: Tuner | None = None
    answered: dict[str, int] = field(default_factory=dict)
    """Replies by engine."""
    dropped: int = 0
    """Replies that came too late to be used."""
    _waiting: dict[str, tuple[asyncio.Future[Reply], str, bytes]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _touched: dict[str, float] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    async def call(
        self,
        workflow: str,
        work: CallWork,
        path: str,
        body: bytes,
        *,
        deadline: float = inf,
        expected: Sequence[CallWork] = (),
    ) -> Reply:
        """One call of a workflow; `deadline` in seconds from now is the workflow's. Waits while no engine is alive."""
        now = self.clock()
        flow = self.dispatcher.workflows.get(workflow)
        if flow is None:
            flow = Workflow(workflow, now, now + deadline)
            self.dispatcher.submit(flow, now)
            self._numbers[workflow] = 0
        number = self._numbers[workflow]
        self._numbers[workflow] = number + 1
        task = Task(f"{workflow}.{number}", flow, work)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[task.id] = future, path, body
        self.dispatcher.extend(flow, [task], now, expected)
        self._touch(workflow)
        self._soon()
        return await future

    def end(self, workflow: str) -> None:
        """A workflow has ended; while calls of it are open, it has not."""
        flow = self.dispatcher.workflows.get(workflow)
        if flow is None or flow.open:
            return
        self.dispatcher.close(flow, self.clock())
        self._touched.pop(workflow, None)
        if self.tuner is not None and self.tuner.due:
            self._spawn(self._tune(self.tuner))

    async def close(self) -> None:
        """Give up all that runs, and cancel all waiting calls."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for future, _, _ in self._waiting.values():
            future.cancel()
        for workflow in list(self.dispatcher.workflows):
            self.dispatcher.close(self.dispatcher.workflows[workflow], self.clock())

    def _soon(self) -> None:
        """Decide once the calls that come together are all there."""
        asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        now = self.clock()
        for start in self.dispatcher.decide(now):
            self._spawn(self._run(start))
        wake = self.dispatcher.wake(now)
        if wake < inf:
            asyncio.get_running_loop().call_later(wake - now, self._pump)

    async def _run(self, start: Start) -> None:
        future, path, body = self._waiting[start.task.id]
        name = start.instance.name
        try:
            reply = await self.engines[name].ask(path, body)
        except EngineLost as lost:
            self._lost(name, lost)
            return
        if not self.dispatcher.finish(start.task, start.attempt, self.clock(), self.used(reply)):
            self.dropped += 1
            return
        self.answered[name] = self.answered.get(name, 0) + 1
        del self._waiting[start.task.id]
        if not future.done():
            future.set_result(reply)
        self._touch(start.task.workflow.id)
        self._soon()

    def _lost(self, name: str, lost: EngineLost) -> None:
        if self.dispatcher.instances[name].alive:
            log.warning("Engine %s is down: %s. Its calls go elsewhere.", name, lost)
            self.dispatcher.turn(name, False, self.clock())
            self._spawn(self._revive(name))
        self._soon()

    async def _revive(self, name: str) -> None:
        while not await self.engines[name].alive():
            await asyncio.sleep(ENGINE_RETRY_S)
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
        """In a thread, on copies: decisions go on meanwhile."""
        made, work = deepcopy_idle(self.dispatcher), tuner.take()
        alpha = await asyncio.to_thread(best, lambda a, jobs: rehearse(made, a, jobs), work)
        if alpha != tuner.planner.alpha:
            tuner.planner.alpha = alpha
            for watcher in self.dispatcher.watchers:
                watcher.tuned(alpha, self.clock())

    def _spawn(self, run: Awaitable[None]) -> None:
        task = asyncio.ensure_future(run)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def deepcopy_idle(dispatcher: Dispatcher) -> Dispatcher:
    """A dispatcher like it, with what it has learned, without its work."""
    memo: dict[int, Any] = {}
    predictor = deepcopy(dispatcher.predictor, memo)
    instances = {i.name: Instance(i.name, i.kind, i.slots, i.room) for i in dispatcher.instances.values()}
    return Dispatcher(instances, deepcopy(dispatcher.planner, memo), deepcopy(dispatcher.queue, memo), predictor)


def rehearse(like: Dispatcher, alpha: float, jobs: Sequence[SimulatedJob]) -> SimulatedRun:
    """Simulates jobs under an alpha, on instances that take what was learned."""
    made = deepcopy_idle(like)
    assert isinstance(made.planner, HexGen)
    made.planner.alpha = alpha
    models = {name: Predicted(deepcopy(made.predictor), each) for name, each in made.instances.items()}
    return Simulation(made, dict(models), jobs).run()
