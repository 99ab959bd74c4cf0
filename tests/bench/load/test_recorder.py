"""A recording of live traffic, through sockets."""

import asyncio
import json
from io import BytesIO
from pathlib import Path

import pytest

from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock
from paceline.bench.load.recorder import LoadRecorder, Tap, address, record
from paceline.bench.load.workload import read_recording
from paceline.core.errors import InputError
from tests.bench.load.scripted import HEAD, Asked, chunk, framed, hello, scripted


async def test_completions_are_recorded_and_everything_passes(tmp_path: Path) -> None:
    out = BytesIO()
    async with scripted(hello) as server:
        recorder = LoadRecorder(("127.0.0.1", server.port), out)
        listening = await recorder.listen("127.0.0.1", 0)
        clock = LoadClock()
        client = Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", clock, "secret")
        answers = [TimedAnswer(clock()) for _ in range(3)]
        bodies = [
            b'{"messages": [], "stream": true, "model": "m", "max_tokens": 5}',
            b'{"prompt": "x"}',
            b'{"input": 1}',
        ]
        for path, body, answer in zip(("/chat/completions", "/completions", "/embeddings"), bodies, answers):
            await asyncio.sleep(0.02)
            await client.post(path, body, answer, 20.0)
        client.close()
        listening.close()
    assert all(a.ok for a in answers) and [a.body for a in server.asked] == bodies
    assert server.asked[0].headers["authorization"] == "Bearer secret" and b"secret" not in out.getvalue()
    assert recorder.count == 2
    (tmp_path / "r.jsonl").write_bytes(out.getvalue())
    first, second = read_recording(tmp_path / "r.jsonl")
    assert (first.at, first.body) == (0.0, {"messages": [], "max_tokens": 5}) and second.body == {"prompt": "x"}
    assert 0.02 <= second.at == pytest.approx((answers[1].sent or 0.0) - (answers[0].sent or 0.0), abs=0.5)


async def test_a_client_that_goes_ends_the_connection_behind() -> None:
    gone = asyncio.Event()

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        try:
            while True:
                writer.write(framed(chunk("a")))
                await writer.drain()
                await asyncio.sleep(0.005)
        except ConnectionError:
            gone.set()
            raise

    async with scripted(endless) as server:
        listening = await LoadRecorder(("127.0.0.1", server.port), BytesIO()).listen("127.0.0.1", 0)
        clock = LoadClock()
        client = Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", clock)
        await client.post("/completions", b"{}", TimedAnswer(0.0), 0.2)
        await asyncio.wait_for(gone.wait(), 20)
        listening.close()


async def test_nobody_behind() -> None:
    async with scripted(hello) as server:
        pass
    listening = await LoadRecorder(("127.0.0.1", server.port), BytesIO()).listen("127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", LoadClock())
    answer = TimedAnswer(0.0)
    await client.post("/completions", b"{}", answer, 20.0)
    assert answer.error == "closed"
    listening.close()


def test_a_tap_stands_anything() -> None:
    found: list[bytes] = []
    request = b"POST /v1/completions?x=1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    tap = Tap(lambda at, body: found.append(body))
    for i in range(len(request)):
        tap.feed(request[i : i + 1])
    tap.feed(request + request)
    assert found == [b"{}"] * 3
    tap.feed(b"\x16\x03\x01 this is TLS")
    tap.feed(request)
    assert len(found) == 3


def test_bad_wishes(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        record("http://x", tmp_path / "there", "127.0.0.1", 0, lambda port: None)
    for url in ("https://x", "", "http://", "http://x:y", "http://[x"):
        with pytest.raises(InputError, match="plain http"):
            record(url, tmp_path / "new", "127.0.0.1", 0, lambda port: None)
    assert not (tmp_path / "new").exists() and address("x:81") == ("x", 81) and address("http://x") == ("x", 80)


def test_what_no_server_would_take_is_not_kept() -> None:
    out = BytesIO()
    recorder = LoadRecorder(("x", 1), out)
    for body in (b"{", b"[]", json.dumps({"prompt": "é"}).encode()):
        recorder.keep(5.0, body)
    assert recorder.count == 1 and out.getvalue().decode() == '{"at":0.0,"prompt":"é"}\n'
