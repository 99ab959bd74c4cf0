"""Engines that a controller can ask: HTTP servers, and what any kind of them answers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import orjson

from paceline.bench.load.client import MOST_ANSWER_BYTES, Client, ClosedError, LoadClock, TooLargeError, Whole
from paceline.serve.admission import CLIENT_HEADER
from paceline.serve.errors import error_body

MOST_UNREAD_BYTES = 4 << 20
"""Limit on the buffer of a stream whose client reads slowly; beyond it the call is ended."""
TAIL_BYTES = 1 << 14
"""Length of the end of a stream that is searched for its usage."""

REPLY_TIMEOUT_S = 600.0
"""Time for a whole reply: nobody waits longer."""
ALIVE_S, ENGINE_PROBE_S, PROBE_AGAIN_S = 5.0, 30.0, 2.0
"""Seconds that an engine which was lost has for a response; those of one that is probed, since one with a single thread
may be at another request; and seconds between two probes of an engine that closes the connection."""


class EngineLost(Exception):
    """The engine died, or cannot be reached: its calls must run elsewhere."""


class StreamPieces:
    """A stream on its way: put in by an engine's connection, read by one client. For one event loop."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._news = asyncio.Event()
        self.unread, self.events, self.ended = 0, 0, False
        self.left: Callable[[], object] = lambda: None
        """Called when its client reads no more."""
        self.error: Exception | None = None

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self.unread += len(data)
        self.events += data.count(b"\n\n")
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more comes; with `error`, because it failed."""
        if not self.ended:
            self.ended, self.error = True, error
            self._news.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = b"".join(self._pieces)  # all that is there: a router that falls behind writes less often
                self._pieces.clear()
                self.unread -= len(piece)
                yield piece
            if self.ended:
                break
            self._news.clear()
            await self._news.wait()
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response; `body` is JSON, or of a stream the end of it."""

    status: int
    body: bytes
    stream: StreamPieces | None = None


class SmallCall(NamedTuple):
    """A call of one token, which shows whether an engine computes."""

    path: str
    body: bytes

    @classmethod
    def like(cls, path: str, body: bytes) -> "SmallCall":
        """One for the model of a call, through the same door, with nothing else of it."""
        try:
            model = orjson.loads(body).get("model")
        except (ValueError, AttributeError):
            model = None
        asks = {"messages": [{"role": "user", "content": "a"}]} if path.startswith("/chat") else {"prompt": "a"}
        named = {"model": model} if isinstance(model, str) else {}
        return cls(path, orjson.dumps({**named, **asks, "max_tokens": 1}))


class RemoteEngine(Protocol):
    """One engine that speaks OpenAI's protocol."""

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        """POST a body to a path below /v1, or GET it, for this client of the router. Raises EngineLost."""
        ...

    async def alive(self) -> bool:
        """Would the engine answer now?"""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """One that also streams."""

    async def stream(self, path: str, body: bytes, begun: Callable[[Reply], None], client: str = "") -> Reply:
        """As `RemoteEngine.ask`; `begun` is called with a reply whose stream has begun; this ends with the stream."""
        ...


@runtime_checkable
class HeardEngine(Protocol):
    """One that counts what it says, and can be asked whether it is there."""

    heard: int
    worked: int
    """Count of what it has computed: answers to calls, and pieces of their streams."""

    async def there(self) -> bool:
        """Does the engine answer at all, whatever it says? Waits long for one that can be reached."""
        ...

    async def computes(self, call: SmallCall) -> bool:
        """Does the engine answer a call? Waits for as long as one may take."""
        ...


class Relay(Whole):
    """A response that is handed on while it comes, if it is a stream of events."""

    def __init__(
        self,
        begun: Callable[[Reply], None],
        late: Callable[[], object],
        heard: Callable[[bool], object] = lambda _: None,
    ) -> None:
        """`late`: called when the client reads too slowly; `heard`: when something came, with whether it is an event,
        which an engine has computed."""
        super().__init__()
        self._begun, self._late, self._heard = begun, late, heard
        self.pieces: StreamPieces | None = None

    def head(self, status: int, kind: str) -> None:
        self.status = status
        if status == 200 and kind == "text/event-stream":
            self.pieces = StreamPieces()
            self._begun(Reply(status, b"", self.pieces))

    def body(self, data: bytes, now: float) -> None:
        self._heard(self.pieces is not None and b"data:" in data)
        if self.pieces is None:
            super().body(data, now)
            return
        self.pieces.put(data)
        self._data += data
        del self._data[:-TAIL_BYTES]
        if self.pieces.unread > MOST_UNREAD_BYTES:
            self._late()


class HttpEngine:
    """A server at an address."""

    def __init__(self, url: str, key: str | None = None, timeout: float = REPLY_TIMEOUT_S) -> None:
        self.url, self._client, self._timeout = url, Client(url, LoadClock(), key), timeout
        self.heard = self.worked = 0

    def _hear(self, computed: bool = False) -> None:
        self.heard += 1
        self.worked += computed

    async def ask(self, path: str, body: bytes | None, client: str = "") -> Reply:
        sink = Whole()
        try:
            await self._client.send(path, sink, self._timeout, body, told(client))
        except TooLargeError:
            self._hear()
            return too_large()
        except OSError as error:  # ConnectionError and TimeoutError too
            raise EngineLost(f"{self.url}: {error or 'no answer in time'}") from error
        self._hear(body is not None and sink.status == 200)
        return Reply(sink.status, sink.data)

    async def stream(self, path: str, body: bytes, begun: Callable[[Reply], None], client: str = "") -> Reply:
        task = asyncio.current_task()
        assert task is not None
        sink = Relay(begun, task.cancel, self._hear)
        try:
            await self._client.send(path, sink, self._timeout, body, told(client))
        except TooLargeError:  # not a stream: of one only the end is kept
            return too_large()
        except OSError as error:
            lost = EngineLost(f"{self.url}: {error or 'no answer in time'}")
            if sink.pieces is not None:
                sink.pieces.end(lost)
            raise lost from error
        except asyncio.CancelledError:
            if sink.pieces is not None:
                sink.pieces.end(EngineLost(f"{self.url}: the stream was not read in time"))
            raise
        except Exception as error:
            if sink.pieces is not None:
                sink.pieces.end(EngineLost(f"{self.url}: {error!r}"))
            raise
        self._hear(sink.status == 200)
        if sink.pieces is not None:
            sink.pieces.end()
        return Reply(sink.status, sink.data, sink.pieces)

    async def alive(self) -> bool:
        """A list of models, or a refusal: not every server has one. An error of the server's means that it starts, or
        that nobody is behind it."""
        sink = Whole()
        try:
            await self._client.send("/models", sink, ALIVE_S)
        except TooLargeError:
            return True
        except OSError:
            return False
        return sink.status < 500

    async def computes(self, call: SmallCall) -> bool:
        """A refusal, too, means that it does, for it proves nothing else; an error of the server's does not."""
        try:
            reply = await self.ask(call.path, call.body)
        except EngineLost:
            return False
        return reply.status < 500

    async def there(self) -> bool:
        """Any HTTP response means that it is. A connection that it refuses means at once that it is not; one that it
        closes means little, for this router's calls may have all the places that it gives to one address."""
        try:
            async with asyncio.timeout(ENGINE_PROBE_S):
                while True:
                    try:
                        await self._client.send("/models", Whole(), ENGINE_PROBE_S)
                    except ClosedError:
                        await asyncio.sleep(PROBE_AGAIN_S)
                    else:
                        return True
        except TooLargeError:
            return True
        except OSError:
            return False


def too_large() -> Reply:
    """The reply for a response that is too large to be handed on. No fault of the engine: another would say as much."""
    most = f"The engine's response has more than {MOST_ANSWER_BYTES} bytes, which is the limit for one in one piece"
    message = f"{most}; ask for fewer choices, tokens or log-probabilities, or for a stream."
    return Reply(502, orjson.dumps(error_body(502, message, code="response_too_large")))


def told(client: str) -> str:
    """The header that names a router's client to an engine that believes this router."""
    return f"{CLIENT_HEADER}: {client}\r\n" if client else ""
