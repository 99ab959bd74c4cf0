"""HTTP/1.1 for a load generator: asyncio protocols over httptools' parser, one clock reading for each read.

A general client spends several times this on every chunk, and then it is the client that is measured.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools
import orjson

from paceline.bench.load.answer import TimedAnswer, message
from paceline.bench.load.sse import Events
from paceline.core.errors import InputError

IDLE_CONNECTION_S = 2.0
"""Seconds after which an unused connection is not used again; servers close theirs after 5 or more, and a request
must not meet that moment."""
MOST_HEAD_BYTES, MOST_ANSWER_BYTES = 1 << 20, 64 << 20
"""Size limits of a response's head, and of a response that is kept in one piece."""


class TooLargeError(ConnectionError):
    """A response that is kept in one piece has more than MOST_ANSWER_BYTES."""


class ClosedError(ConnectionError):
    """The connection ended before the response did."""


class LoadClock:
    """Seconds since it was started."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._zero = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._zero


class Sink(Protocol):
    """Takes a response as it comes."""

    def head(self, status: int, kind: str) -> None:
        """Status and content type (lower case, without parameters)."""

    def body(self, data: bytes, now: float) -> None: ...


class Whole:
    """Keeps a response in one piece."""

    def __init__(self) -> None:
        self.status, self._data = 0, bytearray()

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def head(self, status: int, kind: str) -> None:
        self.status = status

    def body(self, data: bytes, now: float) -> None:
        if len(self._data) + len(data) > MOST_ANSWER_BYTES:
            self._data = bytearray()
            raise TooLargeError(f"The response has more than {MOST_ANSWER_BYTES} bytes.")
        self._data += data

    def error(self) -> str:
        """What the server said was wrong."""
        try:
            return message(orjson.loads(self.data)["error"])
        except (ValueError, KeyError, TypeError):
            return self.data[:200].decode("utf-8", "replace")


class EventFeed(Whole):
    """Feeds an answer from a stream of events; an error's body is kept in one piece."""

    def __init__(self, answer: TimedAnswer) -> None:
        super().__init__()
        self.answer, self.events, self.kind = answer, Events(), ""

    def head(self, status: int, kind: str) -> None:
        self.status, self.kind = status, kind

    @property
    def streams(self) -> bool:
        return self.status == 200 and self.kind == "text/event-stream"

    def body(self, data: bytes, now: float) -> None:
        if not self.streams:
            super().body(data, now)
            return
        for event in self.events.feed(data):
            self.answer.event(event, now)

    def close(self, now: float) -> None:
        """The response is complete: what is missing is an error."""
        if self.status != 200:
            self.answer.fail(f"HTTP {self.status}", self.error(), now)
        elif not self.streams:
            self.answer.fail("not a stream", f"The answer is {self.kind or 'untyped'}, not text/event-stream.", now)
        elif not self.answer.finished:
            self.answer.fail("truncated", "The stream ended without [DONE].", now)


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, now: LoadClock) -> None:
        self._now = now
        self._read_at = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._end: asyncio.Future[None] | None = None
        self._kind, self._sized = "", False
        self._head_bytes = 0
        """Bytes of a head that has not ended, at most."""
        self.idle_since = 0.0

    def send(self, data: bytes, sink: Sink) -> "asyncio.Future[None]":
        """Write a request; the future ends with the response, or fails with ConnectionError."""
        assert self._transport is not None and self._end is None, "one request at a time"
        self._sink, self._end = sink, asyncio.get_running_loop().create_future()
        self._kind, self._sized, self._head_bytes = "", False, 0
        self._transport.write(data)
        return self._end

    @property
    def reusable(self) -> bool:
        age = self._now() - self.idle_since  # negative after a restart of the clock
        return self._transport is not None and not self._transport.is_closing() and 0 <= age < IDLE_CONNECTION_S

    @property
    def peer(self) -> str:
        assert self._transport is not None
        return str(self._transport.get_extra_info("peername")[0])

    def close(self) -> None:
        """At once; what was under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        self._read_at = self._now()
        try:
            self._head_bytes += len(data)
            self._parser.feed_data(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._settle(ConnectionError(f"The response's head has more than {MOST_HEAD_BYTES} bytes."))
                self.close()
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._settle(cause if isinstance(cause, TooLargeError) else ConnectionError(str(cause or error)))
            self.close()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._settle(ConnectionError(f"The response is not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        whole = exc is None and self._kind != "" and not self._sized
        self._settle(None if whole else ClosedError(str(exc or "The server closed the connection.")))

    def _settle(self, error: Exception | None) -> None:
        end, self._end, self._sink = self._end, None, None
        self.idle_since = self._now()
        if end is None or end.done():
            return
        if error is None:
            end.set_result(None)
        else:
            end.set_exception(error)

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self._kind = value.partition(b";")[0].strip().lower().decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        if self._sink is not None:
            self._sink.head(self._parser.get_status_code(), self._kind)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._sink is not None:
            self._sink.body(body, self._read_at)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self._parser.get_status_code() < 200:
            return  # a notice such as 100 or 103, before the response itself
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        self._settle(None)


class Client:
    """A server's address, and connections to it that are used again. At most `limit` are in use at once (None: no
    limit); requests without one wait in order."""

    def __init__(self, url: str, now: LoadClock, key: str | None = None, limit: int | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query:
            raise InputError(f"url is {url!r}, but it must be such as http://127.0.0.1:8000 or https://host/v1.")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InputError("The API key has characters that a header cannot carry; give it as it was issued.")
        self._name, self._tls = parts.hostname, parts.scheme == "https"
        self._port = port or (443 if self._tls else 80)
        self._host = self._name
        """The address that the first connection reached: names are looked up once."""
        self._root = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: paceline-bench\r\n{bearer}"
        self._now, self._idle = now, list[Connection]()
        self._slots = asyncio.Semaphore(limit) if limit is not None else None

    async def post(self, path: str, body: bytes, answer: TimedAnswer, timeout: float) -> None:
        """Send one request and follow its stream. Never raises but when cancelled: the answer holds the failure."""
        sink = EventFeed(answer)
        try:
            async with asyncio.timeout(timeout):
                await self._post(path, body, answer, sink)
        except TimeoutError:
            answer.fail("timeout", f"No end within {timeout:g} s.", self._now())
        except ConnectionError as error:
            answer.fail("closed" if answer.sent is not None else "connect", str(error), self._now())
        except OSError as error:
            answer.fail("connect", str(error), self._now())
        except asyncio.CancelledError:
            answer.fail("cancelled", "The run was ended.", self._now())
            raise
        else:
            sink.close(self._now())

    async def send(self, path: str, sink: Sink, timeout: float, body: bytes | None = None, headers: str = "") -> None:
        """One request, with more headers, each with the end of its line, whose response goes to `sink`. Raises OSError,
        TimeoutError among them."""
        async with asyncio.timeout(timeout):
            await self._exchange(self._request(path, body, headers), sink)

    async def json(self, path: str, timeout: float, body: bytes | None = None) -> Any:
        """The JSON that a path gives, or makes of `body`. Raises InputError where the server does not give it."""
        sink = Whole()
        try:
            await self.send(path, sink, timeout, body)
        except OSError as error:  # TimeoutError too
            raise InputError(f"No server answers at {self._name}:{self._port} ({error}); give its --url.") from None
        if sink.status != 200:
            said = f"HTTP {sink.status} ({sink.error()})"
            raise InputError(f"{self._root}{path} gives {said}; check --url and --api-key.")
        try:
            return orjson.loads(sink.data)
        except ValueError:
            raise InputError(f"{self._root}{path} is not JSON; is --url an OpenAI-compatible server?") from None

    async def _post(self, path: str, body: bytes, answer: TimedAnswer, sink: Sink) -> None:
        request = self._request(path, body)

        def written() -> None:
            answer.sent = self._now()

        if self._slots is None:
            await self._exchange(request, sink, written)
            return
        async with self._slots:
            await self._exchange(request, sink, written)

    def _request(self, path: str, body: bytes | None, headers: str = "") -> bytes:
        """A GET, or with a body a POST."""
        if body is None:
            return f"GET {self._root}{path} HTTP/1.1\r\n{self._head}{headers}\r\n".encode()
        kind = f"{headers}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"POST {self._root}{path} HTTP/1.1\r\n{self._head}{kind}\r\n".encode() + body

    async def _exchange(self, data: bytes, sink: Sink, written: Callable[[], None] = lambda: None) -> None:
        connection = await self._connection()
        try:
            written()
            await connection.send(data, sink)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            connection.close()
        tls = ssl.create_default_context() if self._tls else None
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._now),
            self._host,
            self._port,
            ssl=tls,
            server_hostname=self._name if self._tls else None,
        )
        self._host = connection.peer
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
