"""What one client sends that is no plain HTTP: requests behind requests, heads and bodies without an end, odd framing.
Each attack ends by itself within some seconds."""

import http.client
import json
import resource
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from bench.attacks.wire import TIMEOUT_S, Hurt, opened

STREAM = json.dumps({"prompt": "One", "max_tokens": 2000, "stream": True, "ignore_eos": True}).encode()
SHORT = json.dumps({"prompt": "One", "max_tokens": 1}).encode()
FLOOD_S = 4.0
CONNECTIONS = 10_000
NEIGHBOUR = "127.0.0.2"
"""Another address of this machine's own, on Linux."""


def connected(url: str, timeout: float = TIMEOUT_S, of: str = "") -> socket.socket:
    """A connection, from the address `of`."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 80), timeout, (of, 0) if of else None)


def head(key: str, line: str = "POST /v1/completions", *fields: str) -> bytes:
    given = [f"{line} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}", *fields]
    return "\r\n".join([*given, "Content-Type: application/json", "", ""]).encode()


def flood(held: Sequence[socket.socket], what: bytes, seconds: float = FLOOD_S) -> str:
    """Sends the same bytes on all connections again and again, and reads nothing; how much went out, and how many of
    them were closed."""
    sent, closed = 0, 0
    with selectors.DefaultSelector() as ready:
        for each in held:
            each.setblocking(False)
            ready.register(each, selectors.EVENT_WRITE, [0])
        end = time.monotonic() + seconds
        while ready.get_map() and time.monotonic() < end:
            for one, _ in ready.select(0.1):
                at = one.data
                try:
                    more = one.fileobj.send(what[at[0] :])  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError:
                    ready.unregister(one.fileobj)
                    closed += 1
                    continue
                sent, at[0] = sent + more, (at[0] + more) % len(what)
    for each in held:
        each.close()
    return f"{sent / 2**20:.0f} MB, {closed} of {len(held)} closed"


def opening(url: str, count: int, first: bytes, of: str = "") -> list[socket.socket]:
    """So many connections that have brought this."""
    made = []
    for _ in range(count):
        with suppress(OSError):
            each = connected(url, of=of)
            each.sendall(first)
            made.append(each)
    return made


def pipelined(url: str, key: str) -> str:
    """Requests behind requests, whose answers nobody reads."""
    small = b"GET /nothing HTTP/1.1\r\n\r\n" * 4000
    alone = flood(opening(url, 4, b""), small)
    behind = flood(opening(url, 4, head(key, "POST /v1/completions", f"Content-Length: {len(STREAM)}") + STREAM), small)
    return f"{alone}; behind a stream {behind}"


def behind(url: str, key: str) -> str:
    """A head that does not end behind a request that is under way: fields, one field, an address."""
    first = head(key, "POST /v1/completions", f"Content-Length: {len(STREAM)}") + STREAM
    fields = flood(opening(url, 2, first + b"GET / HTTP/1.1\r\n"), b"a:\r\n" * 16_000)
    one = flood(opening(url, 2, first + b"GET / HTTP/1.1\r\nA: "), b"a" * 64_000)
    line = flood(opening(url, 2, first + b"GET /"), b"a" * 64_000)
    return f"fields {fields}; one field {one}; address {line}"


def trailers(url: str, key: str) -> str:
    """Chunked bodies with fields behind them, an extension, and a size, that do not end."""
    first = head(key, "POST /v1/completions", "Transfer-Encoding: chunked")
    fields = flood(opening(url, 4, first + b"1\r\n{\r\n0\r\n"), b"a:\r\n" * 16_000)
    extension = flood(opening(url, 4, first + b"1;a="), b"a" * 64_000)
    size = flood(opening(url, 4, first), b"0" * 64_000, 1.0)
    return f"fields {fields}; extension {extension}; size {size}"


def crumbs(url: str, key: str) -> str:
    """Chunked bodies, each chunk of one byte, and heads of many small fields, on many connections at once."""
    first = head(key, "POST /v1/completions", "Transfer-Encoding: chunked")
    bodies = flood(opening(url, 100, first), b"1\r\nx\r\n" * 10_000)
    heads = flood(opening(url, 300, b"GET / HTTP/1.1\r\n"), b"a:\r\n" * 16_000)
    return f"chunks {bodies}; fields {heads}"


def answered(url: str, sent: bytes, ended: bool = False) -> str:
    """The status of what comes back to these bytes; - where the connection is closed without a word, ? where nothing
    comes. `ended`: the client has closed its side."""
    with connected(url, 3.0) as one:
        try:
            one.sendall(sent)
            if ended:
                one.shutdown(socket.SHUT_WR)
            said = one.recv(4096)
        except TimeoutError:
            return "?"
        except OSError:
            return "-"
    return said[9:12].decode("latin-1") if said.startswith(b"HTTP/1.1 ") else "-" if not said else repr(said[:9])


def tricks(key: str) -> list[bytes]:
    """Requests that are odd in one way each, and complete."""
    own, size, chunked = head(key)[:-2], f"Content-Length: {len(SHORT)}", b"Transfer-Encoding: chunked\r\n"
    bodies = [
        b"Content-Length: 2\r\n" + chunked + b"\r\n0\r\n\r\n",
        chunked + b"\r\nzz\r\n",
        chunked + b"\r\n-1\r\n",
        chunked + b"\r\nfffffffffffffffff\r\n",
        chunked + b"\r\n1\r\n{}\r\n0\r\n\r\n",
        chunked + chunked + b"\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 1e3\r\n\r\n",
        b"Content-Length: 99999999999999999999\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length: 9\r\n\r\n" + SHORT,
        b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
        b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}",
        b" folded: x\r\nContent-Length: 2\r\n\r\n{}",
        b"A\x00B: x\r\nContent-Length: 2\r\n\r\n{}",
        b"A: \x00\r\nContent-Length: 2\r\n\r\n{}",
        b"A : x\r\nContent-Length: 2\r\n\r\n{}",
    ]
    form = head(key)[:-2].replace(b"application/json", b"multipart/form-data; boundary=x")
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: {}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    )
    return [
        *(own + each for each in bodies),
        form + b"Content-Length: 9\r\n\r\n--x\r\n\r\n--",
        head(key, "GET /v1/models", upgrade.format("websocket")),
        head(key, "POST /v1/completions", upgrade.format("websocket"), size) + SHORT,
        head(key, "POST /v1/completions", upgrade.format("h2c"), size) + SHORT,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 1000,
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
        head(key, "CONNECT evil.example:443"),
        head(key, "OPTIONS *"),
        head(key, "GET http://evil.example/v1/models"),
        head(key, "GET //evil.example/v1/models"),
        head(key, "GET /" + "a" * 60_000),
        head(key, "GET /" + "a/" * 30_000),
        head(key, "GET /v1/models/" + "%00" * 100),
        head(key, "GET /v1/models/" + "%ff" * 100),
        head(key, "GET /" + "../" * 100 + "etc/passwd"),
        head(key, "GET /%2e%2e/%2e%2e/etc/passwd"),
        head(key, "GET /v1/models?" + "a=%ff&" * 10_000),
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\xf0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer \xc3\x28" + key.encode() + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nX-Request-Id: \xff\x00\r\nHost: \xff\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n" + b"Host: a\r\n" * 4000 + b"\r\n",
    ]


def odd(url: str, key: str) -> str:
    """Requests that are odd in one way each; those that come in pieces; clients that close their side."""
    asked, slow = tricks(key), 0.0
    counts: Counter[str] = Counter()
    for sent in asked:
        for ended in (False, True):
            began = time.monotonic()
            counts[answered(url, sent, ended)] += 1
            slow = max(slow, time.monotonic() - began)
    return " ".join(f"{count}x{each}" for each, count in sorted(counts.items())) + f", slowest {slow:.2f} s"


def eager(url: str, sent: bytes, seconds: float = 2.0) -> int:
    """The same request on 32 connections, four at a time on each, and again for each answer; the answers."""
    count = 0
    with selectors.DefaultSelector() as ready:
        held = opening(url, 32, sent * 4)
        for each in held:
            each.setblocking(False)
            ready.register(each, selectors.EVENT_READ)
        end = time.monotonic() + seconds
        while ready.get_map() and time.monotonic() < end:
            for one, _ in ready.select(0.1):
                said = b""
                with suppress(OSError):
                    said = one.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                if not said:
                    ready.unregister(one.fileobj)
                    continue
                count += (more := said.count(b"HTTP/1.1 "))
                with suppress(OSError):
                    one.fileobj.send(sent * more)  # type: ignore[union-attr]
    for each in held:
        each.close()
    return count


def reads(url: str, key: str) -> str:
    """What is answered at once, as quickly as it is answered; the first without a key."""
    asked = [head("", "GET /metrics")]
    asked += [head(key, f"GET {path}") for path in ("/stats/history", "/openapi.json", "/v1/models", "/nothing")]
    asked.append(head(key, "POST /v1/completions", "Content-Length: 2") + b"{}")
    return " ".join(str(eager(url, each)) for each in asked) + " answers"


def many_files() -> int:
    """Connections that this process may open, CONNECTIONS at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(CONNECTIONS + 200, hard) if hard != resource.RLIM_INFINITY else CONNECTIONS + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return min(CONNECTIONS, most - 200)


def idle(url: str, key: str) -> str:
    """Connections that bring nothing, or half a head, or stay after an answer; as many as files may be opened."""
    firsts = (b"", b"GET /v1/", head(key, "GET /health"))
    held = [one for i in range(many_files()) for one in opening(url, 1, firsts[i % 3])]
    time.sleep(2)
    for each in held:
        each.close()
    return f"{len(held)} connections"


def neighbours(url: str, key: str) -> str:
    """The same from one address, beside connections that another address keeps between two requests. Raises Hurt if one
    of those is ended."""
    asked = head(key, "GET /v1/models")

    def answered_on(one: socket.socket) -> bool:
        with suppress(OSError, http.client.HTTPException), http.client.HTTPResponse(one) as answer:
            one.sendall(asked)
            answer.begin()
            answer.read()
            return answer.status == 200
        return False

    kept = opening(url, 50, b"")
    began = time.monotonic()
    good = [answered_on(each) for each in kept]
    firsts = (b"", b"GET /v1/", head(key, "GET /health"))
    held = []
    for i in range(many_files() - len(kept)):
        held += opening(url, 1, firsts[i % 3], NEIGHBOUR)
        if not i % 100 and time.monotonic() - began > 2:  # before the server ends what is idle
            began = time.monotonic()
            good = [answered_on(each) and fine for each, fine in zip(kept, good, strict=True)]
    good = [answered_on(each) and fine for each, fine in zip(kept, good, strict=True)]
    for each in (*kept, *held):
        each.close()
    if not all(good):
        raise Hurt(f"{len(good) - sum(good)} of {len(good)} connections were ended")
    return f"{len(held)} connections, {sum(good)} of {len(good)} kept"


def brief(url: str, key: str) -> str:
    """Connections that end as soon as they are there, 64 at a time; every other with a reset."""
    parts = urlsplit(url)
    place, end, count = (parts.hostname or "", parts.port or 80), time.monotonic() + FLOOD_S, 0
    while time.monotonic() < end:
        held = [socket.socket() for _ in range(64)]
        for each in held:
            each.setblocking(False)
            each.connect_ex(place)
        for i, each in enumerate(held):
            if i % 2:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        count += len(held)
    return f"{count / FLOOD_S:.0f} connections a second"


def slow(url: str, key: str) -> str:
    """Heads and bodies, a byte at a time, and streams that are read a byte at a time."""
    first = head(key, "POST /v1/completions", f"Content-Length: {len(STREAM)}")
    held = [*opening(url, 100, b"G"), *opening(url, 30, first)]
    with suppress(OSError):
        held += [opened(url, "/v1/completions", key, len(STREAM), STREAM) for _ in range(8)]
    end = time.monotonic() + FLOOD_S
    while time.monotonic() < end:
        for each in held:
            with suppress(OSError):
                each.send(b" ")
                each.setblocking(False)
                each.recv(1)
        time.sleep(0.2)
    for each in held:
        each.close()
    return f"{len(held)} connections"
