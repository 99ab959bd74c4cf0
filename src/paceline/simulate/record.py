"""From a running engine to a decision log."""

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

from paceline.cache.blocks import BlockPool
from paceline.cache.lease import TARGET
from paceline.cache.policies import policy
from paceline.core.errors import InputError
from paceline.core.forest import Forest
from paceline.core.plan import Note, Plan, Work
from paceline.core.request import Request
from paceline.core.rows import Drawn
from paceline.core.verdict import Verdict
from paceline.engine.loop import Engine
from paceline.engine.recorder import Recorder
from paceline.engine.roster import Entry
from paceline.plan.cost import Drafting, Times
from paceline.simulate.log import Abort, Arrival, Decision, Enrolled, Event, Outcome, Result, Setup, Step, dump

log = logging.getLogger("paceline")


def setup(engine: Engine) -> Setup:
    """An engine before its first request. InputError when it has served some."""
    if engine.busy or engine.chooser.step:
        raise InputError("A decision log begins before an engine's first request, and this one has served some.")
    groups = tuple(sorted(engine.cache.groups - {TARGET}))
    return Setup(engine.config, groups, dict(engine.roster.entries), deepcopy(engine.chooser.times.dump()))


def record(engine: Engine, sink: Callable[[Event], object]) -> None:
    """From now on tell `sink` every event of this engine, from its thread."""
    config = engine.config
    sink(setup(engine))
    engine.cache.pool = BlockPool(  # what start-up measured has left no trace in its order then
        config.blocks, config.block_size, policy(config.eviction)(config.blocks), prefix=config.prefix_cache
    )
    engine.recorder = LogRecorder(sink)


class LogFile:
    """A sink that writes lines. A disk that refuses ends the log, never the service."""

    def __init__(self, path: Path) -> None:
        """InputError when it cannot be written."""
        try:
            self.file = path.open("wb", buffering=0)
        except OSError as error:
            raise InputError(f"The decision log {path} cannot be written ({error.strerror}).") from None

    def __call__(self, event: Event) -> None:
        if self.file.closed:
            return
        try:
            self.file.write(dump(event))
        except OSError as error:
            log.warning("The decision log ends here: it cannot be written any more (%s).", error)
            self.file.close()

    def close(self) -> None:
        self.file.close()


class LogRecorder(Recorder):
    def __init__(self, sink: Callable[[Event], object]) -> None:
        self.sink = sink
        self._plan: Plan | None = None
        """Of the step in progress."""
        self._step = Step(0.0, Decision([], [], []))
        self._advanced: list[tuple[int, str, int]] = []
        self._drafted: Sequence[int] = ()
        self._lengths: dict[int, int] = {}
        """Output lengths before the step."""

    def enrolled(self, drafter: str, entry: Entry) -> None:
        self._end()
        self.sink(Enrolled(drafter, entry))

    def arrived(self, request: Request) -> None:
        self._end()
        self.sink(Arrival.of(request))

    def aborted(self, request: Request) -> None:
        self._end()
        self.sink(Abort(request.id))

    def planned(self, now: float, admitted: Sequence[Request], plan: Plan) -> None:
        self._end()
        if not (admitted or plan.items or plan.preempt):
            return
        self._plan, self._step, self._advanced = plan, Step(now, Decision.of(admitted, plan)), []
        self._lengths = {item.request.id: len(item.request.output) for item in plan.items}
        if not plan.items:
            self._end()

    def failed(self, drafter: str, requests: Sequence[Request]) -> None:
        self._step.failed.append((drafter, [r.id for r in requests]))

    def drafted(self, rows: Sequence[int]) -> None:
        self._drafted = rows

    def advanced(self, request: Request, group: str, length: int) -> None:
        self._advanced.append((request.id, group, length))

    def ran(
        self, forest: Forest, verdict: Verdict, drawn: Drawn | None, notes: Sequence[Note], work: Work,
        parts: Sequence[Drafting], times: Times,
    ) -> None:  # fmt: skip
        assert self._plan is not None
        noted = {note.request: note for note in notes if not note.part}
        results = []
        passes = [[]] * len(self._plan.items) if drawn is None else drawn.passes
        each = zip(self._plan.items, verdict.path, verdict.next_token, self._drafted, passes)
        for item, path, last, drafted, mine in each:
            request, note = item.request, noted.get(item.request.id)
            if last is None or note is None:
                results.append(Result())
                continue
            tokens = [*(forest.token[n] for n in path), last]
            ranks = [forest.row[n] - item.given for n in path]
            emitted = len(request.output) - self._lengths[request.id]
            told = ([], []) if mine else (note.offered, note.kept)
            results.append(Result(tokens, ranks, emitted, *told, request.finish, drafted, list(mine)))
        found = [note for note in notes if note.part]
        outcome = Outcome(results, self._advanced, work, list(parts), times, found)
        step, self._plan = self._step, None
        self.sink(Step(step.now, step.decision, step.failed, outcome))

    def _end(self) -> None:
        """A step that is still open did not come to its end."""
        if self._plan is not None:
            self.sink(self._step)
            self._plan = None
