"""Can one key tell whether another sent a prompt? `python -m bench.attacks.tenants [--pairs 1000] [--shared-cache]`.

In each pair of requests key A sends a prompt of its own making, or does not, by a coin; then key B sends it and looks
at `cached_tokens`, at the drafted tokens and at the time to the first token. A classifier on each figure alone has an
area under its curve: 0.5 tells nothing, 1 tells everything. With --shared-cache keys share, and it is near 1.
"""

import argparse
import http.client
import json
import random
import statistics
import time
from collections.abc import Sequence
from itertools import groupby
from urllib.parse import urlsplit

from bench.attacks.process import started

KEY_A, KEY_B = "tenant-a-0123", "tenant-b-4567"
WORDS = ("red", "blue", "green", "stone", "river", "cloud", "seven", "eleven", "bread", "window", "garden", "letter")
PROMPT_WORDS = 150


def area(yes: Sequence[float], no: Sequence[float]) -> float:
    """Chance that a figure of `yes` is above one of `no`, ties half."""
    ranked = sorted([(value, True) for value in yes] + [(value, False) for value in no])
    above, below = 0.0, 0
    for _, group in groupby(ranked, key=lambda each: each[0]):
        same = [flag for _, flag in group]
        above += sum(same) * (below + same.count(False) / 2)
        below += same.count(False)
    return above / (len(yes) * len(no))


def asked(connection: http.client.HTTPConnection, prompt: str, key: str) -> tuple[float, int, int]:
    """(seconds to the first token, cached tokens, drafted tokens)"""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.readline()
    first = time.perf_counter() - began
    lines = [line for line in answer.read().split(b"\n\n") if b'"usage":{' in line]
    usage = json.loads(lines[-1].strip().removeprefix(b"data: "))["usage"]
    return first, usage["prompt_tokens_details"]["cached_tokens"], usage["speculation"]["drafted"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.attacks.tenants")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--drafter", default="suffix", help="one that learns from other texts shows most")
    parser.add_argument("--model", help="a checkpoint; default: the demo pair")
    parser.add_argument("--shared-cache", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    serve = ["serve", *([given.model] if given.model else []), "--port", "0", "--memory", "1G"]
    serve += ["--drafter", given.drafter, "--api-key", KEY_A, "--api-key", KEY_B]
    found: dict[bool, list[tuple[float, int, int]]] = {True: [], False: []}
    with started((*serve, *(["--shared-cache"] if given.shared_cache else []))) as (server,):
        parts = urlsplit(server.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=900)
        for _ in range(20):
            asked(connection, "warm up", KEY_B)
        for _ in range(given.pairs):
            prompt, other = (" ".join(draw.choices(WORDS, k=PROMPT_WORDS)) for _ in range(2))
            sent = draw.random() < 0.5
            asked(connection, prompt if sent else other, KEY_A)
            found[sent].append(asked(connection, prompt, KEY_B))
    print(f"{given.pairs} pairs, {len(found[True])} of which A sent; drafter {given.drafter}")
    for at, name in ((1, "cached_tokens"), (2, "drafted tokens"), (0, "time to first token")):
        yes, no = ([each[at] for each in found[sent]] for sent in (True, False))
        told = ""
        if at == 0:
            quarters = [[1000 * q for q in statistics.quantiles(each, n=4)] for each in (yes, no)]
            told = "; quartiles in ms: " + " and ".join("/".join(f"{q:.1f}" for q in each) for each in quarters)
        print(f"{name}: area {area(yes, no):.3f}{told}")


if __name__ == "__main__":
    main()
