"""/v1/messages, by Anthropic's own client against the demo pair."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, AuthenticationError, BadRequestError

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import running
from tests.serve.http import post

QUESTION = "Tom has 3 apples and buys 4 more. How many has he?"
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"enum": [3, 7]}, "b": {"enum": [4, 9]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def claude(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def agent(tools_engine: AsyncLLM) -> Iterator[Anthropic]:
    with running(tools_engine, Settings(served_model_name=("claude-opus-4-5", "tools"))) as address:
        yield Anthropic(base_url=address, api_key="none", max_retries=0, timeout=PATIENCE_S)


def test_a_message_is_the_answer_of_the_engine(claude: Anthropic, llm: LLM) -> None:
    made = claude.messages.create(
        model="demo",
        max_tokens=24,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        extra_body={"temperature": 0, "metadata": {"user_id": "x"}},
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    (want,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24), progress=False)
    assert made.content[0].text == want.text and made.stop_reason == "max_tokens"  # type: ignore[union-attr]
    assert made.usage.output_tokens == len(want.token_ids)
    cached = made.usage.cache_read_input_tokens or 0
    assert made.usage.input_tokens + cached == len(want.prompt_token_ids)


def test_tokens_are_counted_as_they_are_used(agent: Anthropic) -> None:
    wish: dict[str, Any] = {"model": "tools", "messages": [{"role": "user", "content": QUESTION}], "tools": [ADD]}
    used = agent.messages.create(max_tokens=1, **wish).usage
    count = agent.messages.count_tokens(**wish).input_tokens
    assert count == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_a_streamed_conversation_of_three_turns_with_tools(agent: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    more: dict[str, Any] = {"model": "claude-opus-4-5", "max_tokens": 60, "tools": [ADD], "system": "Be brief."}
    cold = {"temperature": 0}
    with agent.messages.stream(messages=messages, tool_choice={"type": "any"}, extra_body=cold, **more) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_message()
    (use,) = first.content
    assert first.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "add"
    assert set(use.input) == {"a", "b"}  # type: ignore[arg-type]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "input_json" in kinds

    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "7"}]},
    ]
    with agent.messages.stream(messages=messages, tool_choice={"type": "none"}, extra_body=cold, **more) as stream:
        text = "".join(stream.text_stream)
        second = stream.get_final_message()
    assert text and second.content[0].text == text  # type: ignore[union-attr]

    messages += [
        {"role": "assistant", "content": second.content},
        {"role": "user", "content": [{"type": "text", "text": "And 9 more?"}]},
    ]
    with agent.messages.stream(
        messages=messages, tool_choice={"type": "tool", "name": "add"}, extra_body=cold, **more
    ) as stream:
        third = stream.get_final_message()
    assert third.stop_reason == "tool_use" and third.content[-1].type == "tool_use"
    whole = agent.messages.create(
        messages=messages, tool_choice={"type": "tool", "name": "add"}, extra_body=cold, **more
    )
    assert whole.content[-1].input == third.content[-1].input  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_sequence_is_named_and_not_shown(claude: Anthropic, llm: LLM, stream: bool) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    (want,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=30), progress=False)
    word = want.text.split()[4]
    wish: dict[str, Any] = {"model": "demo", "max_tokens": 30, "messages": messages, "stop_sequences": ["@@@", word]}
    if stream:
        with claude.messages.stream(extra_body={"temperature": 0}, **wish) as events:
            made = events.get_final_message()
    else:
        made = claude.messages.create(extra_body={"temperature": 0}, **wish)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", word)
    assert made.content[0].text == want.text[: want.text.index(word)]  # type: ignore[union-attr]


def test_an_answer_goes_on_where_the_last_message_ends(claude: Anthropic, llm: LLM) -> None:
    ids = llm.text.chat([{"role": "user", "content": QUESTION}])
    prefix = llm.text.tokenizer.encode("Tom has", add_special_tokens=False)
    (want,) = llm.generate([[*ids, *prefix]], SamplingParams(temperature=0, max_tokens=12), progress=False)
    made = claude.messages.create(
        model="demo",
        max_tokens=12,
        messages=[{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Tom has"}],
        extra_body={"temperature": 0},
    )
    assert made.content[0].text == want.text  # type: ignore[union-attr]


def test_output_config_has_a_schema(claude: Anthropic) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    made = claude.messages.create(
        model="demo",
        max_tokens=40,
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}}},
    )
    assert json.loads(made.content[0].text)["n"] in (1, 2)  # type: ignore[union-attr]


def test_keys_come_as_anthropic_sends_them(engine: AsyncLLM) -> None:
    with running(engine, Settings(served_model_name=("demo",), api_keys=("secret",))) as url:
        wish: dict[str, Any] = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
        assert Anthropic(base_url=url, api_key="secret", max_retries=0).messages.create(**wish).content
        with pytest.raises(AuthenticationError, match="X-Api-Key"):
            Anthropic(base_url=url, api_key="guess", max_retries=0).messages.create(**wish)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "only text is served"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "tool", "name": "w"}},
            "only functions",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}, "only functions"),
        ({"tools": [{"name": "f", "input_schema": {}, "colour": 1}]}, "unknown field 'colour'"),
        ({"tools": [{"name": "f", "type": 5, "input_schema": {}}]}, "a type that is no text"),
        ({"tools": [{"name": [], "input_schema": {}}], "tool_choice": {"type": "tool", "name": "f"}}, "name"),
        ({"context_management": {"edits": [{}]}}, "context_management"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
        ({"output_config": {"colour": 1}}, "colour"),
        ({"tool_choice": {"type": "tool"}}, "needs a name"),
        ({"n": 2}, "n belongs to another"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"mcp_server": []}, "Unknown parameter"),
    ],
)
def test_errors_have_anthropics_form(url: str, claude: Anthropic, more: dict[str, Any], words: str) -> None:
    body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}], **more}
    status, answer = post(url + "/v1/messages", body)
    assert status == 400 and answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    assert words in answer["error"]["message"]
    with pytest.raises(BadRequestError):
        claude.post("/v1/messages", body=body, cast_to=object)
