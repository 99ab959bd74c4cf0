"""Connections that bring no request: a head has a time and a size, and the number of connections is limited. At the
limit the one goes that has waited longest without one, so that half heads never keep other clients out."""

import asyncio
import logging
import os
import sys
from collections import Counter
from time import monotonic
from typing import Any

from paceline.serve.settings import Settings

log = logging.getLogger("paceline")
MAX_HEADER_BYTES = 1 << 16
"""Bytes of a request line and its headers."""
SPARE_FILES = 64
"""Descriptors that are left for everything but connections."""
TELL_S = 10.0
FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
REQUEST_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
HEADERS_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def most_connections(settings: Settings) -> int:
    """As the settings say, or as many as the files that this process may still open leave room for."""
    if settings.max_connections or sys.platform == "win32":
        return settings.max_connections or 10_000
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 10_000
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = SPARE_FILES
    return max(4, min(10_000, limit - used - SPARE_FILES))


def protocol(settings: Settings) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base
    most, patience, ends = most_connections(settings), settings.head_timeout, Ends()

    class Bounded(base):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._began, self._bytes, self._waiting = monotonic(), 0, True
            if len(self.connections) > most:
                idle = [it for it in self.connections if it is not self and it._waiting]
                victim = min(idle, key=lambda it: it._began, default=self)
                victim._end(FULL, "one connection too many")
            self._late = self.loop.call_later(patience, self._end, REQUEST_TIMEOUT, "no request in time")

        def connection_lost(self, exc: Exception | None) -> None:
            self._late.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            fresh = self._waiting and not self._bytes
            super().data_received(plain_head(data) if fresh else data)
            waiting = self.cycle is None or self.cycle.response_complete
            if not waiting:
                self._late.cancel()
                self._bytes, self._waiting = 0, False
                return
            if not self._waiting or fresh:  # the first bytes of a head
                self._began, self._waiting = monotonic(), True
                self._late.cancel()
                self._late = self.loop.call_later(patience, self._end, REQUEST_TIMEOUT, "no request in time")
            self._bytes += len(data)
            if self._bytes > MAX_HEADER_BYTES:
                self._end(HEADERS_TOO_LARGE, "its head was too large")

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._began, self._waiting = monotonic(), self.cycle is None or self.cycle.response_complete

        def _end(self, answer: bytes, reason: str) -> None:
            if self.transport.is_closing() or not self._waiting:
                return
            self.transport.write(answer)
            self.transport.close()
            ends.count(reason)

    return Bounded


def plain_head(data: bytes) -> bytes:
    """A request that offers another protocol, as one of HTTP/1.1 without the offer: a server may ignore it (RFC 9110,
    section 7.8), and the body is then read as of any request."""
    head, gap, body = data.partition(b"\r\n\r\n")
    if not gap or b"upgrade" not in head.lower():
        return data
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"upgrade:", b"http2-settings:"))]
    kept = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"connection":
            words = [word.strip() for word in value.split(b",")]
            words = [word for word in words if word.lower() not in (b"upgrade", b"http2-settings")]
            if not words:
                continue
            line = name + b": " + b", ".join(words)
        kept.append(line)
    return b"\r\n".join(kept) + gap + body


class Ends:
    """Counts connections that were ended early and tells of them now and then: a line each would fill the log."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._told = -TELL_S

    def count(self, reason: str) -> None:
        self._counts[reason] += 1
        if monotonic() - self._told >= TELL_S:
            for why, number in self._counts.items():
                log.warning("%d connections were ended: %s.", number, why)
            self._counts.clear()
            self._told = monotonic()
