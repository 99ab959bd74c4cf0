"""`paceline bench record`: a recording of live traffic. Bytes pass through untouched; what clients send is also parsed.

    clients ══▶ recorder ══▶ server
                   └──▶ lines {"at": seconds, ...body}

Nothing of headers is kept, so no key is; prompts are.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httptools
import orjson

from paceline.bench.load.workload import API_PATHS, OWN_FIELDS
from paceline.core.errors import InputError

COPY_BYTES = 1 << 16


class Tap:
    """Parses one connection's requests and hands over (seconds at which it began, body) of each completion."""

    def __init__(self, found: Callable[[float, bytes], None]) -> None:
        self._found = found
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._path, self._body, self._began = b"", bytearray(), 0.0

    def feed(self, data: bytes) -> None:
        """Bytes that are no HTTP end the parsing, not the connection."""
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._parser = None

    def on_message_begin(self) -> None:
        self._path, self._began = b"", time.perf_counter()
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path.partition(b"?")[0].decode("latin-1").endswith(tuple(API_PATHS.values())):
            self._found(self._began, bytes(self._body))


class LoadRecorder:
    """Listens, forwards to one server, and writes."""

    def __init__(self, behind: tuple[str, int], out: BinaryIO) -> None:
        (self._host, self._port), self._out = behind, out
        self._zero: float | None = None
        self.count = 0

    async def listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port)

    def keep(self, began: float, body: bytes) -> None:
        """Write one request, at once, so that an ended recorder has lost nothing."""
        try:
            entry = orjson.loads(body)
        except ValueError:
            return  # the server will refuse it too
        if not isinstance(entry, dict):
            return
        self._zero = began if self._zero is None else self._zero
        own = {k: v for k, v in entry.items() if k not in OWN_FIELDS}
        self._out.write(orjson.dumps({"at": round(began - self._zero, 6), **own}) + b"\n")
        self._out.flush()
        self.count += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        tap = Tap(self.keep)
        there = asyncio.ensure_future(pump(reader, up_writer, tap.feed))
        back = asyncio.ensure_future(pump(up_reader, writer, lambda data: None))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            for end in (up_writer, writer):
                end.close()


def address(url: str) -> tuple[str, int]:
    """Host and port of a plain http URL."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "http":
        raise InputError(f"url is {url!r}, but a recording needs plain http, such as http://127.0.0.1:8000.")
    return host, port


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tap: Callable[[bytes], None]) -> None:
    """Move bytes until one side ends."""
    try:
        while data := await reader.read(COPY_BYTES):
            tap(data)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass


def record(url: str, path: Path, host: str, port: int, ready: Callable[[int], None]) -> int:
    """Record until Ctrl-C; the number of requests. `ready` is called with the port when it listens. Raises InputError
    where the file exists or the port is taken."""
    behind = address(url)
    try:
        out = path.open("xb")
    except OSError as error:
        raise InputError(f"{path} cannot be created ({error.strerror}); give the name of a new file.") from None
    with out:
        recorder = LoadRecorder(behind, out)
        asyncio.run(_until_interrupted(recorder, host, port, ready))
        return recorder.count


async def _until_interrupted(recorder: LoadRecorder, host: str, port: int, ready: Callable[[int], None]) -> None:
    try:
        server = await recorder.listen(host, port)
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened on ({error.strerror}); give another --port.") from None
    ready(server.sockets[0].getsockname()[1])
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if (current := asyncio.current_task()) is not None:
            current.uncancel()
    finally:
        server.close()
