"""What one client can do to the others: each hostile request of a list against a server of the demo pair, while twenty
others ask for a little. Prints the longest that one of the others waited, what memory it took, and what was answered.

    python bench/studies/hostile.py [NAME ...] [--json FILE]

The waiting times are worth something on an idle machine only. Exit code 1 if the server died, answered 500, failed one
of the others, or kept more than 100 MB.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import psutil

SERVE = [
    "-m",
    "paceline",
    "serve",
    "--port",
    "0",
    "--dtype",
    "float32",
    "--blocks",
    "2000",
    "--served-model-name",
    "demo",
]
OTHERS, EVERY_S, REST_S, WARM = 20, 0.5, 1.0, 5
KEPT = 100 * 2**20
FILL = 40
"""Prompts of 50 blocks each: all of the cache."""
MEGA = 4 * 2**20
C, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
Request = tuple[str, bytes]


def body(path: str, **fields: Any) -> Request:
    return path, json.dumps(fields, separators=(",", ":")).encode()


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def leafy(bad: int, count: int = 900) -> dict[str, Any]:
    """A schema of some 63 KB whose leaf `bad` cannot be enforced."""
    leaf = {"type": "string", "description": "a field of the form"}
    fields: dict[str, Any] = {f"field_{i}": leaf for i in range(count)}
    return {"type": "object", "properties": {**fields, f"field_{bad}": {"type": "string", "pattern": "(?=x)"}}}


def schema_of(schema: Any) -> Request:
    wish = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return body(CHAT, messages=USER, response_format=wish, max_tokens=4)


ATTACKS: dict[str, Callable[[], list[Request]]] = {
    "B1 a wrong item after two million": lambda: [body(C, prompt=[1] * 2_000_000 + ["x"])] * 4,
    "B1 unknown names": lambda: [body(C, prompt="a", **{f"k{i}": 1 for i in range(250_000)})] * 4,
    "B1 messages by the hundred thousand": lambda: [body(CHAT, messages=USER * 100_000)] * 4,
    "B1 biases of no number": lambda: [body(C, prompt="a", logit_bias={str(i): "x" for i in range(250_000)})] * 4,
    "B2 a bad word of 4 MB": lambda: [body(C, prompt="a", bad_words=["he " * (MEGA // 3 - 100)], n=128)] * 4,
    "B2 many bad words": lambda: [body(C, prompt="a", bad_words=["a " * 30] * 256, n=4, max_tokens=32)] * 4,
    "B2 stop strings of 4 MB": lambda: [body(C, prompt="a", stop=["a" * (MEGA - 200)], max_tokens=64)] * 4,
    "B2 long stop strings": lambda: [body(C, prompt="a", stop=["a" * 500] * 16, n=4, max_tokens=64)] * 4,
    "B2 a million allowed tokens": lambda: [body(C, prompt="a", allowed_tokens=[5] * 1_000_000, n=128)] * 4,
    "B2 echo with log-probabilities": lambda: (
        [body(C, prompt=[7] * 1000, echo=True, logprobs=20, n=n, max_tokens=8) for n in (128, 2)] * 2
    ),
    "B3 regexes that grow": lambda: [
        body(C, prompt="a", grammar={"kind": "regex", "text": "(a{1000}){1000}e" + "f" * i}, max_tokens=4)
        for i in range(64)
    ],
    "B3 alternatives by the thousand": lambda: [
        body(C, prompt="a", grammar={"kind": "lark", "text": "start: " + " | ".join(f'"{i}x{j}"' for i in range(9000))})
        for j in range(16)
    ],
    "B5 ten prompts of 4 MB": lambda: [body(C, prompt="he said " * (MEGA // 8 - 100))] * 10,
    "B5 many long prompts in one": lambda: [body(C, prompt=["he said " * 800] * 120)] * 10,
    "B5 conversations of 4 MB": lambda: (
        [body(CHAT, messages=[{"role": "user", "content": "he said " * (MEGA // 8 - 100)}])] * 10
    ),
    "B5 tokenize": lambda: [body("/tokenize", prompt="\u6771\u4eac" * (MEGA // 14))] * 10,
    "B6 schemas with one bad leaf": lambda: [schema_of(leafy(i)) for i in range(0, 900, 40)],
    "B8 deep schemas": lambda: [schema_of(nested(200)), schema_of(nested(60)), schema_of({"a": [[[]]] * 9})] * 4,
    "B9 names of drafters": lambda: [
        body(C, prompt="a", max_tokens=2, speculation={"drafter": f"{'+'.join(names)}|none"})
        for names in [("ngram", "suffix", f"x{i}") for i in range(50)] + [("ngram", "suffix")] * 50
    ],
}


class Run:
    """One attack beside the light load."""

    def __init__(self, url: str, child: psutil.Process) -> None:
        self.url, self.child = url, child
        self.waits: list[float] = []
        self.failures: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()
        self.on = True

    async def other(self, client: httpx2.AsyncClient, which: int) -> None:
        await asyncio.sleep(which * EVERY_S / OTHERS)
        while self.on:
            began = time.monotonic()
            wish = {"prompt": f"Tom has {which} apples.", "max_tokens": 4, "temperature": 0}
            try:
                response = await client.post(C, json=wish)
                if response.status_code != 200:
                    self.failures[str(response.status_code)] += 1
            except httpx2.HTTPError as error:
                self.failures[type(error).__name__] += 1
            self.waits.append(time.monotonic() - began)
            await asyncio.sleep(EVERY_S)

    async def hostile(self, client: httpx2.AsyncClient, request: Request) -> None:
        path, content = request
        try:
            response = await client.post(path, content=content, headers={"Content-Type": "application/json"})
            self.answers[response.status_code] += 1
        except httpx2.HTTPError:
            self.answers[0] += 1

    async def attack(self, requests: list[Request]) -> dict[str, Any]:
        async with (
            httpx2.AsyncClient(base_url=self.url, timeout=30) as client,
            httpx2.AsyncClient(base_url=self.url, timeout=30, limits=httpx2.Limits(max_connections=64)) as mean,
        ):
            others = [asyncio.create_task(self.other(client, i)) for i in range(OTHERS)]
            while (await client.get("/ready")).status_code != 200 or len(self.waits) < WARM * OTHERS:
                await asyncio.sleep(0.1)
            ordinary = {"prompt": "a", "max_tokens": 2, "grammar": {"kind": "regex", "text": "[a-z]+"}}
            (await client.post(C, json=ordinary)).raise_for_status()  # what the first grammar loads is nobody's harm
            for i in range(FILL):  # nor is the cache, whose memory is taken as its blocks are first used
                text = {"prompt": [i + 5] * 800, "max_tokens": 1}
                (await client.post(C, json=text)).raise_for_status()
            self.waits = []
            await asyncio.sleep(4 * REST_S)
            quiet, self.waits = max(self.waits, default=0.0), []
            before = self.child.memory_info().rss
            watch = asyncio.create_task(self.peak())
            await asyncio.gather(*(self.hostile(mean, request) for request in requests))
            await asyncio.sleep(REST_S)
            self.on = False
            await asyncio.gather(*others)
            top = await watch
            health = (await client.get("/health")).status_code
        await asyncio.sleep(REST_S)
        after = self.child.memory_info().rss
        return {
            "quiet_s": round(quiet, 3), "longest_s": round(max(self.waits, default=0.0), 3),
            "peak_mb": (top - before) >> 20, "kept_mb": (after - before) >> 20,
            "answers": dict(self.answers), "failures": dict(self.failures), "health": health,
        }  # fmt: skip

    async def peak(self) -> int:
        top = 0
        while self.on:
            top = max(top, self.child.memory_info().rss)
            await asyncio.sleep(0.02)
        return top


def bad(row: dict[str, Any]) -> bool:
    return bool(row["failures"]) or row["health"] != 200 or 500 in row["answers"] or row["kept_mb"] > KEPT >> 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names, as B2; default: all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, make in ATTACKS.items():
        if args.names and not any(name.startswith(each) for each in args.names):
            continue
        child = subprocess.Popen(
            [sys.executable, *SERVE], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PACELINE_LOG_LEVEL": "error"},
        )  # fmt: skip
        try:
            assert child.stdout is not None
            found = re.search(r"at (\S+)/v1", child.stdout.readline())
            assert found, "the server did not start"
            rows[name] = asyncio.run(Run(found[1], psutil.Process(child.pid)).attack(make()))
        finally:
            child.kill()
            child.wait()
        print(f"{name:36} {'BAD ' if bad(rows[name]) else ''}{rows[name]}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(any(map(bad, rows.values())))


if __name__ == "__main__":
    sys.exit(main())
