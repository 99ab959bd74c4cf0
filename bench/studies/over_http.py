"""What HTTP costs beside the same engine offline: one request at a time, the same prompts, in turns.

    python bench/studies/over_http.py --prompts gsm8k_test.jsonl --num-prompts 20 --repeat 5 [--model M --draft D ...]

A `paceline serve` of the same options runs in a process of its own; each prompt is answered offline, over HTTP in one
piece, and over HTTP as a stream, and who is first rotates. All three must give the same text. Printed are

(1) tokens/s over HTTP / tokens/s offline: the median over the repeats, with the range;
(2) milliseconds a token that streaming adds, to offline and to HTTP in one piece: medians over prompts and repeats.

Run it on an idle machine: server, client and offline engine share its cores, though only one of them works at a time.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import orjson

from paceline import LLM, SamplingParams
from paceline.bench.busy import CpuWatch
from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.client import Client, LoadClock
from paceline.bench.prompts import has_template, read_prompts
from paceline.engine.llm import Prompt

TIMEOUT = 600.0
WAYS = ("offline", "http", "stream")


class Taken(NamedTuple):
    seconds: float
    tokens: int
    text: str


class Listening(TimedAnswer):
    """An answer that also keeps its text."""

    __slots__ = ("text",)

    def event(self, data: bytes, now: float) -> None:
        super().event(data, now)
        if data.startswith(b"{"):
            self.text = getattr(self, "text", "") + "".join(words(c) for c in orjson.loads(data).get("choices", ()))


def words(choice: dict[str, Any]) -> str:
    """The text of a choice, streamed or whole, of either end point."""
    where = choice.get("delta") or choice.get("message") or choice
    return where.get("content") or where.get("text") or ""


class Study:
    """Study that runs one prompt in three ways."""

    def __init__(self, args: argparse.Namespace, url: str) -> None:
        self.args = args
        self.llm = LLM(**engine(args), prefix_cache=False)
        self.chat = has_template(self.llm.text)
        self.path = "/chat/completions" if self.chat else "/completions"
        self.clock = LoadClock()
        self.client = Client(url, self.clock)
        self.runner = asyncio.Runner()
        self.name = self.runner.run(self.client.json("/models", TIMEOUT))["data"][0]["id"]

    def offline(self, prompt: str, seed: int) -> Taken:
        params = SamplingParams(temperature=self.args.temperature, max_tokens=self.args.max_tokens, seed=seed)
        began = time.perf_counter()
        own: Prompt = self.llm.text.chat([{"role": "user", "content": prompt}]) if self.chat else prompt
        (output,) = self.llm.generate(own, params, progress=False)
        return Taken(time.perf_counter() - began, len(output.token_ids), output.text)

    def http(self, prompt: str, seed: int) -> Taken:
        began = time.perf_counter()
        answer = self.runner.run(self.client.json(self.path, TIMEOUT, self.body(prompt, seed)))
        spent = time.perf_counter() - began
        return Taken(spent, answer["usage"]["completion_tokens"], words(answer["choices"][0]))

    def stream(self, prompt: str, seed: int) -> Taken:
        body = self.body(prompt, seed, stream=True, stream_options={"include_usage": True})
        answer = Listening(self.clock())
        self.runner.run(self.client.post(self.path, body, answer, TIMEOUT))
        if not answer.ok or answer.e2e is None:
            raise SystemExit(f"over_http: {answer.error}: {answer.detail}")
        return Taken(answer.e2e, answer.tokens, getattr(answer, "text", ""))

    def body(self, prompt: str, seed: int, **more: Any) -> bytes:
        own = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        sampling = {"temperature": self.args.temperature, "max_tokens": self.args.max_tokens, "seed": seed}
        return orjson.dumps({"model": self.name, **own, **sampling, **more})

    def run(self, prompts: list[str]) -> list[list[dict[str, Taken]]]:
        """[repeat][prompt][way]. Ends where two ways give different texts."""
        for way in WAYS:
            self.answer(way, prompts[0], 0)
        found: list[list[dict[str, Taken]]] = []
        for repeat in range(self.args.repeat):
            found.append([])
            for seed, prompt in enumerate(prompts):
                turn = (repeat + seed) % len(WAYS)
                taken = {way: self.answer(way, prompt, seed) for way in (*WAYS[turn:], *WAYS[:turn])}
                if len({(it.tokens, it.text) for it in taken.values()}) != 1:
                    raise SystemExit(f"over_http: prompt {seed + 1} has different texts: {taken}")
                found[-1].append(taken)
        return found

    def answer(self, way: str, prompt: str, seed: int) -> Taken:
        ways: dict[str, Callable[[str, int], Taken]] = {
            "offline": self.offline,
            "http": self.http,
            "stream": self.stream,
        }
        return ways[way](prompt, seed)


def report(found: list[list[dict[str, Taken]]]) -> dict[str, Any]:
    """The figures, printed and returned."""

    def speed(rows: list[dict[str, Taken]], way: str) -> float:
        return sum(row[way].tokens for row in rows) / sum(row[way].seconds for row in rows)

    def added(way: str, base: str) -> list[float]:
        return [1e3 * (row[way].seconds - row[base].seconds) / row[way].tokens for rows in found for row in rows]

    out: dict[str, Any] = {}
    for way in WAYS:
        ratios = [speed(rows, way) / speed(rows, "offline") for rows in found]
        own = {"tokens_per_second": median(speed(rows, way) for rows in found), "ratio": median(ratios)}
        out[way] = {**own, "ratio_min": min(ratios), "ratio_max": max(ratios)}
        spread = f"{min(ratios):.3f}-{max(ratios):.3f}"
        print(f"{way:>8}: {own['tokens_per_second']:8.1f} tokens/s, {own['ratio']:.3f}x offline ({spread})")
    for base in ("offline", "http"):
        extra = added("stream", base)
        out[f"stream_over_{base}_ms_per_token"] = median(extra)
        print(f"streaming adds {median(extra):+.3f} ms a token to {base} (median of {len(extra)})")
    return out


def engine(args: argparse.Namespace) -> dict[str, Any]:
    names = ("model", "draft", "drafter", "dtype", "quantize", "threads")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def serve(args: argparse.Namespace) -> tuple["subprocess.Popen[str]", str]:
    """A server of the same engine, and its address once it is ready."""
    flags = [word for name, value in engine(args).items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--no-prefix-cache", "--log-level", "error"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if (at := line.find("http://")) >= 0:
            return process, line[at:].split()[0].rstrip(";")
    raise SystemExit(f"over_http: the server ended with {process.wait()}")


def ready(url: str) -> None:
    """Wait until the warm-up is over."""
    import urllib.error
    import urllib.request

    while True:
        try:
            urllib.request.urlopen(url.removesuffix("/v1") + "/ready", timeout=10).close()
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "draft", "drafter", "dtype", "quantize"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    busy = CpuWatch().before()  # not during: the server is another process
    process, url = serve(args)
    try:
        ready(url)
        study = Study(args, url)
        found = report(study.run(read_prompts(args.prompts, args.num_prompts)))
    finally:
        process.terminate()
        process.wait()
    if busy:
        print(f"over_http: warning: {busy}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), **found}, indent=2, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
