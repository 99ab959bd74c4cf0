"""Failover over HTTP: streams of the openai client over several engines that are killed at random moments.

    python bench/studies/failover.py MODEL [--engines 3] [--streams 200] [--kills 6] [--seed 0] [--dtype bfloat16]

A `paceline serve --cluster` runs in a process of its own. All streams run twice there: undisturbed, then while engines
get `kill -9`. Texts, reasons, counts and the tokens of those that ask for log-probabilities are compared. Printed are
the streams that differ, the samples that the killed engines had, and by length of text the longest time between two
chunks of a stream: undisturbed, disturbed, and disturbed where a kill lies between these two chunks.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from openai import AsyncOpenAI

READY_S = 600.0
LENGTHS = (32, 96, 256, 768)
SCHEMA = {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 200}, "count": {"type": "integer"}},
    "required": ["name", "count"], "additionalProperties": False,
}  # fmt: skip
SUBJECTS = ("a baker", "the sea", "two brothers", "a long train", "the number seven", "rain", "an old clock", "Tom")


@dataclass(slots=True)
class Heard:
    """What came of one stream."""

    texts: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[str]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    counted: int = 0
    gap: float = 0.0
    """Longest time between two chunks."""
    since: float = 0.0
    """When that began."""
    first: float = 0.0
    """Seconds to the first chunk."""
    error: str = ""

    def what(self) -> tuple[Any, ...]:
        """All but times."""
        return self.texts, self.tokens, self.reasons, self.counted, self.error


def asked(number: int, seed: int) -> dict[str, Any]:
    """A request. By its number: greedy, at T = 0.8, a JSON schema, a regular expression, several samples with
    log-probabilities, or penalties and a stop string."""
    rng = random.Random(f"{seed} {number}")
    extra: dict[str, Any] = {"ignore_eos": True}
    call: dict[str, Any] = {
        "prompt": f"Question {number}: tell me of {rng.choice(SUBJECTS)} and {rng.choice(SUBJECTS)}.\n",
        "max_tokens": rng.choice(LENGTHS), "temperature": 0.8, "seed": number, "extra_body": extra,
    }  # fmt: skip
    match number % 6:
        case 0:
            call["temperature"] = 0
        case 2:
            extra["grammar"] = {"kind": "json_schema", "text": json.dumps(SCHEMA)}
            extra["ignore_eos"] = False
        case 3:
            extra["grammar"] = {"kind": "regex", "text": r"([A-Z][a-z]+( [a-z]+){3,12}\. ){4,40}"}
            extra["ignore_eos"] = False
        case 4:
            call |= {"n": 2, "logprobs": 1, "max_tokens": min(256, call["max_tokens"])}
        case 5:
            call |= {"presence_penalty": 0.4, "frequency_penalty": 0.2, "stop": ["seven times"]}
    return call


async def listen(client: AsyncOpenAI, model: str, call: dict[str, Any], wait: float) -> Heard:
    """Send it and follow the stream."""
    await asyncio.sleep(wait)
    heard, last, began = Heard(), dict[int, float](), perf_counter()
    try:
        stream = await client.completions.create(
            model=model, stream=True, stream_options={"include_usage": True}, **call
        )
        async for event in stream:
            now = perf_counter()
            heard.first = heard.first or now - began
            if event.usage is not None:
                heard.counted = event.usage.completion_tokens
            for choice in event.choices:
                place = choice.index
                if now - last.get(place, now) > heard.gap:
                    heard.gap, heard.since = now - last[place], last[place]
                last[place] = now
                heard.texts[place] = heard.texts.get(place, "") + choice.text
                if choice.logprobs is not None:
                    heard.tokens.setdefault(place, []).extend(choice.logprobs.tokens or [])
                if choice.finish_reason is not None:
                    heard.reasons[place] = choice.finish_reason
    except Exception as error:
        cause = "" if error.__cause__ is None else f" ({error.__cause__!r})"
        heard.error = f"{type(error).__name__}: {error}{cause}, {perf_counter() - began:.1f} s after it was sent"
    return heard


def cluster(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/cluster", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


async def all_streams(url: str, streams: int, seed: int, spread: float) -> list[Heard]:
    """Begun over `spread` seconds."""
    rng = random.Random(seed)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=3600) as client:
        model = (await client.models.list()).data[0].id
        return await asyncio.gather(
            *(listen(client, model, asked(n, seed), rng.uniform(0, spread)) for n in range(streams))
        )


async def alive(url: str) -> list[dict[str, Any]]:
    """The engines, without those of whose death the front has not heard yet."""
    now = (await asyncio.to_thread(cluster, url))["engines"]
    return [each for each in now if Path(f"/proc/{each['process']}").exists()]


async def killing(url: str, kills: int, during: float, seed: int) -> list[tuple[float, str, int]]:
    """`kill -9` at random moments, of an engine that has samples where there is one: (moment, engine, samples)."""
    rng, killed = random.Random(seed + 1), list[tuple[float, str, int]]()
    moments = sorted(rng.uniform(0.1, 0.9) * during for _ in range(kills))
    began = perf_counter()
    for moment in moments:
        await asyncio.sleep(max(0.0, moment - (perf_counter() - began)))
        while len(now := await alive(url)) < 2:
            await asyncio.sleep(0.5)
        victim = rng.choice([each for each in now if each["samples"]] or now)
        killed.append((perf_counter(), victim["name"], victim["samples"]))
        os.kill(victim["process"], signal.SIGKILL)
        await asyncio.sleep(0.5)
    return killed


@contextmanager
def serving(options: list[str], streams: int) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "paceline", "serve", *options, "--cluster", "--port", str(port)]
    limits = ["--queue-limit", str(4 * streams), "--request-timeout", "3600", "--log-level", "error"]
    process = subprocess.Popen([*command, *limits])
    url, until = f"http://127.0.0.1:{port}", perf_counter() + READY_S
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=30)
                break
            except OSError:
                if process.poll() is not None or perf_counter() > until:
                    raise SystemExit("The cluster did not start.") from None
                sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def table(calm: list[Heard], rough: list[Heard], moments: list[float]) -> None:
    print("\nlongest time between two chunks of a stream, in seconds: median (worst) of how many")
    print(f"{'tokens':>14} {'undisturbed':>22} {'disturbed':>22} {'over a kill':>22}")
    edges = (0, 64, 128, 320, 4096)
    for least, most in pairwise(edges):
        here = [n for n in range(len(calm)) if least < calm[n].counted / len(calm[n].texts or [0]) <= most]
        parts = (
            [calm[n].gap for n in here], [rough[n].gap for n in here],
            [h.gap for n in here if any((h := rough[n]).since <= at <= h.since + h.gap for at in moments)],
        )  # fmt: skip
        cells = [f"{median(p):.2f} ({max(p):.2f}) of {len(p)}" if p else "-" for p in parts]
        print(f"{f'{least + 1} to {most}':>14} " + " ".join(f"{cell:>22}" for cell in cells))


async def study(args: argparse.Namespace, url: str) -> int:
    began = perf_counter()
    calm = await all_streams(url, args.streams, args.seed, args.spread)
    took = perf_counter() - began
    if errors := [heard.error for heard in calm if heard.error]:
        print(f"{len(errors)} undisturbed streams failed: {errors[0]}")
    print(f"undisturbed: {args.streams} streams, {sum(h.counted for h in calm)} tokens in {took:.1f} s")
    began = perf_counter()
    before = cluster(url)
    streams = asyncio.create_task(all_streams(url, args.streams, args.seed, args.spread))
    killer = asyncio.create_task(killing(url, args.kills, took, args.seed))
    rough = await streams
    took = perf_counter() - began
    killed = await killer
    ended, after = perf_counter(), cluster(url)
    while len(cluster(url)["engines"]) < args.engines and perf_counter() < ended + READY_S:
        await asyncio.sleep(0.5)
    different = [n for n in range(args.streams) if rough[n].what() != calm[n].what()]
    print(f"disturbed:   {args.streams} streams, {sum(h.counted for h in rough)} tokens in {took:.1f} s")
    told = (f"{name} with {samples} samples at {at - began:.1f} s" for at, name, samples in killed)
    print(f"killed {len(killed)} engines that had {sum(n for _, _, n in killed)} samples: {'; '.join(told)}")
    print(f"all engines were there again {max(0.0, perf_counter() - ended):.1f} s after the last stream")
    print(f"engines lost {after['lost'] - before['lost']}, requests moved {after['moved'] - before['moved']}")
    print(f"streams with another text, reason, count or token: {len(different)} of {args.streams}")
    for n in different[:5]:
        print(f"  {n} (kind {n % 6}): {calm[n].error} / {rough[n].error or str(rough[n].what())[:300]}")
    table(calm, rough, [at for at, _, _ in killed])
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--spread", type=float, default=20.0, help="seconds over which streams begin")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    options = [*([args.model] if args.model else []), "--engines", str(args.engines), "--dtype", args.dtype]
    with serving(options, args.streams) as url:
        return asyncio.run(study(args, url))


if __name__ == "__main__":
    raise SystemExit(main())
