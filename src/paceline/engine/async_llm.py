"""`AsyncLLM`: the same verbs for asyncio. One thread owns the engine; calls reach it through an inbox."""

import asyncio
import atexit
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast
from weakref import WeakSet

from paceline.core.errors import CapacityError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.core.stacks import start_roomy
from paceline.engine import learned
from paceline.engine.adapters import AdapterWaitError
from paceline.engine.door import DOOR, DoorTicket, Trip
from paceline.engine.embed import Embedding
from paceline.engine.experts import release
from paceline.engine.llm import LLM, Prompt, as_batch, as_conversations, params_each
from paceline.engine.options import EngineOptions, shown
from paceline.engine.outputs import Chunk, Follower, RequestOutput, output
from paceline.engine.posting import done, fail, post
from paceline.engine.pulse import Pulse
from paceline.engine.totals import Snapshot
from paceline.engine.travel import enter, leave
from paceline.engine.turns import Turns

if TYPE_CHECKING:
    from paceline.core.user import UserFn
    from paceline.engine.text import Message

T = TypeVar("T")
log = logging.getLogger("paceline")
PUBLISH_S = 0.05
"""A busy engine's snapshot is no older than this and a step."""
EXIT_S = 20.0
"""Longest wait for an engine thread at the end of the process."""


class Beside(Protocol):
    """Work that shares an engine's thread: a second engine, or a policy that writes with several."""

    @property
    def busy(self) -> bool:
        """Is there anything to do?"""

    def step(self) -> None:
        """Do a little. Called after each step of the engine while it is busy."""

    def abort(self, request: Request) -> None:
        """End this request, if it belongs to this work."""

    def close(self) -> None:
        """End everything."""


B = TypeVar("B", bound=Beside)
TakeIn = Callable[[list[int], SamplingParams], list[Request]]
"""What takes a prompt (token ids) in, and returns its samples."""


class Subscription:
    """Where the engine thread puts the chunks of some prompts' samples, numbered in order."""

    def __init__(
        self,
        requests: list[Request],
        loop: asyncio.AbstractEventLoop,
        ticket: DoorTicket | None = None,
        arrived: float = 0.0,
        whole: bool = False,
        samples: Sequence[int] | None = None,
        told: bool = False,
    ) -> None:
        """`whole`: one chunk a sample, at its end. A call that wants no news wakes no thread while the engine works.
        `samples`: which samples of their prompt they are, where not all. `told`: their output so far is known."""
        self.requests, self.whole = requests, whole
        self.ticket = ticket
        self.trips = [Trip(r, arrived) for r in requests]
        which = range(len(requests)) if samples is None else samples
        self.followers = [Follower(r, i, told=told) for r, i in zip(requests, which, strict=True)]
        self._trip_of = {follower.request.id: trip for follower, trip in zip(self.followers, self.trips)}
        self.chunks: asyncio.Queue[Chunk | BaseException] = asyncio.Queue()
        self.left = len(requests)
        """Samples whose last chunk has not been taken."""
        self.orphaned = False
        """The event loop that listened is closed."""
        self._loop = loop

    async def news_to_come(self) -> list[Chunk]:
        """Every chunk that is there, after waiting for the first; [] once all samples are finished.

        Raises RuntimeError when the engine thread died."""
        if not self.left:
            return []
        items = [await self.chunks.get()]
        while not self.chunks.empty():
            items.append(self.chunks.get_nowait())
        for item in items:
            if isinstance(item, BaseException):
                raise RuntimeError("The engine thread died; see the cause.") from item
            self.left -= item.done is not None
        return cast(list[Chunk], items)

    def put(self, item: Chunk | BaseException) -> None:
        self._post(self.chunks.put_nowait, item)

    def _post(self, function: Callable[..., object], *args: object) -> None:
        self.orphaned |= not post(self._loop, function, *args)

    def news(self) -> bool:
        """Send what is new; True while samples are unfinished."""
        self.orphaned |= self._loop.is_closed()
        for follower in list(self.followers):
            trip = self._trip_of[follower.request.id]
            trip.look()
            chunk = None if self.whole and follower.request.finish is None else follower.news()
            if chunk is not None:
                if chunk.done:
                    self._end(trip)
                    self.followers.remove(follower)
                self.put(chunk)
        return bool(self.followers)

    def die(self, cause: BaseException) -> None:
        """The engine thread ends here: nothing more will come."""
        for follower in self.followers:
            self._end(self._trip_of[follower.request.id])
        self.put(cause)

    def _end(self, trip: Trip) -> None:
        if self.ticket is not None:
            self._post(self.ticket.ended, trip)


class AsyncLLM:
    """The verbs of `LLM` for asyncio, and its arguments. Use `async with`, or call `close` at the end."""

    __signature__ = shown()

    def __init__(
        self,
        model: str | Path | None = None,
        draft: str | Path | None = None,
        drafter: "str | UserFn | None" = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.llm: LLM
        self.snapshot: Snapshot
        """The engine as it was a moment ago; replaced, never changed, by the engine thread."""
        self._due = 0.0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._live: list[Subscription] = []
        self._turns = Turns()
        self.beside: list[Beside] = []
        """For the engine's thread."""
        self._death: BaseException | None = None
        self._closed = False
        self._pulse = Pulse()
        built: Future[None] = Future()
        make = partial(LLM, model, draft, drafter, **options)
        _open.add(self)
        self._thread = threading.Thread(target=self._run, args=(make, built), name="paceline-engine", daemon=True)
        start_roomy(self._thread)
        built.result()

    def _run(self, make: Callable[[], LLM], built: "Future[None]") -> None:
        """The engine thread. It loads the models itself: had another thread computed on all cores before, OpenMP would
        count two teams, find that they do not fit, and put its workers to sleep between any two parts of a pass."""
        try:
            self.llm = make()
            self.snapshot = self.llm.engine.snapshot()
        except BaseException as error:
            built.set_exception(error)
            return
        built.set_result(None)
        self._serve()

    @property
    def alive(self) -> bool:
        """False once the engine thread has ended, by `close` or by its death."""
        return self._thread.is_alive()

    def stuck(self) -> float:
        """Seconds for which the engine thread has been at one step (or one operation between two) without a sign of
        life: its processor seconds in this step, or those since it last had a processor. A thread that others keep from
        running makes its way, if slowly, and is not stuck. 0 while idle."""
        return self._pulse.stuck(self._thread.ident) if self.alive else 0.0

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; results in order. Prompts of other calls run at the same time."""
        batch = as_batch(prompts)
        each = params_each(params, len(batch))
        texts = [p if isinstance(p, str) else None for p in batch]
        return list(await asyncio.gather(*(self._complete(p, w, t) for p, w, t in zip(batch, each, texts))))

    async def chat(
        self,
        messages: "Sequence[Message] | Sequence[Sequence[Message]]",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_args: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each a list of {"role": ..., "content": ...}; results in order."""
        ids = [self.llm.text.chat(c, **(template_args or {})) for c in as_conversations(messages)]
        each = params_each(params, len(ids))
        return list(await asyncio.gather(*(self._complete(p, w, None) for p, w in zip(ids, each))))

    async def stream(
        self, prompt: "Prompt | Sequence[Message]", params: SamplingParams | None = None
    ) -> AsyncIterator[Chunk]:
        """Chunks as they come; leaving the loop early aborts the request."""
        subscription = await self.submit([(self.llm.ids(prompt), params)])
        try:
            while chunks := await subscription.news_to_come():
                for chunk in chunks:
                    yield chunk
        finally:
            self.abort(subscription)

    async def _complete(self, prompt: Prompt, params: SamplingParams | None, text: str | None) -> RequestOutput:
        subscription = await self.submit([(self.llm.ids(prompt), params)], whole=True)
        try:
            while await subscription.news_to_come():
                pass
        finally:
            self.abort(subscription)
        return output(subscription.requests, text)

    async def submit(
        self,
        batch: Sequence[tuple[list[int], SamplingParams | None]],
        *,
        whole: bool = False,
        by: TakeIn | None = None,
    ) -> Subscription:
        """Queue prompts (token ids) in one go, all of them or, when one cannot be served, none. Take the news from
        what is returned (`whole`: one chunk a sample, at its end); `abort` it at the end. `by`: the receiver, in
        place of the engine; called on its thread.

        Raises InputError, RefusalError or CapacityError, and RuntimeError when the engine is closed or dead."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Subscription] = loop.create_future()
        if self._closed:
            raise RuntimeError("The engine is closed.")
        arrived, door = monotonic(), DOOR.get()
        wishes = [(ids, (params or SamplingParams()).resolve(self.llm.text.defaults)) for ids, params in batch]
        wishes, ticket = (wishes, None) if door is None else door.admit(wishes)
        entered: list[Subscription] = []

        def enter() -> None:
            requests: list[Request] = []
            try:
                if self._death is not None:
                    raise RuntimeError("The engine thread died.") from self._death
                for ids, params in wishes:
                    requests.extend((by or self.llm.engine.submit)(ids, params))
            except BaseException as error:
                for request in requests:
                    self._end(request)
                if ticket is not None:
                    post(loop, ticket.refused)
                post(loop, fail, future, error)
                return
            subscription = Subscription(requests, loop, ticket, arrived, whole)
            entered.append(subscription)
            self._live.append(subscription)
            post(loop, done, future, subscription)

        def leave() -> None:
            for subscription in entered:
                self._abort(subscription)

        self._inbox.put(enter)
        if self._death is not None:
            self._turn_away()
        try:
            return await future
        except asyncio.CancelledError:
            self._inbox.put(leave)
            raise

    async def park(self, subscription: Subscription) -> list[bytes | None]:
        """Take the samples of a subscription out of the engine, all of them or none, as bytes; None for a sample that
        has ended. The last chunk of each has the reason `parked`. `resume` takes what is returned, also in another
        engine. Raises InputError or RefusalError for what cannot be parked, RuntimeError if the engine is closed."""
        return await self.call(lambda: leave(self.llm.engine, subscription.requests))

    async def resume(self, packed: bytes | Sequence[bytes | None], *, whole: bool = False, told: bool = True,
                     clients: Sequence[str] = ()) -> Subscription:  # fmt: skip
        """Continue parked samples, all of them or none. The chunks have what is new from here on, or with `told` false
        the whole text. `whole`: one chunk a sample, at its end. `clients`: the client of each sample. Raises
        InputError, RefusalError or CapacityError, and RuntimeError when the engine is closed or dead."""
        each = [packed] if isinstance(packed, bytes) else list(packed)
        samples = [place for place, one in enumerate(each) if one is not None]
        loop, arrived = asyncio.get_running_loop(), monotonic()
        make = partial(Subscription, loop=loop, arrived=arrived, whole=whole, samples=samples, told=told)
        return await self.call(lambda: self.follow(make(enter(self.llm.engine, each, clients))))

    def follow(self, subscription: Subscription) -> Subscription:
        """Send the chunks of requests that an operation made. For the engine's thread."""
        self._live.append(subscription)
        return subscription

    async def embed(self, texts: Sequence[Prompt], pooling: str = "mean", *, adapter: str = "") -> list[list[float]]:
        """A vector of unit length for each text (or list of token ids), from the model's last hidden states: their
        `mean`, or that of the `last` token. What is being decoded goes on between the passes.

        Raises InputError or CapacityError, and RuntimeError when the engine is closed or dead."""
        ids = [self.llm.ids(text) for text in texts]
        while True:
            try:
                job = await self.call(lambda: Embedding(self.llm.engine, ids, pooling, adapter))
                break
            except AdapterWaitError:  # others hold all places for adapters
                await asyncio.sleep(0.02)
        try:
            while not job.done:
                try:
                    await self.call(job.start)
                except CapacityError:  # others hold the cache: they end, or are pre-empted for one another
                    await asyncio.sleep(0.02)
                    continue
                while not await self.call(job.step, whose=str(getattr(DOOR.get(), "owner", ""))):
                    pass
        finally:
            self._inbox.put(job.close)
        return [vector.tolist() for vector in job.vectors]

    async def call(self, work: Callable[[], T], whose: str | None = None) -> T:
        """What `work` returns, run on the engine's thread between two steps. `whose`: it takes long, so it waits for a
        turn among those of all clients; there is one turn between two steps. RuntimeError when the engine is closed or
        dead."""
        if self._closed:
            raise RuntimeError("The engine is closed.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                if self._death is not None:
                    raise RuntimeError("The engine thread died.") from self._death
                result = work()
            except BaseException as error:
                post(loop, fail, future, error)
            else:
                post(loop, done, future, result)

        self._inbox.put(run if whose is None else lambda: self._turns.add(whose, run))
        if self._death is not None:
            self._turn_away()
        return await future

    def abort(self, subscription: Subscription) -> None:
        """End what is unfinished; nothing when all is."""
        if subscription.left:
            self._inbox.put(lambda: self._abort(subscription))

    def _turn_away(self) -> None:
        """Run what waits in a dead engine's inbox: each operation finds the cause of death and fails its caller."""
        while not self._inbox.empty():
            operation = self._inbox.get()
            if operation is not None:
                operation()
        while self._turns:
            self._turns.take()

    def attach(self, make: Callable[[LLM], B]) -> B:
        """Call `make` on the engine's thread. What it returns gets a step after each step of the engine from now
        on. Raises what `make` raises, and RuntimeError when the engine is closed or dead."""
        if self._closed or not self.alive:
            raise RuntimeError("The engine is closed.")
        made: Future[B] = Future()

        def run() -> None:
            try:
                beside = make(self.llm)
                self.beside.append(beside)
            except BaseException as error:
                made.set_exception(error)
            else:
                made.set_result(beside)

        self._inbox.put(run)
        return made.result()

    @property
    def _busy(self) -> bool:
        engine = self.llm.engine
        return engine.busy or engine.behind or bool(self._turns) or any(each.busy for each in self.beside)

    def _abort(self, subscription: Subscription) -> None:
        for request in subscription.requests:
            self._end(request)

    def _end(self, request: Request) -> None:
        self.llm.engine.abort(request)
        for each in self.beside:
            each.abort(request)

    def _serve(self) -> None:
        """Take what arrived, make a step, send the news."""
        try:
            while self._drain():
                self._pulse.beat()
                if self.llm.engine.busy:
                    self.llm.engine.step()
                elif self.llm.engine.behind:
                    self.llm.engine.catch_up()
                self._turns.take()
                for each in self.beside:
                    if each.busy:
                        each.step()
                self._publish()
                self._live = [s for s in self._live if self._tell(s)]
        except BaseException as error:
            log.exception("The engine thread died; every request in flight fails.")
            self._death = error
            for subscription in self._live:
                subscription.die(error)
            self._turn_away()

    def _tell(self, subscription: Subscription) -> bool:
        """Send the news of a subscription; False when it is over."""
        going_on = subscription.news()
        if subscription.orphaned:
            self._abort(subscription)
        return going_on and not subscription.orphaned

    def _publish(self) -> None:
        """Renew the snapshot, before the news: a caller that has seen a request's end finds it counted."""
        if not self.llm.engine.busy or monotonic() >= self._due:
            self.snapshot = self.llm.engine.snapshot()
            self._due = monotonic() + PUBLISH_S

    def _drain(self) -> bool:
        """Run what is in the inbox (waiting for it when idle); False when it must close."""
        while not self._busy or not self._inbox.empty():
            if not self._busy:
                self._pulse.rest()
            operation = self._inbox.get()
            self._pulse.beat()
            if operation is None:
                return False
            operation()
            if self._live and not self._busy:
                return True
        return True

    def close(self, timeout: float | None = None) -> None:
        """Stop the engine thread; unfinished requests are aborted. After `timeout` seconds a step that does not end is
        left to the end of the process."""
        _open.discard(self)
        self._closed = True
        self._inbox.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.error("The engine thread is at one step for %.0f s and is not waited for.", self.stuck())
            return
        if self._death is not None:
            return
        for subscription in self._live:
            self._abort(subscription)
            subscription.news()
        for each in self.beside:
            each.close()
        learned.keep(self.llm.engine, self.llm.options)
        if self.llm.engine.disk is not None:
            self.llm.engine.disk.close()
        release(self.llm.engine.model)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)


_open: "WeakSet[AsyncLLM]" = WeakSet()
"""Engines that were not closed yet."""


@atexit.register
def _close_all() -> None:
    """Close what was left open: a thread that the end of the interpreter meets amid C++ ends the process badly."""
    for each in list(_open):
        try:
            each.close(EXIT_S)
        except Exception:
            log.debug("An engine could not be closed at the end of the process.", exc_info=True)
