"""The state machine between programs and engines: events in, starts out. The simulator and the controller of real
engines drive this same object."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from paceline.cluster.workflow.predict import mean
from paceline.cluster.workflow.tasks import CallPredictor, CallWork, Instance, Queue, Task, Workflow, WorkflowPlanner
from paceline.core.errors import InputError


class Start(NamedTuple):
    """A decision: run this call there now."""

    task: Task
    instance: Instance
    attempt: int


class Watcher(Protocol):
    """Sees what comes in and what is decided, as a log does."""

    def submitted(self, workflow: Workflow, now: float) -> None: ...
    def extended(self, workflow: Workflow, tasks: Sequence[Task], now: float) -> None: ...
    def closed(self, workflow: Workflow, now: float) -> None: ...
    def finished(self, task: Task, now: float) -> None: ...
    def dropped(self, task: Task, now: float) -> None: ...
    def turned(self, instance: Instance, now: float) -> None: ...
    def decided(self, placed: Sequence[tuple[Task, Instance]], starts: Sequence[Start], now: float) -> None: ...
    def tuned(self, alpha: float, now: float) -> None: ...


@dataclass(slots=True)
class Dispatcher:
    """Queues of ready calls on instances.

    Each call runs to its end exactly once: when an instance dies, its calls are ready again, and what an attempt before
    that brings later is refused by its number.
    """

    instances: dict[str, Instance]
    planner: WorkflowPlanner
    queue: Queue
    predictor: CallPredictor
    watchers: list[Watcher] = field(default_factory=list)
    workflows: dict[str, Workflow] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    ready: list[Task] = field(default_factory=list)

    def submit(self, workflow: Workflow, now: float) -> None:
        if workflow.id in self.workflows:
            raise InputError(f"Workflow {workflow.id!r} exists already; give each its own id.")
        self.workflows[workflow.id] = workflow
        for watcher in self.watchers:
            watcher.submitted(workflow, now)

    def extend(
        self, workflow: Workflow, tasks: Sequence[Task], now: float, expected: Sequence[CallWork] | None = None
    ) -> None:
        """Further calls of a workflow. A call comes after its predecessors in `tasks`. `expected`: stages expected
        after these, if the program says so; else what was expected before goes on."""
        self._check(workflow, tasks)
        if expected is None:
            for step in dict.fromkeys(task.work.step for task in tasks):
                workflow.expect(step)
        else:
            workflow.expected = list(expected)
        for watcher in self.watchers:
            watcher.extended(workflow, tasks, now)
        for task in tasks:
            self.tasks[task.id] = task
            workflow.tasks.append(task)
            for parent in task.after:
                parent.children.append(task)
        self.rank(reversed(tasks))
        for task in tasks:
            self._free(task, now)

    def rank(self, tasks: Iterable[Task]) -> None:
        """Upward ranks; children come first."""
        everywhere = list(self.instances.values())
        for task in tasks:
            below = (child.rank + moved(task, child) for child in task.children)
            task.rank = mean(self.predictor, task.work, everywhere) + max(below, default=0.0)

    def close(self, workflow: Workflow, now: float) -> None:
        """A workflow has ended. Calls that have not are dropped."""
        for watcher in self.watchers:
            watcher.closed(workflow, now)
        workflow.closed = True
        del self.workflows[workflow.id]
        for task in workflow.tasks:
            if task.finished is None:
                self._withdraw(task)
            del self.tasks[task.id]

    def finish(
        self, task: Task, attempt: int, now: float, used: tuple[float, float] | None = None, teaches: bool = True
    ) -> bool:
        """An attempt has brought its result, with its counts of tokens (prompt, output). False: it came too late (its
        instance was given up or its workflow has ended), and the result must not be used. `teaches`: may the predictor
        learn of it?"""
        place = self.instances.get(task.place or "")
        stale = task.attempt != attempt or task.finished is not None or task.id not in self.tasks
        if stale or place is None or task.id not in place.running:
            return False
        task.finished, task.used, task.teaches = now, used, teaches
        for watcher in self.watchers:
            watcher.finished(task, now)
        del place.running[task.id]
        if teaches:
            had = CallWork(task.work.step, *used) if used else task.work
            self.predictor.learn(had, place, now - (task.started or 0.0))
        for child in task.children:
            self._free(child, now)
        return True

    def drop(self, task: Task, now: float) -> None:
        """Nobody wants this call any more: it ends without a result, and nothing is learned of it."""
        if task.finished is not None or task.id not in self.tasks:
            return
        self._withdraw(task)
        task.finished = now
        for watcher in self.watchers:
            watcher.dropped(task, now)
        for child in task.children:
            self._free(child, now)

    def turn(self, name: str, alive: bool, now: float) -> None:
        """An instance died or came back."""
        instance = self.instances[name]
        if instance.alive == alive:
            return
        instance.alive = alive
        for watcher in self.watchers:
            watcher.turned(instance, now)
        lost = [*instance.running.values(), *instance.queue]
        for task in lost:
            self._withdraw(task)
            self.ready.append(task)

    def decide(self, now: float) -> list[Start]:
        """What starts now."""
        alive = [each for each in self.instances.values() if each.alive]
        if not alive:
            return []
        placed = self._assign(alive, now)
        starts = [start for instance in alive for start in self._starts(instance, now)]
        if placed or starts:
            for watcher in self.watchers:
                watcher.decided(placed, starts, now)
        return starts

    def wake(self, now: float) -> float:
        """When something queued could start because its inputs have come; inf if nothing waits for that."""
        waiting = (task.available(i.name) for i in self.instances.values() if i.alive for task in i.queue)
        return min((at for at in waiting if at > now), default=inf)

    def _assign(self, alive: list[Instance], now: float) -> list[tuple[Task, Instance]]:
        if self.planner.replans:
            for instance in alive:
                self.ready += instance.queue
                instance.queue.clear()
        names = {each.name for each in alive}
        ready = [task for task in self.ready if task.pinned is None or task.pinned in names]
        if not ready:
            return []
        placed = self.planner.assign(ready, alive, now)
        for task, instance in placed:
            task.place = instance.name
            instance.queue.append(task)
        gone = {task.id for task, _ in placed}
        self.ready = [task for task in self.ready if task.id not in gone]
        return placed

    def _starts(self, instance: Instance, now: float) -> list[Start]:
        """The first of a queue, and the next, until one does not fit: a call that needs much room is not overtaken
        forever."""
        starts = []
        while here := [t for t in instance.queue if t.available(instance.name) <= now]:
            within = instance.within(here)
            if not within and len(instance.running) >= instance.slots:
                break
            first = min(within or here, key=lambda t: (*self.queue.key(t, instance, now), t.ready or 0.0, t.id))
            if not instance.fits(first, bool(within)):
                break
            instance.queue.remove(first)
            instance.running[first.id] = first
            first.started, first.attempt = now, first.attempt + 1
            starts.append(Start(first, instance, first.attempt))
        return starts

    def _free(self, task: Task, now: float) -> None:
        if all(parent.finished is not None for parent in task.after):
            task.ready = now
            task.budget = self.budget(task, now)
            self.ready.append(task)

    def budget(self, task: Task, now: float) -> float:
        """HexGen's stage budget: the time left to the deadline, shared by mean seconds among this call and what is
        expected after it (on the longest known path, then the expected stages). 0 or less once the deadline passed."""
        if task.workflow.deadline == inf:
            return inf
        everywhere = list(self.instances.values())
        own = mean(self.predictor, task.work, everywhere)
        later = sum(mean(self.predictor, work, everywhere) for work in task.workflow.expected)
        return (task.workflow.deadline - now) * own / (task.rank + later)

    def _withdraw(self, task: Task) -> None:
        place = self.instances.get(task.place or "")
        if place is not None:
            place.running.pop(task.id, None)
            place.queue = [each for each in place.queue if each is not task]
        self.ready = [each for each in self.ready if each is not task]
        task.place, task.started = None, None

    def _check(self, workflow: Workflow, tasks: Sequence[Task]) -> None:
        new = set[str]()
        for task in tasks:
            if task.id in self.tasks or task.id in new:
                raise InputError(f"Task {task.id!r} exists already; give each its own id.")
            if task.pinned is not None and task.pinned not in self.instances:
                raise InputError(f"Task {task.id!r} is pinned to {task.pinned!r}, which is not an instance here.")
            if any(parent.id not in self.tasks and parent.id not in new for parent in task.after):
                raise InputError(f"Task {task.id!r} comes before one of its predecessors, or they form a circle.")
            if task.volume and len(task.volume) != len(task.after):
                raise InputError(f"Task {task.id!r} has {len(task.after)} predecessors but {len(task.volume)} volumes.")
            new.add(task.id)
        if workflow.id not in self.workflows:
            raise InputError(f"Workflow {workflow.id!r} was not submitted, or has ended.")


def moved(parent: Task, child: Task) -> float:
    """Seconds between a call and its successor on another instance."""
    return child.volume[child.after.index(parent)] if child.volume else 0.0
