"""The client against a server that answers what a test writes."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock, TooLargeError, Whole
from paceline.core.errors import InputError
from tests.bench.load.scripted import DONE, HEAD, HELLO, Asked, ask, chunk, event, framed, hello, says, scripted, whole


async def test_a_stream() -> None:
    async with scripted(hello) as server:
        answer = await ask(server, key="secret")
    assert answer.ok and answer.tokens == 4 and answer.chunks == 2
    assert answer.sent is not None and answer.first is not None and answer.ended is not None
    assert answer.intended <= answer.sent <= answer.first <= answer.ended
    (asked,) = server.asked
    assert (asked.path, asked.body) == ("/v1/chat/completions", b"{}")
    assert asked.headers["authorization"] == "Bearer secret" and asked.headers["host"] == f"127.0.0.1:{server.port}"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 1_000), max_size=12))
def test_bytes_may_come_in_any_pieces(cuts: list[int]) -> None:
    data = whole([chunk("é"), chunk("lo"), HELLO[2], DONE])

    async def dribble(asked: Asked, writer: asyncio.StreamWriter) -> None:
        places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
        for a, b in pairwise(places):
            writer.write(data[a:b])
            await writer.drain()
            await asyncio.sleep(0)

    async def run() -> TimedAnswer:
        async with scripted(dribble) as server:
            return await ask(server)

    answer = asyncio.run(run())
    assert answer.ok and answer.chunks == 2 and answer.tokens == 4


@pytest.mark.parametrize("end", [b"Content-Length: %d\r\n", b""])
async def test_a_body_without_chunks(end: bytes) -> None:
    """With a length, and up to the end of the connection."""
    body = b"".join(HELLO)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + (end % len(body) if end else end)
    async with scripted(says(head + b"\r\n" + body, close=not end)) as server:
        assert (await ask(server)).ok


async def test_connections_are_used_again() -> None:
    async with scripted(hello) as server:
        clock = LoadClock()
        client = Client(server.url + "/v1/", clock)
        for _ in range(3):
            answer = TimedAnswer(clock())
            await client.post("/completions", b"{}", answer, 20.0)
            assert answer.ok
        assert server.connections == 1 and {a.path for a in server.asked} == {"/v1/completions"}
        client.close()


async def test_a_connection_that_the_server_ends_is_not() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    body = b"".join(framed(e) for e in HELLO) + b"0\r\n\r\n"
    async with scripted(says(head + body, close=True)) as server:
        clock = LoadClock()
        client = Client(server.url, clock)
        for _ in range(2):
            answer = TimedAnswer(clock())
            await client.post("/completions", b"{}", answer, 20.0)
            assert answer.ok
        assert server.connections == 2


def plain(status: str, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


FULL = b'{"error": {"message": "The queue is full.", "type": "x", "param": null, "code": 429}}'


@pytest.mark.parametrize(
    ("response", "kind", "detail"),
    [
        (plain("429 Too Many Requests", FULL), "HTTP 429", "The queue is full."),
        (plain("502 Bad Gateway", b"<html>", "text/html"), "HTTP 502", "<html>"),
        (plain("307 Temporary Redirect", b""), "HTTP 307", ""),
        (plain("200 OK", b"{}"), "not a stream", "application/json"),
        (whole([chunk("a")]), "truncated", "without [DONE]"),
        (whole([event(b"{"), DONE]), "malformed event", "{"),
        (whole([event({"error": {"message": "died"}}), DONE]), "error event", "died"),
        (HEAD + framed(chunk("a")), "closed", "closed the connection"),
        (b"", "closed", "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "closed", "not HTTP"),
        (HEAD + b"zz\r\n", "closed", "not HTTP"),
    ],
)  # fmt: skip
async def test_failures_by_kind(response: bytes, kind: str, detail: str) -> None:
    async with scripted(says(response, close=True)) as server:
        answer = await ask(server)
    assert not answer.ok and answer.error == kind and detail in answer.detail and answer.ended is not None


async def test_nobody_listens() -> None:
    async with scripted(hello) as server:
        pass
    answer = await ask(server)
    assert answer.error == "connect" and answer.sent is None and answer.ended is not None


async def test_timeout_ends_the_connection_and_not_the_next_request() -> None:
    gone = asyncio.Event()

    async def stuck_once(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + framed(chunk("a")) if asked.number == 0 else whole(HELLO))
        while asked.number == 0:
            writer.write(b"1\r\n\n\r\n")
            try:
                await writer.drain()
            except ConnectionError:
                gone.set()
                raise
            await asyncio.sleep(0.005)

    async with scripted(stuck_once) as server:
        clock = LoadClock()
        client = Client(server.url, clock, limit=1)
        first, second = TimedAnswer(clock()), TimedAnswer(clock())
        await client.post("/completions", b"{}", first, 0.3)
        await asyncio.wait_for(gone.wait(), 20)
        await client.post("/completions", b"{}", second, 20.0)
        client.close()
    assert first.error == "timeout" and first.chunks == 1 and second.ok and server.connections == 2


async def test_cancelled() -> None:
    arrived = asyncio.Event()

    async def stuck(asked: Asked, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.sleep(60)

    async with scripted(stuck) as server:
        clock = LoadClock()
        client = Client(server.url, clock)
        answer = TimedAnswer(clock())
        task = asyncio.ensure_future(client.post("/completions", b"{}", answer, 20.0))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert answer.error == "cancelled" and answer.ended is not None


async def test_at_most_so_many_connections() -> None:
    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        await hello(asked, writer)

    async with scripted(slow) as server:
        clock = LoadClock()
        client = Client(server.url, clock, limit=3)
        answers = [TimedAnswer(clock()) for _ in range(12)]
        await asyncio.gather(*(client.post("/completions", b"{}", a, 20.0) for a in answers))
        client.close()
    assert all(a.ok for a in answers) and server.most_open == server.connections == 3


async def test_three_hundred_at_once() -> None:
    async def all_together(asked: Asked, writer: asyncio.StreamWriter) -> None:
        while len(server.asked) < 300:
            await asyncio.sleep(0.01)
        await hello(asked, writer)

    async with scripted(all_together) as server:
        clock = LoadClock()
        client = Client(server.url, clock)
        answers = [TimedAnswer(clock()) for _ in range(300)]
        await asyncio.gather(*(client.post("/completions", b"{}", a, 60.0) for a in answers))
        client.close()
    assert all(a.ok for a in answers) and server.most_open == 300


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:y", "http://x?y=1"])
async def test_bad_addresses(url: str) -> None:
    with pytest.raises(InputError, match="url is"):
        Client(url, LoadClock())


async def test_a_key_that_would_break_out_of_its_header() -> None:
    with pytest.raises(InputError, match="API key"):
        Client("http://x", LoadClock(), "a\r\nHost: y")


async def test_json() -> None:
    async with scripted(says(plain("200 OK", b'{"data": []}'))) as server:
        assert await Client(server.url, LoadClock()).json("/models", 20.0) == {"data": []}
        assert await Client(server.url, LoadClock()).json("/completions", 20.0, b"[1]") == {"data": []}
        assert [asked.body for asked in server.asked] == [b"", b"[1]"]
    with pytest.raises(InputError, match="No server answers"):
        await Client(server.url, LoadClock()).json("/models", 20.0)
    async with scripted(says(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n[]", close=True)) as server:
        assert await Client(server.url, LoadClock()).json("/models", 20.0) == [], (
            "a body up to the end of the connection"
        )
    async with scripted(says(plain("401 Unauthorized", b'{"error": "no key"}'))) as server:
        with pytest.raises(InputError, match=r"HTTP 401 \(no key\)"):
            await Client(server.url, LoadClock()).json("/models", 20.0)
    async with scripted(says(plain("200 OK", b"hello"))) as server:
        with pytest.raises(InputError, match="not JSON"):
            await Client(server.url, LoadClock()).json("/models", 20.0)


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 500),
        (b"HTTP/1.1 200 OK\r\na: ", b"b" * 3000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 1024),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"a: b\r\n" * 500),
    ],
    ids=["fields", "field", "chunks", "sized", "trailers"],
)
async def test_answers_without_an_end_are_ended(first: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.load.client.MOST_HEAD_BYTES", 10_000)
    monkeypatch.setattr("paceline.bench.load.client.MOST_ANSWER_BYTES", 10_000)

    async def flood(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(more)
            await writer.drain()

    async with scripted(flood) as server:
        client, sink = Client(server.url, LoadClock()), Whole()
        with pytest.raises(ConnectionError, match="more than 10000 bytes") as caught:
            await client.send("/models", sink, 60)
        assert len(sink.data) <= 10_000
        assert isinstance(caught.value, TooLargeError) == (b"x" * 1024 in more)
