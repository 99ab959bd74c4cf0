"""`paceline bench serve`: one run for each load of a sweep, against a server that is already up."""

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.bench.load import arrivals
from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock
from paceline.bench.load.drive import closed_loop, open_loop, ticks
from paceline.bench.load.report import Generator, LoadCell, LoadReport
from paceline.bench.load.stats import Slo, summarize
from paceline.bench.load.workload import API_PATHS, LoadWish, RecordedRequest, Supply
from paceline.core.errors import InputError
from paceline.core.system import allow_many_files

Progress = Callable[[int, int, str], None]
"""Callback with (load, loads, what runs)."""
PROBE_TIMEOUT_S = 30.0
"""Seconds for the first question to the server."""


@dataclass(frozen=True, slots=True)
class Load:
    """One way to send: exactly one of rate, recorded, clients is meant."""

    rate: float | None = None
    """Requests a second, open loop; infinity: all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps: 1 Poisson, infinity constant."""
    speed: float | None = None
    """Factor by which a recording is played faster."""
    clients: int | None = None
    """Closed loop."""

    @property
    def value(self) -> float:
        """What a sweep varies."""
        return next(float(v) for v in (self.clients, self.speed, self.rate) if v is not None)

    @property
    def name(self) -> str:
        if self.clients is not None:
            return f"closed loop {self.clients}"
        if self.speed is not None:
            return f"recorded x{self.speed:g}"
        if self.value == float("inf"):
            return "all at once"
        law = {1.0: "Poisson", float("inf"): "constant"}.get(self.burstiness, f"gamma {self.burstiness:g}")
        return f"{law} {self.value:g}/s"

    def offsets(
        self, seed: int, requests: int | None, seconds: float | None, lines: Sequence[RecordedRequest]
    ) -> list[float]:
        """The arrivals of an open loop."""
        if self.speed is not None:
            return arrivals.until(arrivals.faster((line.at for line in lines), self.speed), requests, seconds)
        assert self.rate is not None
        if self.rate == float("inf"):
            return [0.0] * (requests or 0)
        return arrivals.until(arrivals.random(self.rate, seed, self.burstiness), requests, seconds)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where requests go."""

    url: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 600.0
    """Seconds that one request may take."""
    connections: int | None = None
    """Maximum number of connections; the wait for a free one counts as latency."""


@dataclass(frozen=True, slots=True)
class LoadTask:
    """What is sent, and how often."""

    wish: LoadWish
    """Its `model` is filled in from the server where it is empty."""
    loads: Sequence[Load]
    prompts: Sequence[Mapping[str, Any]] = ()
    lines: Sequence[RecordedRequest] = ()
    """A recording; its bodies stand in for prompts."""
    requests: int | None = 100
    """Requests per load; None: as many as arrive within `seconds`."""
    seconds: float | None = None
    warmup: int = 4
    slo: Slo | None = None


def load(target: LoadTarget, task: LoadTask, tell: Progress = lambda done, total, what: None) -> LoadReport:
    """Run every load in order. Ctrl-C ends the run, and what was measured is reported. Raises InputError before
    anything is timed where the server cannot be used."""
    check(task)
    allow_many_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_load(target, task, tell))


def check(task: LoadTask) -> None:
    """Raise InputError for numbers out of range."""
    for name, value in (("requests", task.requests), ("duration", task.seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value:g}, but it must be above 0.")
    if task.requests is None and any(endless(it, task.seconds) for it in task.loads):
        raise InputError("The run has no end; give --requests (with a finite rate --duration does as well).")
    if task.warmup < 0:
        raise InputError(f"warmup is {task.warmup}, but it must be 0 or more.")
    if any(it.clients is not None and it.clients < 1 for it in task.loads):
        raise InputError("clients must be a list of whole numbers above 0, such as 1,8.")
    for it in task.loads:
        if it.clients is None and it.value != float("inf"):
            it.offsets(0, 1, None, task.lines)


def endless(load: Load, seconds: float | None) -> bool:
    """Whether, without a number of requests, a load would never end."""
    return load.speed is None and (seconds is None or load.rate == float("inf"))


async def _load(target: LoadTarget, task: LoadTask, tell: Progress) -> LoadReport:
    clock = LoadClock()
    client = Client(target.url, clock, target.key, target.connections)
    try:
        wish = replace(task.wish, model=task.wish.model or await _first_model(client))
        run = LoadRunner(client, clock, target.timeout, replace(task, wish=wish))
        report = LoadReport(target.url, wish.model, wish.endpoint, task.slo)
        tell(0, len(task.loads), "warm-up")
        await run.warm_up()
        sent = task.warmup
        for place, each in enumerate(task.loads):
            tell(place, len(task.loads), each.name)
            report.cells.append(await run.run(each))
            sent += len(report.cells[-1].answers)
            report.repeated = max(0, sent - run.supply.distinct)
            if report.cells[-1].interrupted:
                break
        return report
    finally:
        client.close()


async def _first_model(client: Client) -> str:
    """The one model of a server, or its first."""
    listed = await client.json("/models", PROBE_TIMEOUT_S)
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise InputError("The server lists no model at /v1/models; give --model NAME.") from None


class LoadRunner:
    """Sends what a task asks for, load by load."""

    def __init__(self, client: Client, clock: LoadClock, timeout: float, task: LoadTask) -> None:
        self.client, self.clock, self.timeout, self.task = client, clock, timeout, task
        self.path = API_PATHS[task.wish.endpoint]
        self.supply = Supply(task.wish, [line.body for line in task.lines] or task.prompts)

    async def send(self, body: bytes, answer: TimedAnswer) -> None:
        await self.client.post(self.path, body, answer, self.timeout)

    async def warm_up(self) -> None:
        """Requests that are not reported. Raises InputError where all fail: the others would not do better."""
        jobs = self.supply.take(self.task.warmup)
        answers = [TimedAnswer(0.0, prompt) for prompt, _ in jobs]
        await asyncio.gather(*(self.send(body, answer) for (_, body), answer in zip(jobs, answers)))
        if answers and not any(a.ok for a in answers):
            raise InputError(f"The server refuses the warm-up: {answers[0].error}: {answers[0].detail}")

    async def run(self, load: Load) -> LoadCell:
        """One load: its answers, and how well this program kept time meanwhile."""
        answers: list[TimedAnswer] = []
        late: array[float] = array("d")
        work = self._work(load, answers)
        self.clock.restart()
        cpu = time.process_time()
        interrupted = await _until_interrupted(work, ticks(self.clock, late))
        busy = (time.process_time() - cpu) / self.clock()
        generator = Generator.of(answers, late, busy)
        summary = summarize(answers, self.task.slo)
        return LoadCell(load.name, load.value, load.clients is not None, summary, generator, answers, interrupted)

    def _work(self, load: Load, answers: list[TimedAnswer]) -> Coroutine[None, None, None]:
        """What to await; every body is made before the clock starts."""
        task = self.task
        if load.clients is not None:
            jobs = self.supply.bodies if task.requests is None else self.supply.take(task.requests)
            return closed_loop(load.clients, jobs, self.send, self.clock, answers, task.seconds)
        if load.speed is not None:
            self.supply = Supply(task.wish, [line.body for line in task.lines])
        offsets = load.offsets(task.wish.seed, task.requests, task.seconds, task.lines)
        if not offsets:
            raise InputError(f"{load.name} has no arrival in {task.seconds:g} s; give a longer --duration.")
        return open_loop(offsets, self.supply.take(len(offsets)), self.send, self.clock, answers)


async def _until_interrupted(work: Coroutine[None, None, None], beside: Coroutine[None, None, None]) -> bool:
    """Await `work` while `beside` runs; True where Ctrl-C ended it."""
    watch = asyncio.ensure_future(beside)
    try:
        await work
    except asyncio.CancelledError:
        if (current := asyncio.current_task()) is not None:
            current.uncancel()
        return True
    finally:
        watch.cancel()
    return False


def _loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """uvloop's, where it is installed: half the cost of a read."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
