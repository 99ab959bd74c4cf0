"""Drivers that send the requests: the open loop, which waits for no answer, and the closed loop, a baseline."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence

from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import LoadClock

Job = tuple[int, bytes]
"""(which prompt, body)"""
Send = Callable[[bytes, TimedAnswer], Awaitable[None]]
TICK = 0.02


async def open_loop(
    offsets: Sequence[float], jobs: Sequence[Job], send: Send, now: LoadClock, out: list[TimedAnswer]
) -> None:
    """Start each request at its offset, whatever became of those before, and wait for all.

    Answers are appended to `out` as their requests start, so that a cancelled run can be reported.
    """
    tasks: set[asyncio.Task[None]] = set()
    try:
        for at, (prompt, body) in zip(offsets, jobs, strict=True):
            await asyncio.sleep(0)  # also when late: what came must be read
            while (left := at - now()) > 0:  # a timer may fire up to a millisecond early
                await asyncio.sleep(left)
            answer = TimedAnswer(at, prompt, fired=now())
            out.append(answer)
            task = asyncio.ensure_future(_run(send, body, answer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    finally:
        await end(tasks)


async def closed_loop(
    clients: int, jobs: Iterable[Job], send: Send, now: LoadClock, out: list[TimedAnswer], seconds: float | None = None
) -> None:
    """`clients` that each send their next request when the last has ended, and none after `seconds`. A slow server is
    asked less often: what it made others wait is not measured."""
    left = iter(jobs)

    async def client() -> None:
        for prompt, body in left:
            if seconds is not None and now() >= seconds:
                return
            at = now()
            out.append(TimedAnswer(at, prompt, fired=at))
            await send(body, out[-1])

    tasks = {asyncio.ensure_future(client()) for _ in range(clients)}
    try:
        await asyncio.gather(*tasks)
    finally:
        await end(tasks)


async def ticks(now: LoadClock, late: "array[float]") -> None:
    """Until cancelled, append the seconds by which this program's event loop was late for a timer."""
    while True:
        due = now() + TICK
        await asyncio.sleep(TICK)
        late.append(max(0.0, now() - due))


async def end(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel what runs and wait for it."""
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _run(send: Send, body: bytes, answer: TimedAnswer) -> None:
    await send(body, answer)
