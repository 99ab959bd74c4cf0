"""The ASGI layer around all routes: keys, drain, bodies, time limit, request ids."""

import asyncio
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.engine.door import DOOR
from paceline.serve.admission import CLIENT_HEADER, BodyShare, address_of, read_body
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError, as_api_error, error_response, last_event
from paceline.serve.pools import TRIM

if TYPE_CHECKING:
    from paceline.serve.operation import Operation

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
CLIENT_NAME = CLIENT_HEADER.lower().encode()
PROBES = ("/health", "/ready", "/metrics")
GRACE_S = 5.0
"""Seconds that a body has before its rate is looked at."""
LAST_WORD_S = 2.0
"""Seconds that a rejected client may take to read the reason."""
DRAIN_S, DRAIN_BYTES = 10.0, 256 << 20
"""How long, and how many bytes of, the body of a rejected request is still read: many clients read no answer before
they have sent all, and a connection that is closed meanwhile takes the reason with it."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class IncomingBody:
    """`receive` that knows whether the body has ended, and can read on without keeping it."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._ended = receive, False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._ended = self._ended or message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read to the end of the body, as far as that comes soon."""
        left = DRAIN_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self._ended and left > 0:
                    left -= len((await self()).get("body", b""))


class Guard:
    """Wraps the application; `operation` knows the settings and keeps the calls."""

    def __init__(self, app: ASGIApp, operation: "Operation") -> None:
        self.app, self.operation = app, operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = self.operation.begin(scope["method"], scope["path"], request_id(header(scope, b"x-request-id")), scope)
        wire, body = GuardedWire(call, send), IncomingBody(receive)
        DOOR.set(call)
        try:
            await self._timed(scope, body, wire, call)
        except Exception as error:
            await wire.fail(as_api_error(error), body)
        finally:
            if not wire.complete:
                call.gone = True
            call.finished()

    async def _timed(self, scope: Scope, receive: Receive, wire: "GuardedWire", call: HttpCall) -> None:
        limit = self.operation.settings.request_timeout or None
        try:
            async with asyncio.timeout(limit) as call.clock:
                await self._checked(scope, receive, wire, call)
        except TimeoutError:
            if call.clock is None or not call.clock.expired():
                raise
            late = ApiError(408, f"The request took longer than {limit:g} s." if limit else "", code="timeout")
            raise call.reason or late from None

    async def _checked(self, scope: Scope, receive: Receive, wire: "GuardedWire", call: HttpCall) -> None:
        self.operation.hosts.check(header(scope, b"host"))
        try:
            self._check_key(scope, call)
        except ApiError:
            await self.operation.turns.wait(call.owner)
            raise
        if scope["method"] not in SAFE_METHODS and not call.key:
            given = (header(scope, name) for name in (b"origin", b"sec-fetch-site", b"host"))
            self.operation.origins.check(*given)
        if scope["method"] == "POST":
            self.operation.check_open()
        with self.operation.bodies.share(call.owner) as share:
            try:
                body = await self._body(scope, receive, share)
                await self.operation.turns.wait(call.owner)
                if body is not None:
                    await self.app(scope, replay(body, receive, call, wire), wire)
            finally:
                if share.size > TRIM and self.operation.tidy is not None:
                    self.operation.tidy()

    async def _body(self, scope: Scope, receive: Receive, share: "BodyShare") -> bytes | None:
        settings, loop = self.operation.settings, asyncio.get_running_loop()
        began, rate = loop.time(), settings.min_body_rate
        latest = began + (settings.body_timeout or math.inf)

        def due() -> float | None:
            """When the next bytes must be there."""
            when = min(latest, began + GRACE_S + share.size / rate) if rate else latest
            return None if when == math.inf else when

        def take(size: int) -> None:
            share.add(size)
            clock.reschedule(due())

        try:
            async with asyncio.timeout_at(due()) as clock:
                return await read_body(scope, receive, settings.max_body_bytes, take)
        except TimeoutError:
            if not clock.expired():
                raise
            late = loop.time() >= latest
            want = f"complete within {settings.body_timeout:g} s" if late else f"sent at {rate} bytes a second"
            raise ApiError(408, f"The body was not {want}; send it again.", code="timeout") from None

    def _check_key(self, scope: Scope, call: HttpCall) -> None:
        keys, path = self.operation.keys, scope["path"]
        call.owner = address_of(scope)
        if not keys or path == "/" or (path in PROBES and self.operation.settings.open_probes):
            return
        given = header(scope, b"authorization") or f"Bearer {header(scope, b'x-api-key')}"
        which = keys.which(given)
        if which is None:
            message = "The API key is missing or wrong; send the header Authorization: Bearer KEY, or X-Api-Key: KEY."
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        call.key = call.owner = f"key {which}"
        call.tenant = call.key if self.operation.apart else ""
        call.operator = self.operation.operators.which(given) is not None
        if (client := header(scope, CLIENT_NAME)) and self.operation.routers.which(given) is not None:
            if not REQUEST_ID.fullmatch(client):
                raise ApiError(400, f"{CLIENT_HEADER} must be 1 to 128 visible ASCII characters.", code="bad_header")
            call.key = call.owner = f"{call.key} {client}"


class GuardedWire:
    """`send` that adds the request id and knows how far the answer got."""

    def __init__(self, call: HttpCall, send: Send) -> None:
        self.call, self._send = call, send
        self.complete = False
        self._events = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", []), (b"x-request-id", self.call.id.encode())]
            self._events = any(k == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers)
            self.call.status = message["status"]
            message = {**message, "headers": headers}
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True

    async def fail(self, error: ApiError, incoming: IncomingBody) -> None:
        """Tell the client, if it reads: an error object, or an event where the stream has begun."""
        self.call.fault = ApiError(error.status, error.message, param=error.param, code=error.code)
        try:
            async with asyncio.timeout(LAST_WORD_S):
                if self.call.status is None:
                    answer = error_response(error, self.call.path)
                    start = {"type": "http.response.start", "status": error.status, "headers": answer.raw_headers}
                    await self(start)
                    await self({"type": "http.response.body", "body": answer.body, "more_body": True})
                elif self._events and not self.complete:
                    data = last_event(error, self.call.path)
                    await self({"type": "http.response.body", "body": data, "more_body": False})
                    return
                else:
                    return
            await incoming.drain()
            await self({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass


def replay(body: bytes, receive: Receive, call: HttpCall, wire: GuardedWire) -> Receive:
    """`receive` for the application: the body that was read, then what the client does next."""
    unread = True

    async def again() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        message = await receive()
        if message["type"] == "http.disconnect" and not wire.complete:
            call.gone = True
        return message

    return again


def header(scope: Scope, name: bytes) -> str:
    """The first header of that name; empty when there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def request_id(given: str, make: Callable[[], str] = lambda: uuid4().hex) -> str:
    """The client's id where it is 1 to 128 visible ASCII characters, else a fresh one."""
    return given if REQUEST_ID.fullmatch(given) else make()
