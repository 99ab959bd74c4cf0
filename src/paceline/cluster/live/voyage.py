"""Samples on their way through the engines of a cluster: followed, and taken to another engine when theirs dies."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from paceline.cluster.live.freeness import urgent
from paceline.cluster.live.messages import (
    EngineGoneError,
    EngineLink,
    Opened,
    Opening,
    Resumed,
    SampleNews,
    Submitted,
    Word,
)
from paceline.cluster.live.mirror import hear, mirrored, written
from paceline.core.errors import LostError
from paceline.core.handover import HandoverEvent
from paceline.core.request import Request

if TYPE_CHECKING:
    from paceline.cluster.live.engines import Engines

START_S = 900.0
"""Time for an engine to load its model."""
log = logging.getLogger("paceline")
MOST_LOSSES = 7
"""Engines that one sample may lose without a token in between before it is given up: it may be what ends them. Not
fewer: of a crowd that goes on elsewhere the last ones wait long for their next token, whatever dies meanwhile."""

BROKE_OFF = "The engines that were asked broke off, perhaps over this request; change it, or try later."


@dataclass(eq=False)
class Voyage:
    """One sample on its way through the cluster: its mirror in the front, and the engine that has it."""

    request: Request
    tell: Callable[[], object]
    """Called after the mirror has changed."""
    link: EngineLink
    number: int
    """Id of the sample in that engine."""
    key: str
    losses: int = 0
    moving: bool = False
    left: "asyncio.Future[str] | None" = None
    """While the sample moves: how its stream from the old engine ended (parked, finished or lost)."""
    ended: bool = False
    """Nobody listens any more."""

    @property
    def over(self) -> bool:
        return self.ended or self.request.finish is not None

    def fail(self, message: str) -> None:
        """End it with an error that its caller gets."""
        self.request.finish, self.request.error = "error", message
        self.tell()

    def leave(self, how: str) -> None:
        """Tell the task that moves the sample how its stream has ended."""
        if self.left is not None and not self.left.done():
            self.left.set_result(how)


@dataclass(eq=False)
class Voyages:
    """Begins, follows and restores them. For one event loop."""

    engines: "Engines"
    going: set[Voyage] = field(default_factory=set)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _next: int = 0

    async def begin(self, opening: Submitted, tell: Callable[[Request], object]) -> list[Voyage]:
        """The samples of a prompt, on the freest engine. Raises the PacelineError of the engine."""
        losses = 0
        while True:
            link = await self.engines.freest(urgent(opening.params.priority))
            key = uuid4().hex
            try:
                stream = link.open(key, opening)
                with self.engines.expecting(link, unheard(opening)):
                    word = await anext(stream)
            except (EngineGoneError, StopAsyncIteration) as error:
                self.engines.lost(link, error)
                losses += 1
                if losses > MOST_LOSSES:
                    raise LostError(
                        "The engines that were asked broke off, perhaps over this request; change it, or try later."
                    ) from error
                continue
            if isinstance(word, Exception):
                raise word
            assert isinstance(word, Opened)
            made = []
            for number, packed in zip(word.ids, word.packed, strict=True):
                self._next += 1
                request = mirrored(packed, self.engines.facts.origin, self._next, opening.params.client)
                made.append(Voyage(request, partial(tell, request), link, number, key))
            self.going.update(made)
            self._start(self._follow(link, stream, made))
            return made

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A request of the cluster failed.", exc_info=error)

    async def _follow(self, link: EngineLink, stream: AsyncIterator[Word], voyages: list[Voyage]) -> None:
        """Hear of these samples until the last has ended or left; those of a dead engine go on elsewhere."""
        open_ = dict(enumerate(voyages))
        try:
            async for word in stream:
                assert isinstance(word, list)
                for news in word:
                    self._heard(open_, news)
            gone = EngineGoneError(f"{link.name} ended a stream in mid-text") if open_ else None
        except EngineGoneError as error:
            gone = error
        except Exception:
            log.exception("The news of a request could not be read.")
            self._fail([voyage for voyage in open_.values() if not voyage.over], "The cluster failed on this request.")
            self.end(voyages)
            for voyage in open_.values():
                voyage.leave("lost")
            raise
        if gone is None or not open_:
            return
        self.engines.lost(link, gone)
        lost = [voyage for voyage in open_.values() if not voyage.over]
        for voyage in open_.values():
            voyage.losses += 1
            voyage.leave("lost")
        await self.restore(lost)

    def _heard(self, open_: dict[int, Voyage], news: SampleNews) -> None:
        voyage = open_[news.place]
        hear(voyage.request, news)
        if news.tokens:
            voyage.losses = 0
        if news.finish is not None:
            del open_[news.place]
            voyage.leave("parked" if news.finish == "parked" else "finished")
        voyage.tell()
        if voyage.over:
            self.going.discard(voyage)
        elif news.finish == "parked" and voyage.left is None:
            self._start(self.restore([voyage]))

    async def restore(self, voyages: list[Voyage], prefer: EngineLink | None = None) -> None:
        """Samples that no engine has go on, on the engine that is wished for or the freest one."""
        while going := [voyage for voyage in voyages if not voyage.over]:
            if any(voyage.losses > MOST_LOSSES for voyage in going):
                self._fail([voyage for voyage in going if voyage.losses > MOST_LOSSES], BROKE_OFF)
                continue
            try:
                wished = prefer is not None and self.engines.takes(prefer)
                pressing = any(urgent(voyage.request.params.priority) for voyage in going)
                link = prefer if wished and prefer is not None else await self.engines.freest(pressing, START_S)
            except LostError as error:
                self._fail(going, str(error))
                return
            packed = [written(voyage.request, self.engines.facts.origin) for voyage in going]
            clients = [voyage.request.params.client for voyage in going]
            event, error_ = await self.enter(going, link, Resumed(packed, clients))
            if event == "done":
                return
            if event == "refused":
                self._fail(going, str(error_))
            for voyage in going:
                voyage.losses += 1

    def _fail(self, voyages: list[Voyage], message: str) -> None:
        for voyage in voyages:
            voyage.fail(message)
            self.going.discard(voyage)

    async def enter(
        self, voyages: list[Voyage], link: EngineLink, opening: Opening
    ) -> tuple[HandoverEvent, Exception | None]:
        """These samples go on there: done; refused, with the reason; or gone, for the engine died."""
        key = uuid4().hex
        try:
            stream = link.open(key, opening)
            with self.engines.expecting(link, [voyage.request for voyage in voyages]):
                word = await anext(stream)
        except (EngineGoneError, StopAsyncIteration) as error:
            self.engines.lost(link, error)
            return "gone", error
        if isinstance(word, Exception):
            return "refused", word
        assert isinstance(word, Opened)
        for voyage, number in zip(voyages, word.ids, strict=True):
            voyage.link, voyage.number, voyage.key = link, number, key
        self._start(self._follow(link, stream, voyages))
        if all(voyage.over for voyage in voyages):
            await self._quit(link, key)
        return "done", None

    def end(self, voyages: list[Voyage]) -> None:
        """Nobody listens to these any more."""
        for voyage in voyages:
            voyage.ended = True
            self.going.discard(voyage)
        for link, key in {(voyage.link, voyage.key) for voyage in voyages if voyage.request.finish is None}:
            self._start(self._quit(link, key))

    async def _quit(self, link: EngineLink, key: str) -> None:
        try:
            await link.ask("leave", key)
        except EngineGoneError as error:
            self.engines.lost(link, error)


def unheard(opening: Submitted) -> list[Request]:
    """Samples of a prompt, as far as loads know them, before an engine has taken them in."""
    now = monotonic()
    return [Request(0, opening.prompt, opening.params, 0, arrival=now) for _ in range(opening.params.n)]
