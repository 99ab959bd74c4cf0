"""The two loops: one waits for nobody; what the other hides."""

import asyncio
from array import array

import pytest

from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock
from paceline.bench.load.drive import TICK, closed_loop, open_loop, ticks
from tests.bench.load.scripted import Asked, hello, scripted

STALL = 0.5
SLOW = 0.25
JOBS = [(i, b"{}") for i in range(20)]


async def stalls(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """One request holds the server up, the others take no time."""
    if asked.number == 0:
        await asyncio.sleep(STALL)
    await hello(asked, writer)


async def run(kind: str) -> list[TimedAnswer]:
    """20 requests over 0.2 s to a server that serves one at a time and stalls at the first."""
    answers: list[TimedAnswer] = []
    async with scripted(stalls) as server:
        clock = LoadClock()
        client = Client(server.url, clock, limit=1)

        async def send(body: bytes, answer: TimedAnswer) -> None:
            await client.post("/completions", body, answer, 20.0)

        if kind == "open":
            await open_loop([0.01 * i for i in range(20)], JOBS, send, clock, answers)
        else:
            await closed_loop(1, JOBS, send, clock, answers)
        client.close()
    assert len(answers) == 20 and all(a.ok for a in answers)
    return answers


def slow(seconds: list[float]) -> int:
    return sum(s > SLOW for s in seconds)


async def test_a_stall_is_seen_from_the_intended_arrival_alone() -> None:
    """Coordinated omission: everyone who arrived during the stall waited for it, but only one was sent before."""
    opened, closed = await run("open"), await run("closed")
    assert slow([a.e2e or 0.0 for a in opened]) >= 19
    assert slow([(a.e2e or 0.0) - a.held for a in opened]) <= 4, "latencies from sending hide it"
    assert slow([a.e2e or 0.0 for a in closed]) <= 4, "a closed loop hides it"


async def test_the_open_loop_waits_for_nobody_and_is_never_early() -> None:
    release = asyncio.Event()
    answers: list[TimedAnswer] = []

    async def send(body: bytes, answer: TimedAnswer) -> None:
        if len(answers) == len(JOBS):
            release.set()
        await release.wait()

    offsets = [0.0, 0.0, *(0.005 * i for i in range(len(JOBS) - 2))]
    await asyncio.wait_for(open_loop(offsets, JOBS, send, LoadClock(), answers), 20)
    assert [a.intended for a in answers] == offsets and [a.prompt for a in answers] == list(range(20))
    assert all(a.fired >= a.intended for a in answers)


async def test_the_closed_loop_keeps_its_clients() -> None:
    now, most = 0, 0

    async def send(body: bytes, answer: TimedAnswer) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    answers: list[TimedAnswer] = []
    await closed_loop(3, JOBS, send, LoadClock(), answers)
    assert most == 3 and len(answers) == 20 and all(a.fired == a.intended for a in answers)


async def test_the_closed_loop_ends_by_the_clock() -> None:
    answers: list[TimedAnswer] = []

    async def send(body: bytes, answer: TimedAnswer) -> None:
        await asyncio.sleep(0.02)

    await closed_loop(2, iter(lambda: (0, b""), None), send, LoadClock(), answers, seconds=0.1)
    assert 2 <= len(answers) <= 12


@pytest.mark.parametrize("kind", ["open", "closed"])
async def test_a_cancelled_loop_ends_its_requests(kind: str) -> None:
    started, ended = 0, 0

    async def send(body: bytes, answer: TimedAnswer) -> None:
        nonlocal started, ended
        started += 1
        try:
            await asyncio.sleep(60)
        finally:
            ended += 1

    answers: list[TimedAnswer] = []
    loop = (open_loop([0.0] * 5 + [1e6] * 15, JOBS, send, LoadClock(), answers) if kind == "open"
            else closed_loop(5, JOBS, send, LoadClock(), answers))  # fmt: skip
    task = asyncio.ensure_future(loop)
    while started < 5:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert started == ended == len(answers) == 5


async def test_ticks_see_a_blocked_event_loop() -> None:
    clock, late = LoadClock(), array("d")
    task = asyncio.ensure_future(ticks(clock, late))
    await asyncio.sleep(0)
    end = clock() + 10 * TICK
    while clock() < end:
        pass  # nothing else can run
    while not late:
        await asyncio.sleep(0.001)
    task.cancel()
    assert max(late) > 8 * TICK
