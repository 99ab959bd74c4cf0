"""`AsyncLLM`: the same verbs for asyncio. One thread owns the engine; calls reach it through an inbox, so offline
is online with another mailbox."""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.llm import LLM, Prompt, as_batch
from paceline.engine.outputs import Chunk, Follower, RequestOutput, output

if TYPE_CHECKING:
    from paceline.draft import UserFn
    from paceline.engine.text import Message

log = logging.getLogger("paceline")


class Subscription:
    """Where the engine thread puts the chunks of one prompt's samples."""

    def __init__(self, requests: list[Request], loop: asyncio.AbstractEventLoop) -> None:
        self.requests = requests
        self.followers = [Follower(r, i) for i, r in enumerate(requests)]
        self.chunks: asyncio.Queue[Chunk | BaseException] = asyncio.Queue()
        self._loop = loop

    def put(self, item: Chunk | BaseException) -> None:
        self._loop.call_soon_threadsafe(self.chunks.put_nowait, item)

    def news(self) -> bool:
        """Send what is new; True while samples are unfinished."""
        for follower in list(self.followers):
            chunk = follower.news()
            if chunk is not None:
                self.put(chunk)
                if chunk.done:
                    self.followers.remove(follower)
        return bool(self.followers)


class AsyncLLM:
    """Arguments as for `LLM`. Use `async with`, or call `close` at the end."""

    def __init__(
        self,
        model: str | Path | None = None,
        draft: str | Path | None = None,
        drafter: "str | UserFn | None" = None,
        **options: Any,
    ) -> None:
        self.llm = LLM(model, draft, drafter, **options)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._live: list[Subscription] = []
        self._death: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="paceline-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; results in order. Prompts of other calls run beside them."""
        batch = as_batch(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(batch)
        texts = [p if isinstance(p, str) else None for p in batch]
        return list(
            await asyncio.gather(*(self._complete(p, w, t) for p, w, t in zip(batch, each, texts, strict=True)))
        )

    async def chat(
        self,
        messages: "Sequence[Message]",
        params: SamplingParams | None = None,
        *,
        template_args: Mapping[str, Any] | None = None,
    ) -> RequestOutput:
        """Answer one conversation."""
        return await self._complete(self.llm.text.chat(messages, **(template_args or {})), params, None)

    async def stream(
        self, prompt: "Prompt | Sequence[Message]", params: SamplingParams | None = None
    ) -> AsyncIterator[Chunk]:
        """Chunks as they come; leaving the loop early aborts the request."""
        subscription = await self._submit(self.llm.ids(prompt), params)
        left = len(subscription.requests)
        try:
            while left:
                item = await subscription.chunks.get()
                if isinstance(item, BaseException):
                    raise RuntimeError("The engine thread died; see the cause.") from item
                left -= item.done is not None
                yield item
        finally:
            if left:
                self._inbox.put(lambda: self._abort(subscription))

    async def _complete(self, prompt: Prompt, params: SamplingParams | None, text: str | None) -> RequestOutput:
        subscription = await self._submit(self.llm.ids(prompt), params)
        left = len(subscription.requests)
        try:
            while left:
                item = await subscription.chunks.get()
                if isinstance(item, BaseException):
                    raise RuntimeError("The engine thread died; see the cause.") from item
                left -= item.done is not None
        finally:
            if left:
                self._inbox.put(lambda: self._abort(subscription))
        return output(subscription.requests, text)

    async def _submit(self, ids: list[int], params: SamplingParams | None) -> Subscription:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Subscription] = loop.create_future()
        wish = (params or SamplingParams()).resolve(self.llm.text.defaults)

        def enter() -> None:
            try:
                if self._death is not None:
                    raise RuntimeError("The engine thread died.") from self._death
                subscription = Subscription(self.llm.engine.submit(ids, wish), loop)
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, future, None, error)
                return
            self._live.append(subscription)
            loop.call_soon_threadsafe(_settle, future, subscription, None)

        if self._closed:
            raise RuntimeError("The engine is closed.")
        self._inbox.put(enter)
        if self._death is not None:
            self._turn_away()
        return await future

    def _turn_away(self) -> None:
        """Run what waits in a dead engine's inbox: each operation finds the cause of death and fails its caller."""
        while not self._inbox.empty():
            operation = self._inbox.get()
            if operation is not None:
                operation()

    def _abort(self, subscription: Subscription) -> None:
        for request in subscription.requests:
            self.llm.engine.abort(request)

    def _serve(self) -> None:
        """The engine thread: take what arrived, make a step, send the news."""
        try:
            while self._drain():
                if self.llm.engine.busy:
                    self.llm.engine.step()
                self._live = [s for s in self._live if s.news()]
        except BaseException as error:
            log.exception("The engine thread died; every request in flight fails.")
            self._death = error
            for subscription in self._live:
                subscription.put(error)
            self._turn_away()

    def _drain(self) -> bool:
        """Run what is in the inbox (waiting for it when idle); False when told to close."""
        while not self.llm.engine.busy or not self._inbox.empty():
            operation = self._inbox.get()
            if operation is None:
                return False
            operation()
            if self._live and not self.llm.engine.busy:
                return True
        return True

    def close(self) -> None:
        """Stop the engine thread; unfinished requests are aborted."""
        self._closed = True
        self._inbox.put(None)
        self._thread.join()
        for subscription in self._live:
            self._abort(subscription)
            subscription.news()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)


def _settle(future: "asyncio.Future[Subscription]", value: Subscription | None, error: BaseException | None) -> None:
    """Complete a future that its caller may have given up."""
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    elif value is not None:
        future.set_result(value)
