"""Answers and conversations in OpenAI's harmony format."""

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import BadRequestError, OpenAI

from paceline import AsyncLLM
from paceline.serve import harmony
from paceline.serve.chat import message
from paceline.serve.protocol import ChatRequest
from paceline.serve.settings import Settings
from paceline.serve.tokens import Tokens
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, running
from tests.serve.test_voices_live import TOOLS, answers, encode, saying

TEMPLATE = (
    "{%- set last = namespace(name=none) -%}"
    "{%- for m in messages -%}{%- if m.role == 'assistant' and m.tool_calls -%}"
    "{%- if m.content and m.thinking -%}{{ raise_exception('both') }}{%- endif -%}"
    "{%- if m.thinking -%}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{%- endif -%}"
    "{%- set call = m.tool_calls[0].function -%}{%- set last.name = call.name -%}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments|tojson }}"
    "<|call|>{%- elif m.role == 'tool' -%}"
    "<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>"
    "{%- else -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{%- endif -%}{%- endfor -%}"
    "{%- for tool in tools or [] -%}{{ tool.function.name }} {% endfor -%}"
    "{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
)
"""What gpt-oss's does with calls and reasoning."""
THOUGHT = "<|channel|>analysis<|message|>They want < the | time.<|end|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": "<|"}<|call|>'
SAID = "<|start|>assistant<|channel|>final<|message|>It is <|noon.<|return|>"
PREAMBLE = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
PIECES = st.lists(st.integers(0, 300))


def read(text: str, cuts: list[int], tools: bool = True, opened: bool = True) -> dict[str, Any]:
    """The message of an answer that comes in pieces, without the ids of its calls."""
    voice = harmony.HarmonyVoice(tools, opened=opened)
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    made = message([*(d for a, b in pairwise(at) for d in voice.feed(text[a:b])), *voice.finish()])
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in made.pop("tool_calls", ())]
    return {**made, "calls": calls, "cut": voice.cut}


@given(cuts=PIECES)
def test_channels(cuts: list[int]) -> None:
    found = read(THOUGHT + SAID, cuts)
    assert (found["reasoning_content"], found["content"]) == ("They want < the | time.", "It is <|noon.")
    found = read(THOUGHT + PREAMBLE + CALL + "more", cuts)
    assert (found["content"], found["calls"], found["cut"]) == ("I look.", [("add", '{"a": "<|"}')], False)
    other = "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>"
    assert read(THOUGHT + other + "<|call|>", cuts)["calls"] == [("now", "{}")]
    assert read(THOUGHT + THOUGHT.replace("<|channel|>", "<|start|>assistant<|channel|>"), cuts)[
        "reasoning_content"
    ] == ("They want < the | time.\nThey want < the | time.")


@given(cuts=PIECES, end=st.integers(0, 200), tools=st.booleans())
def test_an_answer_that_was_cut_loses_no_text(cuts: list[int], end: int, tools: bool) -> None:
    text = (THOUGHT + PREAMBLE + CALL)[:end]
    whole, found = read(text, [], tools), read(text, cuts, tools)
    assert whole == found
    if found["calls"]:
        [(name, arguments)] = found["calls"]
        assert name == "add" and ('{"a": "<|"}'.startswith(arguments) or arguments == "{}")
        assert found["cut"] == (arguments not in ("{}", '{"a": "<|"}'))
    assert tools or not found["calls"]


@given(text=st.text(alphabet="ab <|>", max_size=40), cuts=PIECES)
def test_text_without_channels_is_content(text: str, cuts: list[int]) -> None:
    assert read(text, cuts, opened=False)["content"] == text
    words = f"x{text}"
    assert read(words, cuts)["content"] == words


def test_conversations_have_one_call_a_message() -> None:
    calls = [{"id": str(n), "function": {"name": f"f{n}", "arguments": {}}} for n in range(2)]
    asked = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": str(n), "content": str(n)} for n in (1, 0)]
    made = harmony.conversation([{"role": "user", "content": [{"type": "text", "text": "a"}]}, asked, *results])
    assert [(it["role"], it.get("tool_calls", [{"id": ""}])[0]["id"], it["content"]) for it in made] == [
        ("user", "", "a"), ("assistant", "0", ""), ("tool", "", "0"), ("assistant", "1", ""), ("tool", "", "1"),
    ]  # fmt: skip
    assert made[1]["thinking"] == "Hm.\nI look." and "thinking" not in made[3]


@pytest.fixture(scope="module")
def engine(tools_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    path = tmp_path_factory.mktemp("harmony") / "model"
    shutil.copytree(tools_model, path)
    (path / "template.jinja").write_text(TEMPLATE)
    llm = AsyncLLM(path, chat_template=path / "template.jinja", **DEMO)
    yield llm
    llm.close()


def test_arguments_of_one_piece_are_one_delta_and_calls_find_their_results() -> None:
    """However long they are, and however many: both are on the way of every other client's tokens."""
    voice = harmony.HarmonyVoice(True)
    voice.feed("<|channel|>commentary to=functions.f <|constrain|>json<|message|>")
    assert [delta.arguments_delta for delta in voice.feed('{"a": "' + "x" * 5000)] == ['{"a": "' + "x" * 5000]
    assert voice.cut and not voice.feed('"}<|call|>')[1:] and not voice.cut
    calls = [{"id": str(i), "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(50)]
    results = [{"role": "tool", "tool_call_id": str(i), "content": "x"} for i in reversed((*range(50), 99, 3))]
    made = harmony.conversation([{"role": "assistant", "content": "", "tool_calls": calls}, *results])
    told = [it["tool_calls"][0]["id"] if it["role"] == "assistant" else it["tool_call_id"] for it in made]
    assert told == [name for i in range(50) for name in (str(i), str(i), *(["3"] if i == 3 else []))] + ["99"]


@pytest.fixture(scope="module")
def client(engine: AsyncLLM) -> Iterator[OpenAI]:
    with running(engine, Settings(served_model_name=("tools",))) as address:
        yield OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def spelt(engine: AsyncLLM, text: str) -> list[int]:
    """Ids letter by letter: <|end|> ends the demo model's answers, as one token."""
    return [id for letter in text for id in encode(engine, letter)]


def test_over_http(engine: AsyncLLM, client: OpenAI) -> None:
    """Whole and in a stream; then the conversation with what was said."""
    with saying(engine, spelt(engine, THOUGHT + PREAMBLE + CALL)):
        found = answers(client, tools=TOOLS, parallel_tool_calls=False, max_tokens=400)
    for choice in found:
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": "<|"})
        assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
        assert choice.message.reasoning_content == "They want < the | time."
    history: list[Any] = [
        {"role": "user", "content": "?"},
        {**found[0].message.model_dump(exclude_none=True), "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": found[0].message.tool_calls[0].id, "content": "12"},
    ]
    with saying(engine, spelt(engine, THOUGHT + SAID)):
        last = client.chat.completions.create(model="tools", messages=history, tools=TOOLS, max_tokens=400).choices[0]
    assert (last.message.content, last.finish_reason) == ("It is <|noon.", "stop")


def test_forms_that_are_wanted_have_a_message_of_their_own(engine: AsyncLLM, client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": "tools", "messages": [{"role": "user", "content": "?"}], "max_tokens": 60}
    named: Any = {"type": "function", "function": {"name": "now"}}
    made = client.chat.completions.create(**ask, tools=TOOLS, tool_choice=named).choices[0].message
    assert made.tool_calls is not None and made.tool_calls[0].function.name == "now"
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [12]}}}
    whole = client.chat.completions.create(**ask, response_format=form)
    plain = client.chat.completions.create(**ask)
    assert whole.choices[0].message.content == "12"
    assert whole.usage is not None and plain.usage is not None
    opening = len(encode(engine, harmony.FINAL_HEAD))
    assert whole.usage.prompt_tokens == plain.usage.prompt_tokens + opening


STRICT_ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [12, 13]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def marked(tools_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    """Harmony's marks are special tokens: the end of sequence, and its last merges."""
    path = tmp_path_factory.mktemp("marked") / "model"
    shutil.copytree(tools_model, path)
    (path / "template.jinja").write_text(TEMPLATE)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_text((path / file).read_text().replace("<|end|>", harmony.RETURN_MARK))
    told = json.loads((path / "tokenizer.json").read_text())
    marks, vocabulary = (*harmony.HARMONY_MARKS, harmony.CALL_MARK), told["model"]["vocab"]
    told["model"]["merges"] = told["model"]["merges"][: -len(marks)]
    for mark, token in zip(marks, sorted(vocabulary, key=vocabulary.__getitem__)[-len(marks) :], strict=True):
        vocabulary[mark] = vocabulary.pop(token)
        told["added_tokens"].append({**told["added_tokens"][0], "id": vocabulary[mark], "content": mark})
    (path / "tokenizer.json").write_text(json.dumps(told))
    llm = AsyncLLM(path, chat_template=path / "template.jinja", **DEMO)
    assert all(len(encode(llm, mark)) == 1 for mark in (*marks, harmony.RETURN_MARK))
    yield llm
    llm.close()


@pytest.mark.parametrize(
    "opening",
    [
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
        " to=functions.add<|channel|>commentary json<|message|>",
    ],
)
def test_strict_functions(marked: AsyncLLM, opening: str) -> None:
    """The model thinks, and calls as it likes; the arguments keep to the schema."""
    with running(marked, Settings(served_model_name=("tools",))) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        with saying(marked, encode(marked, THOUGHT + "<|start|>assistant" + opening + '{"a": 12}<|call|>')):
            for choice in answers(client, tools=[STRICT_ADD], max_tokens=100):
                [call] = choice.message.tool_calls
                assert (call.function.name, call.function.arguments) == ("add", '{"a": 12}')
                assert choice.message.reasoning_content == "They want < the | time."
        with saying(marked, encode(marked, THOUGHT + SAID)):
            for choice in answers(client, tools=[STRICT_ADD], max_tokens=100):
                assert (choice.message.content, choice.finish_reason) == ("It is <|noon.", "stop")


def test_what_breaks_a_strict_form_is_masked(marked: AsyncLLM) -> None:
    from llguidance import LLMatcher

    from paceline.sample.grammar import vocabulary
    from paceline.serve.structure import chat_grammar

    text = marked.llm.text
    body = ChatRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=[STRICT_ADD])
    grammar = chat_grammar(body, TEMPLATE, Tokens(text.tokenizer).special)
    assert grammar is not None
    spelling = vocabulary(text.tokenizer, len(text.tokenizer), sorted(text.eos()))

    def taken(answer: str) -> bool:
        matcher, ids = LLMatcher(spelling, grammar.source(), log_level=0), encode(marked, answer)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 12}'
    assert taken(call) and taken(THOUGHT + "<|start|>assistant" + call) and taken("<|channel|>final<|message|>Hm.")
    for broken in ("14", '"12"', '12, "b": 1'):
        assert not taken(call.replace("12", broken)), broken
    assert not taken(call.replace("add", "now")) and not taken("Hm.") and not taken(THOUGHT)
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["x"]}}}
    grammar = chat_grammar(ChatRequest(**{**body.model_dump(), "response_format": form}), TEMPLATE,
                           Tokens(text.tokenizer).special)  # fmt: skip
    assert grammar is not None and taken(call) and taken('<|channel|>final<|message|>"x"')
    assert not taken("<|channel|>final<|message|>Hm.")


def test_marks_that_are_no_special_tokens_are_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="no syntax that is known"):
        client.chat.completions.create(model="tools", messages=[{"role": "user", "content": "?"}], tools=[STRICT_ADD])
