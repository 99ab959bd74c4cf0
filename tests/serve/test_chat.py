"""POST /v1/chat/completions against the offline engine."""

import json
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from paceline import LLM, SamplingParams
from paceline.core.grammar import Grammar
from paceline.serve.responses import Chat
from tests.serve.http import events, post

PATH = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4 more."}]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "how": {"enum": ["plus", "minus"]}},
    "required": ["n", "how"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]


def offline(llm: LLM, messages: Any = MESSAGES, **params: Any) -> Any:
    return llm.chat(messages, SamplingParams(**params), progress=False)[0]


def test_roles_and_parts_go_through_the_template(client: OpenAI, llm: LLM) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\ntwo"}, *messages[2:]]
    got = client.chat.completions.create(model="demo", messages=messages, max_tokens=8, seed=1)
    assert got.choices[0].message.content == offline(llm, plain, max_tokens=8, seed=1).text
    assert got.usage is not None and got.usage.prompt_tokens == len(llm.text.chat(plain))


def test_samples_and_limits(client: OpenAI, url: str, llm: LLM) -> None:
    want = [out.text for out in offline(llm, n=3, max_tokens=10, seed=4, stop=["e"]).outputs]
    got = client.chat.completions.create(
        model="demo", messages=MESSAGES, n=3, max_completion_tokens=10, seed=4, stop=["e"]
    )
    assert [c.message.content for c in got.choices] == want
    chunks = events(url + PATH, {"messages": MESSAGES, "n": 3, "max_tokens": 10, "seed": 4, "stop": "e"})
    texts = [""] * 3
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == want
    assert [c["choices"][0]["delta"]["role"] for c in chunks[:3]] == ["assistant"] * 3


def test_an_answer_may_use_the_whole_context(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": " apples" * 980}]
    got = client.chat.completions.create(model="demo", messages=messages, seed=4, extra_body={"ignore_eos": True})
    assert got.choices[0].finish_reason == "length"
    assert got.usage is not None and got.usage.total_tokens == 1024


def test_log_probabilities_are_the_engines(client: OpenAI, url: str, llm: LLM) -> None:
    want = offline(llm, max_tokens=6, seed=2, logprobs=2).outputs[0].logprobs
    got = client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=6, seed=2, logprobs=True, top_logprobs=2
    )
    assert got.choices[0].logprobs is not None
    content = got.choices[0].logprobs.content or []
    assert [e.logprob for e in content] == pytest.approx([e.logprob for e in want], abs=1e-4)
    assert b"".join(bytes(e.bytes or []) for e in content).decode() == got.choices[0].message.content
    assert [len(e.top_logprobs) for e in content] == [2] * 6
    body = {"messages": MESSAGES, "max_tokens": 6, "seed": 2, "logprobs": True}
    parts = [c["choices"][0]["logprobs"] for c in events(url + PATH, body)]
    streamed = [e["logprob"] for part in parts if part for e in part["content"]]
    assert streamed == pytest.approx([e.logprob for e in content], abs=1e-4)


@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_have_the_form_asked_for(url: str, llm: LLM, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        body = {"messages": MESSAGES, "response_format": form, "seed": seed, "temperature": temperature}
        status, answer = post(url + PATH, body | {"max_tokens": 200})
        assert status == 200
        text = Chat.model_validate(answer).choices[0].message.content
        assert text is not None
        jsonschema.validate(json.loads(text), SCHEMA)
        grammar = Grammar("json_schema", json.dumps(SCHEMA))
        assert text == offline(llm, seed=seed, temperature=temperature, max_tokens=200, grammar=grammar).text
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, "seed": 1, "max_tokens": 60}
    assert post(url + PATH, body)[1]["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_must_be_made_is_made(tools_client: OpenAI, choice: Any, stream: bool) -> None:
    wish: dict[str, Any] = {"model": "tools", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "seed": 3}
    if stream:
        with tools_client.chat.completions.stream(**wish, max_tokens=300) as events:
            [made] = events.get_final_completion().choices
    else:
        [made] = tools_client.chat.completions.create(**wish, max_tokens=300).choices
    assert made.finish_reason == "tool_calls" and not made.message.content
    [call] = made.message.tool_calls or []
    assert call.type == "function" and call.id.startswith("call_")
    schema = SCHEMA if call.function.name == "add" else {"type": "object", "maxProperties": 0}
    jsonschema.validate(json.loads(call.function.arguments), schema)


def test_calls_and_their_results_go_back_into_the_template(tools_client: OpenAI, tools_llm: LLM) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"n": 7}'}}
    messages: list[Any] = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
                           {"role": "tool", "tool_call_id": "call_1", "content": "7"}]  # fmt: skip
    plain = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"n": 7}}}]},
        {"role": "tool", "content": "7"},
    ]
    got = tools_client.chat.completions.create(model="tools", messages=messages, max_tokens=6, seed=1)
    assert got.usage is not None and got.usage.prompt_tokens == len(tools_llm.text.chat(plain))
    assert got.choices[0].message.content == offline(tools_llm, plain, max_tokens=6, seed=1).text


def test_trace(url: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 24, "seed": 1, "speculation": {"trace": True, "drafter": "model"}}
    whole = post(url + PATH, body)[1]["choices"][0]
    streamed = [p for c in events(url + PATH, body) for p in c["choices"][0].get("pieces", [])]
    for pieces in (whole["pieces"], streamed):
        assert "".join(text for text, _ in pieces) == whole["message"]["content"]
        assert {author for _, author in pieces} == {"target", "model"}
