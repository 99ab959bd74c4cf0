"""`reasoning` on the chat end point: two models, the openai client, refusals, and clients that leave."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import BadRequestError, OpenAI

from paceline import AsyncLLM, SamplingParams
from paceline.engine.pair import DEMO
from paceline.reason.ensemble import load
from paceline.reason.runner import BASE, SMALL, Runner
from paceline.serve.above import runner_of
from paceline.serve.responses import Chat
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import running
from tests.serve.http import post, send

MESSAGES: Any = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many apples has he?"}]
STEPS = {"policy": "steps", "tau": 4.5, "separator": "apples"}


@pytest.fixture(scope="module")
def both() -> Iterator[AsyncLLM]:
    llm = load(small=DEMO / "draft", model=DEMO / "target", dtype="float32", blocks=300, drafter="none", check=True)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def address(both: AsyncLLM) -> Iterator[str]:
    with running(both, Settings(served_model_name=("two",), queue_limit=40)) as url:
        yield url


@pytest.fixture(scope="module")
def two(address: str) -> OpenAI:
    return OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def ask(client: OpenAI, wish: dict[str, Any], **more: Any) -> Any:
    body = {"model": "two", "messages": MESSAGES, "temperature": 0, "max_tokens": 60, "seed": 1, **more}
    return client.chat.completions.create(**body, extra_body={"reasoning": wish, "ignore_eos": True})


def parts(segment: dict[str, Any]) -> tuple[str, str, int]:
    """Without the score, whose last digits depend on which rows were in the cache."""
    return segment["author"], segment["text"], segment["tokens"]


def alone(llm: AsyncLLM, name: str) -> str:
    """What one model answers by itself, with nobody else about."""
    ids = llm.llm.text.chat(MESSAGES)
    params = SamplingParams(temperature=0, max_tokens=60, seed=1, ignore_eos=True)
    if name == BASE:
        return asyncio.run(llm.generate(ids, params))[0].text
    engine = runner_of(llm).engines[SMALL]

    async def write() -> str:
        def work() -> str:
            [request] = engine.submit(ids, params.resolve({}))
            while request.finish is None:
                engine.step()
            return request.text

        return await llm.call(work)

    return asyncio.run(write())


def clean(llm: AsyncLLM) -> None:
    """No answer, request, lease or block is left in either engine."""
    runner = runner_of(llm)

    async def look() -> None:
        for _ in range(200):
            if not await llm.call(lambda: runner.busy):
                break
            await asyncio.sleep(0.05)

        def check() -> None:
            assert not runner.runs
            for engine in runner.engines.values():
                assert not engine.busy and not engine.session.requests and engine.snapshot().used == 0
                engine.cache.check_integrity()

        await llm.call(check)

    asyncio.run(look())


def test_whole_and_streamed_are_the_same_answer(two: OpenAI, both: AsyncLLM) -> None:
    for wish in (STEPS, {"policy": "mentor", "always": True, "separator": "apples", "peek": 5}):
        whole = ask(two, wish)
        Chat.model_validate(json.loads(whole.model_dump_json(exclude_unset=True)))
        choice = whole.choices[0]
        told = choice.reasoning
        assert "".join(segment["text"] for segment in told["segments"]) == choice.message.content
        assert [[text, author] for text, author in choice.pieces if text]
        stream = [event.choices[0] for event in ask(two, wish, stream=True) if event.choices]
        assert "".join(each.delta.content or "" for each in stream) == choice.message.content
        assert [parts(each) for each in stream[-1].reasoning["segments"]] == [parts(each) for each in told["segments"]]
        authors = {author for each in stream for _, author in getattr(each, "pieces", None) or ()}
        assert authors == {segment["author"] for segment in told["segments"]}
        above = whole.usage.speculation["above"]
        assert (above["policy"], above["proposed"], above["accepted"]) == (
            wish["policy"], told["proposed"], told["accepted"],
        )  # fmt: skip
        assert isinstance(above["saved_seconds"], float)
        assert whole.usage.completion_tokens == sum(segment["tokens"] for segment in told["segments"])
    clean(both)


def test_at_either_end_of_tau(two: OpenAI, both: AsyncLLM) -> None:
    for tau, name in ((0, SMALL), (9.5, BASE)):
        choice = ask(two, {**STEPS, "tau": tau}).choices[0]
        assert choice.message.content == alone(both, name)
        assert {segment["author"] for segment in choice.reasoning["segments"]} == {name}
    report = ask(two, {**STEPS, "tau": 0}).choices[0].reasoning
    assert report["proposed"] == report["accepted"] > 1 and report["models"][BASE]["written"] == report["proposed"]


def test_refusals(two: OpenAI, address: str, client: OpenAI) -> None:
    for wish, sentence in (
        ({"policy": "beam"}, "steps"),
        ({"policy": "steps", "tau": "high"}, "reasoning.tau is 'high', but it must be a number"),
        ({"policy": "steps", "peek": 3}, "reasoning.peek is not of policy steps"),
        ({"policy": "mentor", "tau": 3}, "reasoning.tau is not of policy mentor"),
        ({"policy": "steps", "colour": 1}, "Unknown parameter 'reasoning.colour'"),
        ({"tau": 1}, "reasoning.policy is missing"),
        ({"policy": "steps", "deadline_s": 0}, "deadline_s"),
    ):
        with pytest.raises(BadRequestError, match=sentence):
            ask(two, wish)
    for more in ({"n": 2}, {"logprobs": True}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(BadRequestError):
            ask(two, STEPS, **more)
    with pytest.raises(BadRequestError, match="second, small model"):
        client.chat.completions.create(model="demo", messages=MESSAGES, extra_body={"reasoning": STEPS})
    assert send(f"{address}/health")[0] == 200


def test_a_deadline_returns_what_stands(two: OpenAI, both: AsyncLLM) -> None:
    choice = ask(two, {**STEPS, "tau": 9.5, "deadline_s": 0.2}, max_tokens=400).choices[0]
    assert choice.finish_reason == "length" and choice.reasoning["ended"] in ("deadline", "length")
    clean(both)


def test_metrics_by_level(two: OpenAI, address: str) -> None:
    before = post(f"{address}/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4})[0]
    ask(two, STEPS)
    stats, text = send(f"{address}/stats")[1], httpx2.get(f"{address}/metrics").text
    assert before == 200 and stats["small"] == "draft"
    level = stats["above"]["steps"]
    assert level["proposed"] >= level["accepted"] >= 0 and level["proposed"] > 0
    assert f'paceline_above_proposed_total{{policy="steps"}} {float(level["proposed"])}' in text
    assert 'paceline_above_saved_seconds{policy="steps"}' in text


async def visit(url: str, rng: random.Random) -> str:
    """One request, whole, streamed, or left early; how it went."""
    wish = rng.choice([STEPS, {**STEPS, "tau": 0}, {**STEPS, "tau": 9.5}, {"policy": "mentor", "always": True,
        "separator": "apples", "peek": rng.randint(1, 9)}])  # fmt: skip
    body = {"messages": MESSAGES, "max_tokens": rng.randint(1, 60), "temperature": rng.choice([0, 0.8]),
            "stream": rng.random() < 0.5, "ignore_eos": True}  # fmt: skip
    if rng.random() < 0.8:
        body["reasoning"] = wish
    patience = rng.choice([0.02, 0.1, 0.5, 1.5, 60])
    try:
        async with asyncio.timeout(patience), httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            answer = await client.post("/v1/chat/completions", json=body)
            return str(answer.status_code)
    except TimeoutError:
        return "left"


async def crowd(url: str, seconds: float, seed: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    until, rngs = asyncio.get_running_loop().time() + seconds, [random.Random(seed + i) for i in range(6)]

    async def client(rng: random.Random) -> None:
        while asyncio.get_running_loop().time() < until:
            how = await visit(url, rng)
            counts[how] = counts.get(how, 0) + 1

    await asyncio.gather(*map(client, rngs))
    return counts


def test_clients_that_leave_leave_nothing(both: AsyncLLM, address: str) -> None:
    """For four seconds; `test_above_soak.py` does it for longer, with all policies."""
    counts = asyncio.run(crowd(address, 4.0, 4))
    assert set(counts) <= {"200", "left"} and counts["200"] and counts["left"]
    clean(both)
    assert any(isinstance(each, Runner) for each in both.beside)
