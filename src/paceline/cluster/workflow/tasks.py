"""The vocabulary of workflows, and what a planner, a queue and a predictor are."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol


class CallWork(NamedTuple):
    """What a call is expected to be: its step, as in `revise`, and its tokens."""

    step: str
    tokens_in: float = 0.0
    tokens_out: float = 0.0


@dataclass(slots=True, eq=False)
class Workflow:
    """A graph of calls with one deadline. It grows: a program adds the next calls when it knows them, so the number of
    stages need not be known beforehand."""

    id: str
    arrival: float
    """Seconds."""
    deadline: float = inf
    """Seconds, on the clock of `arrival`."""
    expected: list[CallWork] = field(default_factory=list)
    """Stages that are expected after those already known. Each workflow has its own list."""
    tasks: list["Task"] = field(default_factory=list)
    closed: bool = False
    """No further calls will come."""

    def expect(self, step: str) -> None:
        """A stage begins: what was expected before it will not come. An unexpected stage (one more round of a loop)
        leaves the expectation as it is."""
        for index, work in enumerate(self.expected):
            if work.step == step:
                del self.expected[: index + 1]
                return

    @property
    def open(self) -> bool:
        """Does a known call still wait or run?"""
        return any(task.finished is None for task in self.tasks)


@dataclass(slots=True, eq=False)
class Task:
    """One call of a workflow."""

    id: str
    """Unique among all workflows."""
    workflow: Workflow
    work: CallWork
    after: tuple["Task", ...] = ()
    """Calls that must have finished."""
    volume: tuple[float, ...] = ()
    """For each of `after`: seconds that its result needs to another instance (transfer, or a prefix computed again)."""
    pinned: str | None = None
    """The only instance that may run it."""
    client: str = ""
    """Client whose call it is; each has a share of the slots."""
    children: list["Task"] = field(default_factory=list)
    rank: float = 0.0
    """Mean seconds of the longest path from here to the end of what is known (HEFT's upward rank)."""
    ready: float | None = None
    """Time at which all predecessors had finished."""
    budget: float = inf
    """Seconds from `ready` within which it should finish (HexGen's stage budget)."""
    place: str | None = None
    """Instance where the call is queued, runs or ran."""
    planned: float = 0.0
    """Time at which the planner means the call to start."""
    started: float | None = None
    finished: float | None = None
    used: tuple[float, float] | None = None
    """Tokens (prompt, output) that the call turned out to have."""
    teaches: bool = True
    """Do its seconds say anything of other calls? Those of a refusal do not."""
    attempt: int = 0
    """How often it was started; what an earlier attempt brings is dropped."""

    def available(self, instance: str) -> float:
        """When its inputs are on an instance; its predecessors have finished."""
        if not self.after:
            return 0.0
        moved = (0.0 if t.place == instance else v for t, v in zip(self.after, self.volume or (0.0,) * len(self.after)))
        return max((finish + m for finish, m in zip((t.finished or 0.0 for t in self.after), moved)), default=0.0)


@dataclass(slots=True, eq=False)
class Instance:
    """An engine, as decisions see it."""

    name: str
    kind: str
    """Instances of one kind are equally fast."""
    slots: int = 1
    """Calls at once."""
    room: float = inf
    """Tokens of K/V cache for the calls at once."""
    alive: bool = True
    queue: list[Task] = field(default_factory=list)
    running: dict[str, Task] = field(default_factory=dict)

    def backlog(self, now: float, predictor: "CallPredictor") -> float:
        """Seconds until it would be idle, by prediction. Worked out from what is there, so what has finished no longer
        counts, whatever was predicted for it."""
        waiting = sum(predictor.seconds(task.work, self) for task in self.queue)
        left = sum(self.left(task, now, predictor) for task in self.running.values())
        return (waiting + left) / self.slots

    def left(self, task: Task, now: float, predictor: "CallPredictor") -> float:
        """Seconds that a running call still needs, by prediction."""
        return max(0.0, predictor.seconds(task.work, self) - (now - (task.started or 0.0)))

    def within(self, calls: Iterable[Task]) -> list[Task]:
        """The calls whose client holds less than its share of the slots; none if there is one client alone."""
        held, calls = Counter(task.client for task in self.running.values()), list(calls)
        clients = {task.client for task in calls} | {*held}
        share = max(1, self.slots // max(1, len(clients)))
        return [task for task in calls if held[task.client] < share] if len(clients) > 1 else []

    def fits(self, task: Task, entitled: bool = False) -> bool:
        """Is there a slot and room for its K/V? What could never fit runs alone. `entitled`: its client holds less than
        its share, others more; it need not wait for a slot of theirs, for the engine shares out its places again."""
        if len(self.running) >= (2 * self.slots if entitled else self.slots):
            return False
        used = sum(t.work.tokens_in + t.work.tokens_out for t in self.running.values())
        return not self.running or used + task.work.tokens_in + task.work.tokens_out <= self.room


class CallPredictor(Protocol):
    """How long a call takes on an instance that does nothing else."""

    def seconds(self, work: CallWork, instance: Instance) -> float: ...

    def learn(self, work: CallWork, instance: Instance, seconds: float) -> None:
        """A call took so long."""
        ...


class WorkflowPlanner(Protocol):
    """Where ready calls go."""

    replans: bool
    """Does it want calls back that are queued and not started, at each decision?"""

    def assign(self, ready: Sequence[Task], instances: Sequence[Instance], now: float) -> list[tuple[Task, Instance]]:
        """Calls and their instances; what is left out stays ready. `instances` are alive, at least one; their queues
        do not hold `ready`. A planner may set `planned`."""
        ...


class Queue(Protocol):
    """In which order an instance starts what is queued."""

    def key(self, task: Task, instance: Instance, now: float) -> tuple[float, ...]:
        """The smallest starts first; the order is computed again for each start."""
        ...
