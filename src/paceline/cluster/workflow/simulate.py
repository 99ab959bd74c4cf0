"""Workflows on a virtual clock: the dispatcher that drives real engines, over models of instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from paceline.cluster.workflow.dispatch import Dispatcher
from paceline.cluster.workflow.tasks import CallWork, Task, Workflow
from paceline.core.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A call as it comes to be; planners see `work` only."""

    work: CallWork
    tokens_in: float
    tokens_out: float
    after: tuple[int, ...] = ()
    """Places, within its stage, of the calls that must finish before this one."""
    volume: tuple[float, ...] = ()
    pinned: str | None = None
    noise: float = 1.0
    """Factor on the predicted seconds of the call."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A workflow as it comes to be: each stage is known when the one before has ended. A graph that is known at once
    is one stage."""

    arrival: float
    stages: tuple[tuple[SimulatedCall, ...], ...]
    deadline: float = inf
    """Seconds after the arrival."""
    expected: tuple[CallWork, ...] = ()


class InstanceModel(Protocol):
    """How an instance spends time. `now` never goes back."""

    def start(self, task: Task, call: SimulatedCall, now: float) -> None: ...

    def next(self) -> tuple[float, str]:
        """When which call finishes, if nothing else starts; (inf, "") when idle."""
        ...

    def end(self, id: str, now: float) -> None:
        """Note that a call has finished."""
        ...

    def stop(self) -> None:
        """The instance dies, with all calls that run there."""
        ...


class Fault(NamedTuple):
    """An instance dies or comes back."""

    at: float
    instance: str
    alive: bool = False


@dataclass(slots=True)
class SimulatedRun:
    """A simulated run."""

    finished: dict[str, float] = field(default_factory=dict)
    """By workflow: seconds from its arrival to its end."""
    met: dict[str, bool] = field(default_factory=dict)
    """By workflow: was it in time?"""
    end: float = 0.0

    def attainment(self) -> float:
        """Share of workflows in time."""
        return sum(self.met.values()) / len(self.met)

    def mean(self) -> float:
        """Mean seconds of a workflow."""
        return sum(self.finished.values()) / len(self.finished)

    def percentile(self, share: float) -> float:
        """Seconds within which this share of workflows ended."""
        ordered = sorted(self.finished.values())
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(slots=True)
class Simulation:
    """Runs jobs to their ends. `tick` is called at each event, before decisions, as a background task would be. With
    `cancels` a workflow whose deadline has passed ends there: nothing of it starts any more."""

    dispatcher: Dispatcher
    models: dict[str, InstanceModel]
    jobs: Sequence[SimulatedJob]
    faults: Sequence[Fault] = ()
    tick: Callable[[float], None] | None = None
    cancels: bool = False
    outcome: SimulatedRun = field(default_factory=SimulatedRun)
    _calls: dict[str, SimulatedCall] = field(default_factory=dict)
    _stage: dict[str, int] = field(default_factory=dict)
    _job: dict[str, SimulatedJob] = field(default_factory=dict)

    def run(self) -> SimulatedRun:
        arrivals = sorted(enumerate(self.jobs), key=lambda pair: pair[1].arrival)[::-1]
        faults = sorted(self.faults)[::-1]
        now = -inf
        while arrivals or self._job:
            moments = (arrivals[-1][1].arrival if arrivals else inf, faults[-1].at if faults else inf)
            now = max(now, min(*moments, self._end()[0], self.dispatcher.wake(now)))
            if now == inf:
                raise IntegrityError("Workflows wait, but nothing runs that could let them continue.")
            while (end := self._end())[0] <= now:
                self._finish(end[1], now)
            while faults and faults[-1].at <= now:
                self._turn(faults.pop(), now)
            while arrivals and arrivals[-1][1].arrival <= now:
                self._arrive(*arrivals.pop(), now)
            if self.tick is not None:
                self.tick(now)
            if self.cancels:
                self._cancel(now)
            for task, instance, _ in self.dispatcher.decide(now):
                self.models[instance.name].start(task, self._calls[task.id], now)
        self.outcome.end = now
        return self.outcome

    def _end(self) -> tuple[float, str]:
        """When which call finishes next."""
        return min((model.next() for model in self.models.values()), default=(inf, ""))

    def _arrive(self, number: int, job: SimulatedJob, now: float) -> None:
        workflow = Workflow(f"w{number}", now, now + job.deadline, list(job.expected))
        self._job[workflow.id], self._stage[workflow.id] = job, -1
        self.dispatcher.submit(workflow, now)
        self._advance(workflow, now)

    def _cancel(self, now: float) -> None:
        """End workflows that are late and of which nothing runs."""
        for workflow in [each for each in self.dispatcher.workflows.values() if each.deadline < now]:
            if all(task.started is None or task.finished is not None for task in workflow.tasks):
                for task in workflow.tasks:
                    self._calls.pop(task.id, None)
                self._stage[workflow.id] = len(self._job[workflow.id].stages) - 1
                self._advance(workflow, now)

    def _advance(self, workflow: Workflow, now: float) -> None:
        job = self._job[workflow.id]
        self._stage[workflow.id] += 1
        stage = self._stage[workflow.id]
        if stage == len(job.stages):
            self.dispatcher.close(workflow, now)
            self.outcome.finished[workflow.id] = now - job.arrival
            self.outcome.met[workflow.id] = now <= workflow.deadline
            del self._job[workflow.id]
            return
        tasks: list[Task] = []
        for place, call in enumerate(job.stages[stage]):
            task = Task(f"{workflow.id}.{stage}.{place}", workflow, call.work, volume=call.volume, pinned=call.pinned)
            task.after = tuple(tasks[each] for each in call.after)
            self._calls[task.id] = call
            tasks.append(task)
        self.dispatcher.extend(workflow, tasks, now)

    def _finish(self, id: str, now: float) -> None:
        task = self.dispatcher.tasks[id]
        self.models[task.place or ""].end(id, now)
        call = self._calls[id]
        if not self.dispatcher.finish(task, task.attempt, now, (call.tokens_in, call.tokens_out)):
            raise IntegrityError(f"The model of {task.place} finished {id!r}, which it did not run.")
        del self._calls[id]
        if not task.workflow.open:
            self._advance(task.workflow, now)

    def _turn(self, fault: Fault, now: float) -> None:
        if not fault.alive:
            self.models[fault.instance].stop()
        self.dispatcher.turn(fault.instance, fault.alive, now)
