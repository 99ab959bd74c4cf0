"""From a running engine to a decision log."""

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cache.blocks import BlockPool
from paceline.cache.policies import policy
from paceline.cache.snapshots import Snapshots
from paceline.core import operations
from paceline.core.component import TARGET
from paceline.core.errors import InputError
from paceline.core.files import open_log, write_whole
from paceline.core.joined import Layout
from paceline.core.operations import Operation
from paceline.core.plan import Note, Plan, Work
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.recorder import Recorder
from paceline.plan import DrafterFacts
from paceline.plan.cost import Drafting, Times
from paceline.simulate.log import (
    Adopted,
    Arrival,
    BlocksDropped,
    BlocksReserved,
    BlocksSettled,
    Changed,
    Closed,
    Decision,
    Departure,
    Enrolled,
    Event,
    Joined,
    Outcome,
    Setup,
    Step,
    dump,
    hidden,
)

if TYPE_CHECKING:
    from paceline.engine.loop import Engine

log = logging.getLogger("paceline")


def setup(engine: "Engine") -> Setup:
    """An engine before its first request. InputError when it has served some."""
    if engine.busy or engine.desk.totals.prompt:
        raise InputError("A decision log begins before an engine's first request, and this one has served some.")
    groups = tuple(sorted(engine.cache.groups - {TARGET}))
    states, table = tuple(sorted(engine.cache.states)), engine.table
    learned, lagging = table.policy.state(), tuple(sorted(engine.cache.lagging))
    return Setup(
        engine.config,
        groups,
        dict(table.entries),
        deepcopy(table.times.dump()),
        states,
        lagging,
        learned,
        engine.layers,
    )


def record(engine: "Engine", sink: Callable[[Event], object]) -> None:
    """From now on tell `sink` every event of this engine, from its thread."""
    config = engine.config
    sink(setup(engine))
    engine.cache.pool = BlockPool(  # what start-up measured has left no trace in its order then
        config.blocks,
        config.block_size,
        policy(config.eviction)(config.blocks),
        prefix=config.prefix_cache,
        snapshots=None if engine.cache.pool.snapshots is None else Snapshots(config.snapshots or 0, config.blocks),
    )
    if engine.disk is not None:
        engine.disk.attach()
    engine.recorder = LogRecorder(sink)


class LogFile:
    """A sink that writes lines. A disk that refuses ends the log, never the service."""

    def __init__(self, path: Path) -> None:
        """InputError when it cannot be written."""
        try:
            self.file = open_log(path)
        except OSError as error:
            raise InputError(f"The decision log {path} cannot be written ({error.strerror}).") from None

    def __call__(self, event: Event) -> None:
        if self.file.closed:
            return
        try:
            write_whole(self.file, dump(event))
        except OSError as error:
            log.warning("The decision log ends here: it cannot be written any more (%s).", error)
            self.file.close()

    def close(self) -> None:
        self.file.close()


class LogRecorder(Recorder):
    def __init__(self, sink: Callable[[Event], object]) -> None:
        self.sink = sink
        self._plan: Plan | None = None
        """Plan of the step in progress."""
        self._step = Step(0.0, Decision([], [], []))
        self._advanced: list[tuple[int, str, int]] = []

    def enrolled(self, drafter: str, facts: DrafterFacts) -> None:
        self._end()
        self.sink(Enrolled(drafter, facts))

    def arrived(self, request: Request) -> None:
        self._end()
        self.sink(Arrival.of(request))

    def operated(self, operation: Operation) -> None:
        self._end()
        match operation:
            case operations.Abort() | operations.Park():
                self.sink(Departure(operation.id))
            case operations.Extend():
                self.sink(Changed(operation.id, extend=[*operation.tokens]))
            case operations.Rewind():
                self.sink(Changed(operation.id, rewind=operation.length))
            case operations.Close():
                self.sink(Closed(operation.id))
            case operations.Replace():
                self.sink(Changed(operation.id, prompt=[*operation.prompt]))

    def joined(self, operation: operations.Join, max_tokens: int, reading: Sequence[str]) -> None:
        self._end()
        self.sink(Joined(operation.id, [*operation.branches], [*operation.tokens], max_tokens, [*reading]))

    def adopted(
        self,
        tokens: Sequence[int],
        groups: Sequence[str],
        layout: Layout = (),
        extra_key: str = "",
        known: bool = False,
    ) -> None:
        self._end()
        self.sink(Adopted([*tokens], [*groups], layout, hidden(extra_key), known))

    def dropped(self, tokens: Sequence[int], extra_key: str, layout: Layout) -> None:
        self._end()
        self.sink(BlocksDropped([*tokens], hidden(extra_key), layout))

    def reserved(
        self,
        number: int,
        blocks: int | None,
        groups: Sequence[str] = (),
        layout: Layout = (),
        extra_key: str = "",
    ) -> None:
        self._end()
        self.sink(BlocksReserved(number, blocks, [*groups], layout, hidden(extra_key)))

    def settled(self, number: int, tokens: Sequence[int]) -> None:
        self._end()
        self.sink(BlocksSettled(number, [*tokens]))

    def planned(self, now: float, admitted: Sequence[Request], plan: Plan) -> None:
        self._end()
        if not (admitted or plan.items or plan.preempt or plan.held):
            return
        self._plan, self._step, self._advanced = plan, Step(now, Decision.of(admitted, plan)), []
        if not plan.items:
            self._end()

    def failed(self, drafter: str, requests: Sequence[Request]) -> None:
        self._step.failed.append((drafter, [r.id for r in requests]))

    def advanced(self, request: Request, group: str, length: int) -> None:
        self._advanced.append((request.id, group, length))

    def ran(
        self, results: Sequence[Result], found: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times
    ) -> None:
        outcome = Outcome([*results], self._advanced, work, [*parts], times, [*found])
        step, self._plan = self._step, None
        self.sink(Step(step.now, step.decision, step.failed, outcome))

    def _end(self) -> None:
        """A step that is still open did not come to its end."""
        if self._plan is not None:
            self.sink(self._step)
            self._plan = None
