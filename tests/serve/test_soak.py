"""Saturating mixed load over loopback: no error, every text that of its solo run, memory level.

Three minutes; PACELINE_SOAK_S=1200 for twenty. In float32 oneDNN, and torch's layer above it, keep a kernel for every
number of rows they have met, up to 1,024, which takes longer than that to fill: a bounded growth that would hide a
leak, so these caches are kept small.
"""

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest

from paceline import LLM, SamplingParams
from tests.serve.process import WAIT_S, spawned

SECONDS = float(os.environ.get("PACELINE_SOAK_S", "180"))
CLIENTS = 24
SMALL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
WARM_S = 10.0
"""Nothing is sampled before: allocators and caches fill."""
PROMPTS = ["Tom has 3 apples and buys 4 more.", "A train leaves at noon.", "There are 12 eggs in a box.", "Why?"]
SERVE = ["-m", "paceline", "serve", "--port", "0", "--dtype", "float32", "--blocks", "39", "--max-requests", "16"]


@dataclass(frozen=True)
class Wish:
    """One request: its body, and the texts and number of tokens of its solo run."""

    body: dict[str, Any]
    texts: list[str]
    tokens: int


def wishes(llm: LLM, rng: random.Random) -> list[Wish]:
    """Sixty different ones; each is asked for many times, by the next free client."""
    made = []
    for seed in range(60):
        sampling: dict[str, Any] = {
            "temperature": rng.choice([0.0, 0.7, 1.0]), "top_k": rng.choice([0, 20]), "top_p": rng.choice([1.0, 0.9]),
            "frequency_penalty": rng.choice([0.0, 0.4]), "max_tokens": rng.randrange(8, 90), "n": rng.choice([1, 1, 2]),
            "seed": seed, "ignore_eos": True, "stop": rng.choice([[], [".", "\n"]]),
        }  # fmt: skip
        prompt = rng.choice(PROMPTS)
        outputs = llm.generate(prompt, SamplingParams(**sampling), progress=False)[0].outputs
        speculation = {"drafter": rng.choice(["auto", "none", "ngram", "model", "suffix", "sequoia", "ngram+topk"])}
        body = {**sampling, "prompt": prompt, "speculation": speculation, "stream": rng.random() < 0.5}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        made.append(Wish(body, [o.text for o in outputs], sum(len(o.token_ids) for o in outputs)))
    return made


async def ask(client: httpx2.AsyncClient, wish: Wish) -> None:
    """Send a wish and compare what comes."""
    response = await client.post("/v1/completions", json=wish.body)
    assert response.status_code == 200, response.text
    if wish.body["stream"]:
        lines = [line for line in response.text.splitlines() if line]
        assert lines[-1] == "data: [DONE]"
        parts = [json.loads(line[6:]) for line in lines[:-1]]
    else:
        parts = [response.json()]
    texts = [""] * wish.body["n"]
    for part in parts:
        for choice in part["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == wish.texts, wish.body
    assert parts[-1]["usage"]["completion_tokens"] == wish.tokens, wish.body


async def load(url: str, made: list[Wish], until: float, seed: int) -> int:
    """One client: wish after wish until the time is up; how many."""
    rng, count = random.Random(seed), 0
    async with httpx2.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        while time.monotonic() < until:
            await ask(client, rng.choice(made))
            count += 1
    return count


async def watch(process: psutil.Process, until: float) -> list[tuple[float, float]]:
    """(time, resident bytes) twice a second."""
    samples = []
    await asyncio.sleep(WARM_S)
    while (now := time.monotonic()) < until:
        samples.append((now, float(process.memory_info().rss)))
        await asyncio.sleep(0.5)
    return samples


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 300)
async def test_soak(llm: LLM) -> None:
    made = wishes(llm, random.Random(7))
    with spawned(*SERVE, PACELINE_LOG_LEVEL="warning", **SMALL_CACHES) as (url, child):
        until = time.monotonic() + SECONDS
        clients = [load(url, made, until, seed) for seed in range(CLIENTS)]
        samples, *counts = await asyncio.gather(watch(psutil.Process(child.pid), until), *clients)
        stats = httpx2.get(f"{url}/stats").json()
    half = np.array(samples[len(samples) // 2 :])
    slope = float(np.polyfit(half[:, 0], half[:, 1], 1)[0])
    growth = slope * (half[-1, 0] - half[0, 0]) / half[:, 1].mean()
    print(f"\n{sum(counts)} requests in {SECONDS:.0f} s, {stats['preemptions']} pre-emptions, "
          f"{half[:, 1].mean() / 2**20:.0f} MiB, {growth:+.2%} over the last half")  # fmt: skip
    assert stats["drafter_errors"] == 0 and stats["preemptions"] > 0
    assert stats["running"] == stats["waiting"] == stats["kv"]["used"] == 0
    assert growth <= 0.01
