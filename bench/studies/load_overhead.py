"""What the load generator itself costs per token: CPU time of this process, against a reader that only counts.

    python bench/studies/load_overhead.py --connections 100 --tokens 200 --gap-ms 20

A trivial server in another process streams chunks of the size of a chat completion's, each in a write of its own, at a
fixed pace, so that nobody waits for the server. Clients take turns; figures are medians over the rounds.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from statistics import median

import uvloop

from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock

CHUNK = {
    "id": "chatcmpl-a212468b6d98453e8f85dde9be00245b", "object": "chat.completion.chunk", "created": 1795300784,
    "model": "target", "usage": None,
    "choices": [{"index": 0, "delta": {"content": " the"}, "logprobs": None, "finish_reason": None}],
}  # fmt: skip
EVENT = f"data: {json.dumps(CHUNK, separators=(',', ':'))}\n\n".encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
Load = Callable[[str, int], Awaitable[int]]
"""(url, connections) -> tokens read"""


def serve(tokens: int, gap: float, tell: Connection) -> None:
    """The server: one paced stream for each request."""
    framed = f"{len(EVENT):x}\r\n".encode() + EVENT + b"\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for _ in range(tokens):
            await asyncio.sleep(gap)
            writer.write(framed)
        writer.write(END)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


async def counting(url: str, connections: int) -> int:
    """The least that a reader can do: count."""

    class Reader(asyncio.Protocol):
        def __init__(self) -> None:
            self.count, self.end = 0, asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            self.count += data.count(b"data: {")

        def connection_lost(self, exc: Exception | None) -> None:
            self.end.set_result(self.count)

    async def one() -> int:
        transport, reader = await asyncio.get_running_loop().create_connection(Reader, "127.0.0.1", port)
        transport.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n")
        return await reader.end

    port = int(url.rpartition(":")[2])
    return sum(await asyncio.gather(*(one() for _ in range(connections))))


async def generator(url: str, connections: int) -> int:
    """`paceline bench serve`'s client."""
    clock = LoadClock()
    client = Client(url, clock)
    answers = [TimedAnswer(0.0) for _ in range(connections)]
    await asyncio.gather(*(client.post("/chat/completions", b"{}", a, 600.0) for a in answers))
    assert all(a.ok for a in answers)
    return sum(a.chunks for a in answers)


async def openai(url: str, connections: int) -> int:
    """The official client, for comparison."""
    from openai import AsyncOpenAI

    async def one() -> int:
        message = {"role": "user", "content": "x"}
        stream = await client.chat.completions.create(model="m", messages=[message], stream=True)  # type: ignore[list-item]
        return len([chunk async for chunk in stream if chunk.choices])

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="x", timeout=600.0) as client:
        return sum(await asyncio.gather(*(one() for _ in range(connections))))


def cost(load: Load, url: str, connections: int) -> float:
    """Microseconds of this process's CPU per token."""
    began = time.process_time()
    tokens = uvloop.run(load(url, connections))  # type: ignore[arg-type]
    return (time.process_time() - began) / tokens * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ear, mouth = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=serve, args=(args.tokens, args.gap_ms / 1e3, mouth), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ear.recv()}"
    loads: list[Load] = [counting, generator, openai]
    found: dict[str, list[float]] = {load.__name__: [] for load in loads}
    for turn in range(args.rounds + 1):
        for load in loads:
            spent = cost(load, url, args.connections)
            if turn:  # the first warms up
                found[load.__name__].append(spent)
    base = median(found["counting"])
    for name, values in found.items():
        spread = f"{min(values):.1f}-{max(values):.1f}"
        print(f"{name:>10}: {median(values):6.1f} us of CPU a token ({spread}), {median(values) / base:.2f}x counting")
    server.terminate()


if __name__ == "__main__":
    main()
