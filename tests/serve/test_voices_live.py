"""Tool calls and reasoning that a model writes by itself, through the engine and over HTTP.

The demo model writes none, so the engine is told its words: a custom processor leaves one token each time. All else is
as it is: drafting, verification, streaming, parsing.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from torch import Tensor

from paceline import AsyncLLM, SamplingParams
from paceline.core.request import Request
from paceline.serve.settings import Settings
from tests.serve.conftest import DEMO, running

MESSAGES: list[Any] = [{"role": "user", "content": "What time is it?"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
]
CALLS = """I look.
<tool_call>
{"name": "now", "arguments": {}}
</tool_call>
<tool_call>
{"name": "add", "arguments": {"a": {"b": "} 東"}}}
</tool_call>"""
Say = Callable[[Sequence[int]], None]


@contextmanager
def saying(llm: AsyncLLM, ids: Sequence[int]) -> Iterator[None]:
    """Every request's answer is `ids` and the end of sequence."""
    engine, [eos, *_] = llm.llm.engine, sorted({*llm.llm.text.eos()})
    submit, words = engine.submit, [*ids, eos]

    def only(prompt: Sequence[int], output: Sequence[int], logits: Tensor) -> Tensor:
        scores = logits.new_full(logits.shape, float("-inf"))
        scores[words[min(len(output), len(words) - 1)]] = 0.0
        return scores

    def told(prompt: Sequence[int], params: SamplingParams, **more: Any) -> list[Request]:
        return submit(prompt, replace(params, processors=(only,)), **more)

    engine.submit = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine.submit = submit  # type: ignore[method-assign]


def answers(client: OpenAI, **wish: Any) -> list[Any]:
    """The first choice, whole and streamed."""
    wish = {"model": "tools", "messages": MESSAGES, "max_tokens": 200, **wish}
    whole = client.chat.completions.create(**wish).choices[0]
    with client.chat.completions.stream(**wish) as stream:
        return [whole, stream.get_final_completion().choices[0]]


def encode(llm: AsyncLLM, text: str) -> list[int]:
    return list(llm.llm.text.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("drafter", ["none", "model", "ngram"])
def test_calls_by_the_models_own_choice(tools_engine: AsyncLLM, tools_client: OpenAI, drafter: str) -> None:
    with saying(tools_engine, encode(tools_engine, CALLS)):
        made = answers(tools_client, tools=TOOLS, extra_body={"speculation": {"drafter": drafter}})
    for choice in made:
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
        assert calls == [("now", {}), ("add", {"a": {"b": "} 東"}})]
        assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
        assert len({c.id for c in choice.message.tool_calls}) == 2


def test_without_tools_the_same_words_are_content(tools_engine: AsyncLLM, tools_client: OpenAI) -> None:
    with saying(tools_engine, encode(tools_engine, CALLS)):
        for wish in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            for choice in answers(tools_client, **wish):
                assert (choice.message.content, choice.message.tool_calls) == (CALLS, None)
                assert choice.finish_reason == "stop"


def test_reasoning_is_told_from_content(tools_engine: AsyncLLM, tools_client: OpenAI) -> None:
    with saying(tools_engine, encode(tools_engine, "Let me see.\n</think>\n\nNoon.")):
        for choice in answers(tools_client, extra_body={"chat_template_kwargs": {"enable_thinking": True}}):
            assert (choice.message.reasoning_content, choice.message.content) == ("Let me see.", "Noon.")
    with saying(tools_engine, encode(tools_engine, "<think>Hm.</think>Noon.")):
        for choice in answers(tools_client):
            assert (choice.message.reasoning_content, choice.message.content) == ("Hm.", "Noon.")


def test_markers_that_are_special_tokens(tools_model: Path, tmp_path: Path) -> None:
    """They are shown to the parser, and neither they nor the end of sequence to the user."""
    path = tmp_path / "target"
    shutil.copytree(tools_model, path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text((path / name).read_text().replace("<|pad|>", "<tool_call>"))
    llm = AsyncLLM(path, **DEMO)
    marker = encode(llm, "<tool_call>")
    assert len(marker) == 1 and llm.llm.text.tokenizer.decode(marker, skip_special_tokens=True) == ""
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    with running(llm, Settings(served_model_name=("tools",))) as url, saying(llm, encode(llm, CALLS)):
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for choice in (*answers(client, tools=TOOLS), *answers(client, tools=strict)):
            assert [c.function.name for c in choice.message.tool_calls] == ["now", "add"]
            assert choice.message.content == "I look."
    llm.close()
