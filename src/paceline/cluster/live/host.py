"""`EngineHost`: an engine in a process of its own, as a cluster's front sees it."""

import asyncio
import os
from collections.abc import AsyncIterator
from copy import copy
from pathlib import Path
from socket import gethostname
from time import monotonic
from typing import Any

from paceline import __version__
from paceline.cluster.live.messages import (
    EngineAdapters,
    EngineFacts,
    EngineGoneError,
    Opened,
    Opening,
    PendingAnswer,
    Resumed,
    SampleNews,
    Settled,
    Submitted,
    Word,
)
from paceline.core.errors import InputError, PacelineError
from paceline.core.operations import Park, Peek, Reserve, Settle
from paceline.core.request import Request, SpecStats
from paceline.engine.async_llm import AsyncLLM, Subscription
from paceline.engine.desk import lease_of
from paceline.engine.outputs import Chunk
from paceline.engine.packing import pack, unpack
from paceline.engine.totals import Snapshot


class EngineHost:
    """Owns the engine. For one event loop."""

    def __init__(self, options: dict[str, Any], front: str = __version__) -> None:
        """`options` as for `AsyncLLM`. InputError where the front's Paceline has another version than the engine's:
        what they say to each other may have changed."""
        if front != __version__:
            raise InputError(
                f"{gethostname()} has Paceline {__version__}, but the cluster's server has {front}; install the same."
            )
        self.llm = AsyncLLM(**options)
        self._streams: dict[str, Subscription] = {}

    async def facts(self) -> EngineFacts:
        """What a front must know."""
        engine, text = self.llm.llm.engine, self.llm.llm.text
        config = engine.config
        return EngineFacts(
            engine.operations.origin, text.path, text.defaults, engine.session.eos, engine.model.max_len,
            engine.session.longest, config.max_requests, config.blocks, config.block_size,
            engine.model.width, config.drafter, tuple(engine.drafters.cards), os.getpid(), gethostname(),
            self._adapters(),
        )  # fmt: skip

    def _adapters(self) -> EngineAdapters:
        has = self.llm.llm.engine.session.adapters
        digests, places = {name: has.named[name].digest for name in has.places}, has.places
        return EngineAdapters(digests, places, has.most, None if has.zoo is None else frozenset(has.zoo.models))

    async def snapshot(self) -> Snapshot:
        """The engine as it was a moment ago."""
        return self.llm.snapshot

    async def open(self, key: str, opening: Opening) -> AsyncIterator[Word]:
        """Begin, say what the engine took in, or what it raised, and follow to the end."""
        try:
            if isinstance(opening, Submitted):
                subscription = await self.llm.submit([(opening.prompt, opening.params)])
            elif isinstance(opening, Resumed):
                subscription = await self.llm.resume(opening.packed, clients=opening.clients)
            else:
                packed = await arrival(opening.packed)
                if isinstance(packed, Exception):
                    raise packed
                subscription = await self._settled(opening, packed)
        except (PacelineError, EngineGoneError) as error:
            yield error
            return
        self._streams[key] = subscription
        requests = subscription.requests
        try:
            yield Opened([r.id for r in requests], self._written(requests) if isinstance(opening, Submitted) else [])
            heard = self._known(opening, len(requests))
            told = [False] * len(requests)
            while chunks := await subscription.news_to_come():
                yield [news(requests[c.index], c, heard, told) for c in chunks]
        finally:
            self._streams.pop(key, None)
            self.llm.abort(subscription)

    def _known(self, opening: Opening, samples: int) -> list[int]:
        """Tokens of each sample that are no news."""
        if isinstance(opening, Settled):
            return [opening.heard[0]]
        if isinstance(opening, Submitted):
            return [0] * samples
        origin = self.llm.llm.engine.operations.origin
        return [len(unpack(packed, origin).fields["output"]) for packed in opening.packed]

    async def _settled(self, opening: Settled, packed: bytes) -> Subscription:
        """A reservation becomes a request, which is followed from where it is known."""
        loop, arrived = asyncio.get_running_loop(), monotonic()

        def begin() -> Subscription:
            requests = self.llm.llm.engine.apply(Settle(opening.reservation, packed, opening.client))
            if not isinstance(requests, list):
                raise InputError("These bytes are a piece of a request, not a parked one.")
            subscription = Subscription(requests, loop, None, arrived)
            subscription.followers[0].begin_at(*opening.heard)
            return self.llm.follow(subscription)

        return await self.llm.call(begin)

    def _written(self, requests: list[Request]) -> list[bytes]:
        """The samples as they began, as bytes."""
        origin, size = self.llm.llm.engine.operations.origin, self.llm.llm.engine.config.block_size
        begun = []
        for request in requests:
            first = copy(request)
            first.output, first.authors, first.logprobs, first.prompt_logprobs = [], [], [], []
            first.stats, first.round, first.admitted = SpecStats(), 0, None
            begun.append(pack(first, origin, first.arrival, "", size, {}, []))
        return begun

    async def leave(self, key: str) -> None:
        """End what is unfinished of an opening."""
        if (subscription := self._streams.get(key)) is not None:
            self.llm.abort(subscription)

    async def ask(self, verb: str, *args: Any) -> Any:
        """`peek` and `park` (id, first block), `sealed` (id), `leave` (key), `reserve` (blocks, spare), `settle`
        (reservation, bytes or None), `embed` (texts, pooling, adapter), `read` (an adapter's path, draft), `load`
        (name, path, draft, replace, digest), `unload` (name). Errors are returned, and one among the arguments is the
        answer."""
        args = tuple([await arrival(each) for each in args])
        if found := next((each for each in args if isinstance(each, Exception)), None):
            return found
        engine = self.llm.llm.engine
        try:
            match verb:
                case "peek":
                    return await self.llm.call(lambda: engine.apply(Peek(*args)))
                case "park":
                    return await self.llm.call(lambda: engine.apply(Park(*args)))
                case "sealed":
                    return await self.llm.call(lambda: self._sealed(*args))
                case "reserve":
                    return await self.llm.call(lambda: engine.apply(Reserve(args[0], spare=args[1])))
                case "settle":
                    return await self.llm.call(lambda: engine.apply(Settle(*args)))
                case "leave":
                    return await self.leave(*args)
                case "embed":
                    return await self.llm.embed(args[0], args[1], adapter=args[2])
                case "read":
                    weights = await self._adapter(*args)
                    return weights.digest, weights.rank
                case "load":
                    return await self._load(*args)
                case "unload":
                    return await self.llm.call(lambda: engine.session.adapters.remove(*args))
            return InputError(f"An engine of a cluster cannot {verb!r}.")
        except PacelineError as error:
            return error

    async def _adapter(self, path: str, draft: str | None) -> Any:
        adapters = self.llm.llm.engine.session.adapters
        try:
            return await asyncio.to_thread(adapters.read, Path(path), None if draft is None else Path(draft))
        except OSError as error:
            raise InputError(f"The adapter at {path} cannot be read ({error}).") from None

    async def _load(self, name: str, path: str, draft: str | None, replace: bool, digest: str) -> None:
        weights = await self._adapter(path, draft)
        if weights.digest != digest:
            raise InputError(f"The adapter at {path} has changed since it was read; load it again.")
        enter, at = self.llm.llm.engine.session.adapters.enter, None if draft is None else Path(draft)
        await self.llm.call(lambda: enter(name, Path(path), weights, replace, at))

    def _sealed(self, number: int) -> int:
        """Sealed blocks of a request."""
        request = self.llm.llm.engine.session.live(number)
        return 0 if request.lease is None else lease_of(request).sealed

    def close(self) -> None:
        """End the engine."""
        self.llm.close(1.0)

    def leave_at_once(self) -> None:
        """Die as a crash would."""
        os._exit(1)


async def arrival(given: Any) -> Any:
    """What another engine gives, once it is here; EngineGoneError, returned, where that died."""
    if not isinstance(given, PendingAnswer):
        return given
    try:
        return await given.ref
    except Exception as error:
        return EngineGoneError(f"the engine that was to give something died ({type(error).__name__})")


def news(request: Request, chunk: Chunk, heard: list[int], told: list[bool]) -> SampleNews:
    """A chunk with what else a front keeps. `heard`: tokens of each sample before it; `told`: whose prompt's
    log-probabilities are known."""
    place, size = chunk.index, len(chunk.token_ids)
    start = heard[place]
    heard[place] = start + size
    prompt: list[Any] = []
    if size and not told[place]:
        told[place], prompt = True, list(request.prompt_logprobs)
    waited = None if request.admitted is None else max(0.0, request.admitted - request.arrival)
    return SampleNews(
        place, chunk.token_ids, request.authors[start : start + size], request.marks[start : start + size],
        list(chunk.logprobs), chunk.text, counted(request.stats), waited, prompt,
        request.finish if chunk.done else None, request.error if chunk.done else None,
    )  # fmt: skip


def counted(stats: SpecStats) -> SpecStats:
    """A copy of what the engine's thread may be counting in: `kept` is read before `offered`, which grows first."""
    kept = list(stats.kept)
    return SpecStats(stats.passes, stats.generated, list(stats.offered), kept, stats.preempted, stats.cached)
