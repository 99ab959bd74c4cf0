"""Policies above tokens over HTTP, all of them mixed, from clients of which most leave early: nothing is left over.

Twenty seconds; PACELINE_SOAK_S=600 for ten minutes. The openai client leaves in every way that it can: it closes a
stream, or is cancelled while it waits for a first byte, for a whole answer, or between two chunks.
"""

import asyncio
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from paceline import LLM, AsyncLLM
from paceline.draft.correctness import Correctness
from paceline.engine.pair import DEMO
from paceline.model.checkpoint import read_config
from paceline.reason.ensemble import load
from paceline.retrieve import Datastore, build
from paceline.serve.above import runner_of
from paceline.serve.retrieval import THREADS
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.retrieve.scenes import folder
from tests.serve.conftest import running

pytest.importorskip("bm25s", reason="bm25s is not installed: the rag extra")
SECONDS = float(os.environ.get("PACELINE_SOAK_S", "20"))
CLIENTS = 6
ASK = ("Tom has 3 apples and buys 4 more. How many?", "What can one do with a bicycle?")
STEPS = {"policy": "steps", "separator": "apples"}
PARALLEL = {"policy": "parallel", "branch_tokens": 20, "fan_out": 3}
NAMES = ("steps", "mentor", "parallel", "retrieval", "neighbours", "judge", "plain")
POOLS = {"paceline-retrieval": THREADS, "AnyIO worker thread": 40}
"""Maximum number of threads that are created when first needed."""
POLICIES: list[dict[str, Any]] = [
    {"reasoning": {**STEPS, "tau": 4.5}},
    {"reasoning": {**STEPS, "tau": 9.5, "speculate": True}},
    {"reasoning": {"policy": "mentor", "always": True, "separator": "apples", "peek": 5}},
    {"reasoning": PARALLEL},
    {"reasoning": {**PARALLEL, "deadline_s": 0.3}},
    {"reasoning": {**PARALLEL, "early": True}},
    {"retrieval": {"every": 3, "stride": 3, "prefetch": 2, "query_tokens": 8}},
    {"retrieval": {"every": 2, "query_tokens": 8}},
    {"neighbours": {"weight": 0.4, "k": 4, "following": 3}},
    {"speculation": {"drafter": "model", "verifier": "judge"}},
    {},
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    draft = shutil.copytree(DEMO / "draft", tmp_path_factory.mktemp("judge") / "draft")
    Correctness(read_config(DEMO / "target").hidden).save(draft)
    llm = load(
        small=DEMO / "draft", model=DEMO / "target", draft=draft, dtype="float32", blocks=300, max_requests=12,
        check=True,
    )  # fmt: skip
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def url(both: AsyncLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("words")
    index = build(folder(root / "texts"), root / "out", words=20)
    with LLM(dtype="float32", blocks=100) as llm:
        Datastore.build(llm, ["Tom has 7 apples and buys 4 more, so he has 11 apples."]).save(root / "store.npz")
    settings = Settings(
        served_model_name=("two",), queue_limit=40, index=Path(index.path), datastore=root / "store.npz"
    )
    with running(both, settings) as address:
        yield address


def wish(rng: random.Random) -> dict[str, Any]:
    extra = rng.choice(POLICIES)
    params: dict[str, Any] = {"model": "two", "max_tokens": rng.randint(1, 90), "temperature": rng.choice([0, 0.8])}
    messages = [{"role": "user", "content": rng.choice(ASK)}]
    return {**params, "messages": messages, "extra_body": {**extra, "ignore_eos": "reasoning" in extra}}


async def visit(client: AsyncOpenAI, rng: random.Random) -> str:
    """One request: whole, streamed, or left; how it went."""
    body, stream = wish(rng), rng.random() < 0.6
    extra = body["extra_body"]
    fields = {"retrieval": "retrieval", "neighbours": "neighbours", "speculation": "judge"}
    plain = next((name for field, name in fields.items() if field in extra), "plain")
    policy = extra["reasoning"]["policy"] if "reasoning" in extra else plain
    chunks = rng.choice([0, 1, 2, 5, 10**6])
    try:
        async with asyncio.timeout(rng.choice([0.02, 0.1, 0.5, 1.5, 60])):
            if not stream:
                answer = await client.chat.completions.create(**body)
                return f"{policy}: {'whole' if answer.choices[0].finish_reason else 'broken'}"
            events, last = await client.chat.completions.create(**body, stream=True), None
            async for event in events:
                last, chunks = event, chunks - 1
                if chunks < 0:
                    await events.close()
                    return f"{policy}: left"
            assert last is not None and last.choices[0].finish_reason
            return f"{policy}: whole"
    except TimeoutError:
        return f"{policy}: left"


async def crowd(url: str, seconds: float, seed: int) -> Counter[str]:
    counts, until = Counter[str](), asyncio.get_running_loop().time() + seconds

    async def serve(number: int) -> None:
        rng = random.Random(seed + number)
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
            while asyncio.get_running_loop().time() < until:
                counts[await visit(client, rng)] += 1

    await asyncio.gather(*map(serve, range(CLIENTS)))
    return counts


async def each(url: str) -> int:
    """Every policy once, with nobody else; how many gave an answer. One with a deadline may have no text by then."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        answers = [
            await client.chat.completions.create(
                model="two", messages=[{"role": "user", "content": ASK[0]}], max_tokens=30, extra_body=extra
            )
            for extra in POLICIES
        ]
    return sum(answer.choices[0].finish_reason in ("stop", "length") for answer in answers)


async def left(llm: AsyncLLM) -> dict[str, int]:
    """What is held, when all that goes on by itself has ended."""
    runner = runner_of(llm)
    for _ in range(400):
        if not await llm.call(lambda: runner.busy or any(engine.busy for engine in runner.engines.values())):
            break
        await asyncio.sleep(0.05)

    def look() -> dict[str, int]:
        found = {"runs": len(runner.runs)}
        for name, engine in runner.engines.items():
            engine.cache.check_integrity()
            found[f"{name} requests"] = len(engine.session.requests)
            found[f"{name} branches"] = len(engine.desk.branches)
            found[f"{name} used"] = engine.snapshot().used
            found[f"{name} blocks"] = engine.cache.num_blocks - engine.cache.room()
        return found

    return await llm.call(look)


def names() -> Counter[str]:
    """Threads by name, without their numbers."""
    return Counter(thread.name.rstrip("0123456789_-") for thread in threading.enumerate())


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 200)
def test_whoever_leaves_leaves_nothing(both: AsyncLLM, url: str) -> None:
    warm = asyncio.run(crowd(url, min(10.0, SECONDS / 2), seed=100))
    asyncio.run(left(both))
    threads = names()
    counts = asyncio.run(crowd(url, SECONDS, seed=int(SECONDS)))
    print(f"\n{sum(counts.values())} requests in {SECONDS:.0f} s: {dict(sorted(counts.items()))}")
    held = asyncio.run(left(both))
    assert not any(held.values()), held
    now = names()
    assert all(count <= POOLS.get(name, threads[name]) for name, count in now.items()), (now, threads)
    assert all(how.endswith(("whole", "left")) for how in counts + warm), counts + warm
    assert {how for how in counts if how.endswith("left")} == {f"{policy}: left" for policy in NAMES}, counts
    assert asyncio.run(each(url)) == len(POLICIES), "and all of them are served as before"
