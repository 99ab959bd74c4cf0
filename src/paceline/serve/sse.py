"""Answers that end when the client goes: server-sent events, and plain ones that take long."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from paceline.serve.errors import as_api_error, last_event

DONE_EVENT = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def named(name: str, data: dict[str, Any]) -> bytes:
    """An event that says its type twice, as OpenAI's responses and Anthropic's messages do."""
    return f"event: {name}\ndata: ".encode() + orjson.dumps({"type": name, **data}) + b"\n\n"


class EventStream(Response):
    """Sends what an async generator of bytes yields, then calls `close`: also when the client goes, wherever the
    generator waits. A client that reads slowly holds it back. A failure after the start becomes an event."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], close: Callable[[], None], done: bytes = DONE_EVENT
    ) -> None:
        """`done`: what is sent when all went well."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.close, self.done = events, close, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send, scope.get("path", "")))
        finally:
            self.close()

    async def _send(self, send: Send, path: str) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events(path)) as events:
            async for piece in events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, path: str) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self.events) as events:
                async for piece in events:
                    yield piece
        except Exception as error:
            yield last_event(as_api_error(error), path)
        else:
            yield self.done


class Answer(Protocol):
    """One answer in either form."""

    def events(self) -> AsyncGenerator[bytes, None]: ...

    async def whole(self) -> dict[str, Any]: ...


async def respond(
    request: Request, answer: Answer, stream: bool, close: Callable[[], None], done: bytes = DONE_EVENT
) -> Response:
    """The answer as a stream, which ends with `done`, or in one piece; `close` is called at its end in any case."""
    if stream:
        return EventStream(answer.events(), close, done)
    try:
        return await json_unless_gone(request, answer.whole())
    finally:
        close()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`; None, and `work` cancelled, when the client disconnects first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def json_response(data: Any) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")


async def json_unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Response:
    """The JSON answer that `work` makes; the result is unused when the client has gone."""
    data = await unless_gone(request.receive, work)
    return Response(status_code=499) if data is None else json_response(data)
