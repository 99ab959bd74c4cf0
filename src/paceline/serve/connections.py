"""Connections that bring no request, or too many: a head has a time, a size and a number of fields, and few requests
may wait behind another. The number of connections is limited, in all and of one address; at a limit the one goes that
has waited longest without a request, so that half heads never keep other clients out."""

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paceline.serve.admission import address_of
from paceline.serve.places import Places
from paceline.serve.settings import Settings

log = logging.getLogger("paceline")
MAX_HEADER_BYTES = 1 << 16
"""Bytes of a request line and its headers."""
MAX_FIELDS = 256
"""Fields of a head, and behind a chunked body."""
MAX_PIPELINED = 32
"""Most requests that wait behind another one on the same connection."""
SLICE = 1 << 12
"""Bytes that the parser is given at a time."""
FREE_PIECES, SMALL_PIECE = 1000, 256
"""Pieces of a body of fewer bytes that are read as they come; the rest of it has to wait for its turn."""
LANE_S = 0.01
"""Wait between two slices of bodies in very many pieces."""
UNREAD_S = 30.0
"""How long a client may read nothing of a complete answer."""
CLOSING_WORD_S = 1.0
"""How long a connection that is ended has to read why."""
MANY_ENDED = 256
"""Connections that end until memory is given back; each has some 8 KB."""
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


def share_of_address(settings: Settings, most: int) -> int:
    """Connections of one address: as the settings say, or half of all."""
    return settings.max_connections_per_address or most - most // 2


def protocol(settings: Settings, tidy: Callable[[], None] = lambda: None) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits. `tidy` is called when very many connections have ended, whose memory would
    stay with this process."""
    patience, ends, lane = settings.head_timeout, Ends(), SlowLane()
    most = most_connections(settings)
    places = Places[Any](most, share_of_address(settings, most))
    ended = count(1)

    class Bounded(HttpToolsProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.flow = self._flow = HeldFlow(transport)
            self._bytes, self._fields, self._pieces = 0, 0, 0
            self._head, self._rest = b"", b""
            self._framed, self._too_many = False, ""
            self._answering: Any = None
            places.enter(address_of({"client": self.client}), self)
            if (last := places.too_many(self)) is not None:
                last._refuse(FULL, "one connection too many")
            self._late = self.loop.call_later(patience, self._overdue)

        def connection_lost(self, exc: Exception | None) -> None:
            self._late.cancel()
            places.leave(self)
            lane.leave(self)
            self.pipeline.clear()
            self._rest = b""
            self._tell()
            super().connection_lost(exc)
            if not next(ended) % MANY_ENDED:
                tidy()

        def _tell(self) -> None:
            """Nobody is there for the answer under way. (Its base tells the last request that was read.)"""
            if (running := self._answering) is not None and not running.response_complete:
                running.disconnected = True
                running.message_event.set()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._rest or self._pieces > FREE_PIECES:
                self._rest += data
                self._hold()
                return
            if places.idle(self) and not self._bytes and not self._framed:
                fresh, self._head = not self._head, self._head + data
                if fresh:
                    self._begin()
                if unended(self._head, len(data)) and len(self._head) <= MAX_HEADER_BYTES:
                    return
                data, self._head = plain_head(self._head), b""
            self._parse(data)

        def _parse(self, data: bytes) -> None:
            """Feed the parser in slices, so that a limit is seen soon after it is passed."""
            for at in range(0, len(data), SLICE):
                piece = data[at : at + SLICE]
                self._bytes += len(piece)
                super().data_received(piece)
                if self.transport.is_closing():
                    return
                if self._bytes > MAX_HEADER_BYTES:
                    self._refuse(HEADERS_TOO_LARGE, "its head was too large")
                    return
                if self._pieces > FREE_PIECES and at + SLICE < len(data):
                    self._rest = data[at + SLICE :]
                    self._hold()
                    return
            if self.cycle is not None and not self.cycle.response_complete:
                self._late.cancel()
                places.work(self)
            elif not places.idle(self):
                self._wait()
                self._begin()

        def _hold(self) -> None:
            self._flow.held = True
            self.flow.pause_reading()
            lane.enter(self, self._go_on)

        def _go_on(self) -> None:
            """A slice of what was held, and reading again after the last."""
            data, self._rest = self._rest[:SLICE], self._rest[SLICE:]
            if not self.transport.is_closing():
                self._parse(data)
            if self.transport.is_closing():
                return
            if self._rest:
                self._hold()
            else:
                self._flow.held = False
                self.flow.resume_reading()

        def _wait(self) -> None:
            """From now on it brings no request."""
            self._bytes = 0
            places.rest(self)

        def _begin(self) -> None:
            """The first bytes of a head are there."""
            places.rest(self)
            self._unset_keepalive_if_required()
            self._late.cancel()
            self._late = self.loop.call_later(patience, self._overdue)

        def _overdue(self) -> None:
            if places.idle(self):
                self._refuse(REQUEST_TIMEOUT, "no request in time")

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            self._answering = cycle
            super()._start_asgi_task(cycle, app)

        # What the parser calls; an exception ends the parsing, and `send_400_response` is called.

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._framed, self._fields, self._pieces = False, 0, 0

        def on_header(self, name: bytes, value: bytes) -> None:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                self._too_many = "its head had too many fields"
                raise ValueError(self._too_many)
            if not self._framed:  # what comes behind a body changes nothing that was looked at before
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._framed, self._bytes = True, 0
            super().on_headers_complete()
            if len(self.pipeline) > MAX_PIPELINED:
                self._too_many = "too many requests at once"
                raise ValueError(self._too_many)

        def on_body(self, body: bytes) -> None:
            self._pieces += len(body) < SMALL_PIECE
            if not self.cycle.response_complete:  # else nobody asked for it
                self._bytes = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._framed, self._bytes, self._pieces = False, 0, 0
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if self._too_many:
                self._refuse(HEADERS_TOO_LARGE, self._too_many)
            elif self._speechless():
                self._refuse(b"", "no HTTP behind a request")
            else:
                super().send_400_response(msg)
                self._tell()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle is None or self.cycle.response_complete:
                self._wait()
            if unread := self.transport.get_write_buffer_size():
                self.loop.call_later(UNREAD_S, self._read_on, unread)

        def _read_on(self, before: int) -> None:
            """End a connection whose client has read nothing of its answer meanwhile."""
            unread = self.transport.get_write_buffer_size()
            if unread >= before:
                self.transport.abort()
            elif unread:
                self.loop.call_later(UNREAD_S, self._read_on, unread)

        def _speechless(self) -> bool:
            """Is an answer under way, so that another one would be taken for a part of it?"""
            running = self._answering
            under_way = running is not None and not running.response_complete
            return under_way and (running.response_started or bool(self.pipeline))

        def _refuse(self, answer: bytes, reason: str) -> None:
            if self.transport.is_closing():
                return
            if self._speechless() or self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.write(answer)
                self.transport.close()
                if self.transport.get_write_buffer_size():  # it would stay until that is read
                    self.loop.call_later(CLOSING_WORD_S, self.transport.abort)
            places.leave(self)
            self._tell()
            ends.count(reason)

    return Bounded


class HeldFlow(FlowControl):
    """A connection's flow that stays paused while it is held."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class SlowLane:
    """Connections whose bodies come in very many pieces: each costs the parser as much as a large one would. One of
    them gets a slice at a time, and all others go on between two."""

    def __init__(self) -> None:
        self._turns: dict[object, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, who: object, turn: Callable[[], None]) -> None:
        """`turn` is called once, when those have had theirs that came before."""
        self._turns.setdefault(who, turn)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LANE_S, self._next)

    def leave(self, who: object) -> None:
        self._turns.pop(who, None)

    def _next(self) -> None:
        self._timer = None
        if self._turns:
            self._turns.pop(next(iter(self._turns)))()
        if self._turns and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LANE_S, self._next)


def unended(head: bytes, fresh: int) -> bool:
    """Is this the beginning of a head whose end is yet to come? The last `fresh` bytes were not looked at before."""
    end = max(0, len(head) - fresh - 3)
    return head[:1].isalpha() and head.find(b"\n\r\n", end) < 0 and head.find(b"\n\n", end) < 0


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
