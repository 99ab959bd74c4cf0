"""Everything at once under pre-emption: each answer is the one of the same request alone, offline, without drafts."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.core.grammar import Grammar
from paceline.serve.protocol import ChatRequest
from paceline.serve.settings import Settings
from paceline.serve.structure import chat_grammar
from tests.serve.conftest import DEMO_PAIR, running
from tests.serve.http import events, post

PROMPTS = ["Tom has 3 apples and buys 4 more.", "def add(a, b):\n    return", "one two three one two three one two"]
DRAFTERS = ["auto", "none", "ngram", "model", "suffix", "topk", "dyspec", "sequoia", "ngram+topk"]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "how": {"enum": ["plus", "minus"]}},
    "required": ["n", "how"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in ("add", "subtract")]


def wish(stream: random.Random) -> tuple[str, dict[str, Any]]:
    """(end point, body) of one request."""
    pick = stream.choice
    body: dict[str, Any] = {"seed": stream.getrandbits(40), "temperature": pick([0, 0.7, 1.2]), "n": pick([1, 1, 2, 3])}
    body |= pick(
        [{}, {"top_p": 0.9}, {"top_k": 8}, {"min_p": 0.05}, {"frequency_penalty": 0.7}, {"stop": ["\n", " the"]}]
    )
    body |= pick([{}, {"repetition_penalty": 1.2, "presence_penalty": 0.3}, {"logit_bias": {"20": 2.5, "225": -1}}])
    body["speculation"] = {"drafter": pick(DRAFTERS)}
    kind = pick(["text", "text", "chat", "form", "tool"])
    if kind == "text":
        logprobs = pick([{}, {"logprobs": 2}, {"logprobs": 0, "echo": True}])
        return "/v1/completions", body | logprobs | {"prompt": pick(PROMPTS), "max_tokens": pick([16, 40])}
    body |= {"messages": [{"role": "user", "content": pick(PROMPTS)}]}
    if kind == "chat":
        return "/v1/chat/completions", body | {"max_tokens": pick([16, 40])}
    body.pop("stop", None)
    shape = {"response_format": FORM} if kind == "form" else {"tools": TOOLS, "tool_choice": "required"}
    return "/v1/chat/completions", body | shape | {"max_tokens": 250}


def answer(url: str, path: str, body: dict[str, Any], streamed: bool) -> list[Any]:
    """What each choice says: a text, or the arguments of its call with the function's name."""
    if streamed and "tools" not in body:
        texts = [""] * body["n"]
        for chunk in events(url + path, body):
            choice = chunk["choices"][0]
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        return texts
    status, whole = post(url + path, body)
    assert status == 200, whole
    return [said(choice) for choice in whole["choices"]]


def said(choice: dict[str, Any]) -> Any:
    if "text" in choice:
        return choice["text"]
    [call] = choice["message"].get("tool_calls") or [None]
    return choice["message"]["content"] if call is None else call["function"]


def alone(llm: LLM, body: dict[str, Any]) -> list[Any]:
    """Texts of the offline engine for the same request."""
    apart = ("prompt", "messages", "speculation", "echo", "response_format", "tools", "tool_choice", "logprobs")
    words = {k: v for k, v in body.items() if k not in apart}
    if "logit_bias" in words:
        words["logit_bias"] = {int(k): v for k, v in words["logit_bias"].items()}
    if "prompt" in body:
        texts = [o.text for o in llm.generate(body["prompt"], SamplingParams(**words), progress=False)[0].outputs]
        return [(body["prompt"] if body.get("echo") else "") + text for text in texts]
    grammar: Grammar | None = chat_grammar(ChatRequest.model_validate(body))
    args = {"tools": TOOLS} if "tools" in body else {}
    params = SamplingParams(**words, grammar=grammar)
    texts = [o.text for o in llm.chat(body["messages"], params, template_args=args, progress=False)[0].outputs]
    if "tools" not in body:
        return texts
    calls = [json.loads(text) for text in texts]
    return [{"name": c["name"], "arguments": t[t.index(":", t.index('"arguments"')) + 1 :].strip()[:-1].strip()}
            for c, t in zip(calls, texts)]  # fmt: skip


@pytest.fixture(scope="module")
def tight(tools_model: Path) -> Iterator[AsyncLLM]:
    """An engine whose cache holds a few requests only."""
    llm = AsyncLLM(tools_model, DEMO_PAIR / "draft", dtype="float32", blocks=49)
    yield llm
    llm.close()


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.full)])
def test_each_answer_is_that_of_its_request_alone(tight: AsyncLLM, tools_llm: LLM, count: int) -> None:
    stream = random.Random(count)
    wishes = [wish(stream) for _ in range(count)]
    before = tight.snapshot.totals.preemptions
    made: list[list[Any]] = []
    with (
        running(tight, Settings(served_model_name=("tools",), queue_limit=4096)) as url,
        ThreadPoolExecutor(32) as pool,
    ):
        while tight.snapshot.totals.preemptions == before and len(made) < 5 * count:  # who meets whom is chance
            made += pool.map(lambda i: answer(url, *wishes[i], streamed=i % 2 == 0), range(count))
    assert tight.snapshot.totals.preemptions > before
    for (_, body), got in zip(cycle(wishes), made):
        assert got == alone(tools_llm, body), body
        if "response_format" in body or "tools" in body:
            for text in got:
                jsonschema.validate(json.loads(text if isinstance(text, str) else text["arguments"]), SCHEMA)
    assert not tight.llm.engine.busy
