"""A small HTTP server on loopback whose answers a test writes, byte by byte where it wants."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Asked:
    number: int
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Scripted:
    script: Script
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    """Requests that are being answered."""
    most_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                asked = await self._read(reader)
                self.asked.append(asked)
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                try:
                    await self.script(asked, writer)
                    await writer.drain()
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Asked(len(self.asked), first.split()[1], headers, body)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    own = Scripted(script)
    server = await asyncio.start_server(own.serve, "127.0.0.1", 0)
    own.port = server.sockets[0].getsockname()[1]
    try:
        yield own
    finally:
        server.close()


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def chunk(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "usage": None})


def usage(tokens: int, prompt: int = 3, **more: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, **more}})


DONE = event(b"[DONE]")


def framed(data: bytes) -> bytes:
    """As one chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def whole(events: Sequence[bytes]) -> bytes:
    """A complete streamed response."""
    return HEAD + b"".join(framed(e) for e in events) + b"0\r\n\r\n"


HELLO = [chunk("Hel"), chunk("lo"), usage(4), DONE]


async def hello(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(HELLO))


def says(response: bytes, close: bool = False) -> Script:
    """Always this response, then the end of the connection where `close`."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        if close:
            await writer.drain()
            writer.close()

    return script


async def ask(server: Scripted, timeout: float = 20.0, **options: Any) -> TimedAnswer:
    """One request through a client of its own."""
    clock = LoadClock()
    client = Client(server.url, clock, **options)
    answer = TimedAnswer(clock())
    await client.post("/chat/completions", b"{}", answer, timeout)
    client.close()
    return answer
