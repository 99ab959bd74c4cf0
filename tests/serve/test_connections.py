"""What a connection may bring beside plain requests: requests behind requests, heads and bodies without an end, bodies
in very many pieces. Each is refused or takes its turn; the request before it is answered as it should be."""

import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from paceline import AsyncLLM
from paceline.serve import connections
from paceline.serve.connections import (
    FREE_PIECES,
    MAX_FIELDS,
    MAX_HEADER_BYTES,
    MAX_PIPELINED,
    SlowLane,
    protocol,
    share_of_address,
    unended,
)
from paceline.serve.places import Places
from paceline.serve.run import config
from paceline.serve.settings import Settings
from tests.serve.process import threaded
from tests.serve.test_guard import connect, idle

MOST_SENT = 64 << 20
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LONG = json.dumps({"prompt": "One", "max_tokens": 900, "stream": True, "ignore_eos": True}).encode()
STREAM = HEAD + b"Content-Length: %d\r\n\r\n" % len(LONG) + LONG
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def plain(engine: AsyncLLM) -> Iterator[str]:
    with threaded(engine, Settings()) as (url, _):
        yield url


def whole(sock: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    data = b""
    while True:
        try:
            more = sock.recv(1 << 16)
        except ConnectionError:
            return data
        if not more:
            return data
        data += more


def sent(url: str, first: bytes, again: bytes) -> int:
    """Bytes that could be sent until the connection was ended; MOST_SENT where it was not."""
    count = 0
    with connect(url) as sock:
        sock.sendall(first)
        while count < MOST_SENT:
            try:
                sock.sendall(again)
            except ConnectionError:
                break
            count += len(again)
    return count


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (STREAM + b"GET / HTTP/1.1\r\n", b"a:\r\n" * 16_000),
        (STREAM + b"GET / HTTP/1.1\r\nA: ", b"a" * 64_000),
        (STREAM + b"GET /", b"a" * 64_000),
        (STREAM, b"GET /nothing HTTP/1.1\r\n\r\n" * 2000),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"a:\r\n" * 16_000),
        (CHUNKED + b"1;a=", b"a" * 64_000),
        (CHUNKED, b"0" * 64_000),
    ],
    ids=["fields", "field", "address", "requests", "trailers", "extension", "size"],
)
def test_what_has_no_end_is_ended(plain: str, engine: AsyncLLM, first: bytes, again: bytes) -> None:
    """Behind a request that is under way, too; nor does that go on for a client that has been cut off."""
    assert sent(plain, first, again) < MOST_SENT
    assert idle(engine)


def test_few_requests_wait_behind_another(plain: str) -> None:
    one = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(plain) as sock:
        sock.sendall(one * MAX_PIPELINED)
        data = b""
        while data.count(b"HTTP/1.1 200") < MAX_PIPELINED:
            data += sock.recv(1 << 16)
    with connect(plain) as sock:
        sock.sendall(one * 4000)
        data = whole(sock)
    assert data.count(b"HTTP/1.1 200") <= MAX_PIPELINED and b" 500 " not in data


def test_the_stream_of_a_client_that_left_ends_though_it_had_asked_for_more(
    plain: str, engine: AsyncLLM, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(plain) as sock:
        sock.sendall(STREAM + b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        while b"data: " not in data:
            data += sock.recv(1000)
        before = sum(stats.generated for stats in engine.snapshot.totals.drafters.values())
    assert idle(engine)
    made = sum(stats.generated for stats in engine.snapshot.totals.drafters.values()) - before
    assert made < 850, "the client left near its beginning"
    assert "failed" not in caplog.text, "nor is that a fault of the server's"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /version HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n", b"431"),
        (b"GET /version HTTP/1.1\r\nA: " + b"b" * 2 * MAX_HEADER_BYTES + b"\r\n\r\n", b"431"),
        (b"GET /version HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_FIELDS - 1) + b"\r\n", b"200"),
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (CHUNKED + b"zz\r\n", b"400"),
        (b"GET / HTTP/1.1\n\n", b"400"),
        (b"\x16\x03\x01\x02\x00", b"400"),
    ],
)
def test_odd_heads_are_answered(plain: str, head: bytes, status: bytes) -> None:
    with connect(plain) as sock:
        sock.sendall(head)
        assert sock.recv(1000).startswith(b"HTTP/1.1 " + status)


def test_no_answer_is_put_within_another(plain: str) -> None:
    """What is no HTTP behind a stream ends it, without a second head in its midst."""
    with connect(plain) as sock:
        sock.sendall(STREAM)
        data = b""
        while b"data: " not in data:
            data += sock.recv(1000)
        sock.sendall(b"\x00\x00\x00\x00")
        data += whole(sock)
    assert data.count(b"HTTP/1.1 ") == 1 and not data.endswith(b"0\r\n\r\n")


def test_a_body_in_very_many_pieces_is_read_whole(plain: str) -> None:
    body = json.dumps({"prompt": "One" + " " * 6 * FREE_PIECES, "max_tokens": 1}).encode()
    crumbs = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with connect(plain) as sock:
        sock.sendall(CHUNKED + crumbs + b"0\r\nX-Api-Key: a\r\n\r\nGET /version HTTP/1.1\r\nConnection: close\r\n\r\n")
        data = whole(sock)
    assert data.count(b"HTTP/1.1 200") == 2 and b'"completion_tokens":1' in data


async def test_pieces_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice at a time, of all connections together, and in their order."""
    monkeypatch.setattr(connections, "LANE_S", 0.001)
    lane, seen, done = SlowLane(), list[str](), asyncio.Event()

    def turn(name: str) -> None:
        seen.append(name)
        if len(seen) < 6:
            lane.enter(name, lambda: turn(name))
        else:
            done.set()

    for name in ("a", "b", "gone"):
        lane.enter(name, lambda name=name: turn(name))  # type: ignore[misc]
    lane.leave("gone")
    assert not seen
    async with asyncio.timeout(20):
        await done.wait()
    assert seen == ["a", "b"] * 3


def test_an_offer_in_pieces_is_let_go(plain: str) -> None:
    """An upgrade that comes in two pieces: the body is read all the same."""
    body = b'{"prompt": "a", "max_tokens": 1}'
    head = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    with connect(plain) as sock:
        for piece in (head[:150], head[150:], b"Content-Length: %d\r\n\r\n" % len(body), body):
            sock.sendall(piece)
            time.sleep(0.05)
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    assert unended(b"GET / HT", 8) and not unended(b"GET / HTTP/1.1\r\n\r\n", 1)


async def test_no_protocol_passes_the_guard() -> None:
    """A websocket would be told to the application without its key having been looked at."""
    app = FastAPI()
    assert config(app, Settings()).ws_protocol_class is None


def test_who_reads_nothing_of_an_answer_is_cut_off() -> None:
    ended, later = list[bool](), list[int]()
    made = object.__new__(protocol(Settings()))
    size = iter((10, 5, 5, 0))
    made.transport = SimpleNamespace(get_write_buffer_size=lambda: next(size), abort=lambda: ended.append(True))  # type: ignore[attr-defined]
    made.loop = SimpleNamespace(call_later=lambda seconds, what, unread: later.append(unread))  # type: ignore[attr-defined]
    for before, what in ((20, ([], [10])), (10, ([], [10, 5])), (5, ([True], [10, 5])), (5, ([True], [10, 5]))):
        made._read_on(before)  # type: ignore[attr-defined]
        assert (ended, later) == what


@contextmanager
def from_address(url: str, address: str, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections from one of this machine's own addresses."""
    port = int(url.rsplit(":", 1)[1])
    held = []
    try:
        for _ in range(count):
            held.append(socket.create_connection(("127.0.0.1", port), 20, (address, 0)))
            with suppress(OSError):  # it may have been ended at once
                held[-1].sendall(first)
        yield held
    finally:
        for each in held:
            each.close()


def kept(sock: socket.socket) -> bool:
    """Is this connection, which was answered before, answered again?"""
    with suppress(OSError):
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        while b"}" not in data and (more := sock.recv(1000)):
            data += more
        return data.startswith(b"HTTP/1.1 200")
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="All of 127.0.0.0/8 is this machine on Linux alone")
@pytest.mark.parametrize("first", [b"", b"GET /v1/", CHUNKED], ids=["nothing", "half a head", "half a body"])
def test_connections_of_one_address_push_out_none_of_another(engine: AsyncLLM, first: bytes) -> None:
    settings = Settings(max_connections=12, head_timeout=30.0, body_timeout=30.0)
    with threaded(engine, settings) as (url, _), from_address(url, "127.0.0.1", 4) as mine:
        assert all(map(kept, mine))
        with from_address(url, "127.0.0.2", 40, first) as theirs:
            assert all(map(kept, mine)), "their share is half"
            with from_address(url, "127.0.0.1", 2) as more:
                assert all(map(kept, more))
            theirs[0].settimeout(20)
            with suppress(ConnectionError):
                assert theirs[0].recv(100)[:12] in (b"", b"HTTP/1.1 503") or first == CHUNKED
        with from_address(url, "127.0.0.2", 6, first), from_address(url, "127.0.0.3", 1) as third:
            assert all(map(kept, third)), "who has most idle ones makes room"


def test_an_address_may_have_all_connections_where_it_is_a_proxy(engine: AsyncLLM) -> None:
    settings = Settings(max_connections=8, max_connections_per_address=8)
    with threaded(engine, settings) as (url, _), from_address(url, "127.0.0.1", 8) as mine:
        assert all(map(kept, mine)) and all(map(kept, mine))
        assert share_of_address(Settings(), 9) == 5, "half without it"


def test_who_goes_is_found_among_those_that_wait() -> None:
    """The places of connections against plain lists of them, in 4,000 random steps."""
    random, places = Random(7), Places[int](most=12, share=6)
    here: list[tuple[str, int, bool]] = []
    """(address, connection, waits), the one that has waited longest first."""
    for number in range(4000):
        at = random.randrange(len(here)) if here else 0
        kind = random.choice(("enter", "enter", "leave", "rest", "work"))
        if kind == "enter":
            owner = random.choice("aaaabbcdefgh")
            places.enter(owner, number)
            here.append((owner, number, True))
            gone = places.too_many(number)
            idle = Counter(who for who, _, waits in here if waits)
            over = sum(who == owner for who, _, _ in here) > places.share
            if not over and len(here) <= places.most:
                assert gone is None
                continue
            who = {owner} if over else {each for each, count in idle.items() if count == max(idle.values())}
            eldest = [next((one for x, one, waits in here if x == w and waits and one != number), number) for w in who]
            assert gone in eldest
            places.leave(gone)
            places.leave(gone)
            here = [each for each in here if each[1] != gone]
        elif here:
            owner, one, _ = here.pop(at)
            {"leave": places.leave, "rest": places.rest, "work": places.work}[kind](one)
            here += [] if kind == "leave" else [(owner, one, kind == "rest")]
        assert len(places) == len(here) and all(places.idle(one) == waits for _, one, waits in here)
    for _, one, _ in here:
        places.leave(one)
    assert not len(places) and not places._held and not places._idle and places._ranks == [{}]
