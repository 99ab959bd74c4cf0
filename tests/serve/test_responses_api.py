"""/v1/responses, by OpenAI's own client against the demo pair."""

import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.serve.settings import Settings
from tests.serve.conftest import running
from tests.serve.http import post, send

QUESTION = "Tom has 3 apples and buys 4 more. How many has he?"
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [3, 7]}, "b": {"enum": [4, 9]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": None,
}
ORDER = ["response.created", "response.in_progress", "response.output_item.added"]


def test_a_response_is_the_answer_of_the_engine(client: OpenAI, llm: LLM) -> None:
    made = client.responses.create(model="demo", input=QUESTION, temperature=0, max_output_tokens=24)
    messages = [{"role": "user", "content": QUESTION}]
    (want,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24), progress=False)
    assert made.output_text == want.text and made.status == "incomplete"
    assert made.incomplete_details is not None and made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None and made.usage.output_tokens == len(want.token_ids)
    assert made.usage.input_tokens == len(want.prompt_token_ids)


def test_events_add_up_to_the_response(client: OpenAI) -> None:
    wish: dict[str, Any] = {"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    events = list(client.responses.create(stream=True, **wish))
    assert [e.type for e in events[:3]] == ORDER and events[-1].type == "response.incomplete"
    assert [e.sequence_number for e in events] == list(range(len(events)))  # type: ignore[union-attr]
    whole = client.responses.create(**wish)
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert said == whole.output_text == events[-1].response.output_text
    stop = {"stop": said.split()[-1]}  # complete, not cut: the client's own accumulation waits for that
    with client.responses.stream(extra_body=stop, **wish) as stream:
        assert said.startswith(stream.get_final_response().output_text)


def test_a_streamed_conversation_of_three_turns_with_tools(tools_client: OpenAI) -> None:
    more: dict[str, Any] = {"model": "tools", "tools": [ADD], "temperature": 0, "max_output_tokens": 60, "stream": True}
    first = list(
        tools_client.responses.create(input=QUESTION, tool_choice="required", instructions="Be brief.", **more)
    )
    (call,) = first[-1].response.output  # type: ignore[union-attr]
    assert call.type == "function_call" and call.name == "add" and json.loads(call.arguments).keys() == {"a", "b"}
    deltas = [e.delta for e in first if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments

    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    more["previous_response_id"] = first[-1].response.id  # type: ignore[union-attr]
    second = list(tools_client.responses.create(input=[result], tool_choice="none", **more))  # type: ignore[list-item]
    said = second[-1].response.output_text  # type: ignore[union-attr]
    assert said

    named = {"type": "function", "name": "add"}
    more["previous_response_id"] = second[-1].response.id  # type: ignore[union-attr]
    third = list(tools_client.responses.create(input="And 9 more?", tool_choice=named, **more))  # type: ignore[arg-type]
    assert third[-1].response.output[-1].type == "function_call"  # type: ignore[union-attr]

    # the same three turns without the store: the whole conversation as input
    items: list[Any] = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": call.call_id, "name": "add", "arguments": call.arguments},
        result,
    ]
    again = tools_client.responses.create(
        model="tools", input=items, tools=[ADD], tool_choice="none", temperature=0, max_output_tokens=60, store=False
    )
    assert again.output_text == said


def test_what_is_stored_can_be_read_and_deleted(client: OpenAI) -> None:
    made = client.responses.create(model="demo", input="Hello", temperature=0, max_output_tokens=4)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert client.responses.input_items.list(made.id).data[0].role == "user"  # type: ignore[union-attr]
    client.responses.delete(made.id)
    with pytest.raises(NotFoundError, match="no response"):
        client.responses.retrieve(made.id)
    with pytest.raises(NotFoundError, match="no response"):
        client.responses.create(model="demo", input="Hello", previous_response_id=made.id)


def test_a_conversation_has_an_id(client: OpenAI) -> None:
    """Turns of one conversation are one text, with the answers; it says what it is of to nobody else."""
    said = {"type": "message", "role": "user", "content": "Tom has 3 apples."}
    talk = client.conversations.create(items=[said], metadata={"of": "Tom"})  # type: ignore[list-item]
    one = client.responses.create(
        model="demo", input="How many?", conversation=talk.id, max_output_tokens=8, temperature=0, store=False
    )
    whole = [said, {"type": "message", "role": "user", "content": "How many?"}]
    same = client.responses.create(model="demo", input=whole, max_output_tokens=8, temperature=0)  # type: ignore[arg-type]
    assert one.output_text == same.output_text and one.conversation is not None and one.conversation.id == talk.id
    two = client.responses.create(
        model="demo", input="And then?", conversation={"id": talk.id}, max_output_tokens=8, temperature=0
    )
    further = client.responses.create(
        model="demo", input="And then?", previous_response_id=same.id, max_output_tokens=8, temperature=0
    )
    assert two.output_text == further.output_text and two.usage and further.usage
    assert two.usage.input_tokens == further.usage.input_tokens
    items = client.conversations.items.list(talk.id).data
    assert [getattr(item, "role", None) for item in items] == ["user", "user", "assistant", "user", "assistant"]
    assert client.conversations.retrieve(talk.id).metadata == {"of": "Tom"}
    assert client.conversations.delete(talk.id).deleted
    for call in (
        lambda: client.conversations.retrieve(talk.id),
        lambda: client.responses.create(model="demo", input="a", conversation=talk.id),
        lambda: client.responses.create(model="demo", input="a", previous_response_id=talk.id),
    ):
        with pytest.raises(NotFoundError):
            call()
    with pytest.raises(BadRequestError, match="both say"):
        client.responses.create(model="demo", input="a", conversation=talk.id, previous_response_id=same.id)
    with pytest.raises(BadRequestError, match="picture"):
        client.conversations.create(items=[{"type": "picture"}])  # type: ignore[list-item]


def test_the_store_is_bounded_and_keys_do_not_see_one_another(engine: AsyncLLM) -> None:
    with running(engine, Settings(served_model_name=("demo",), api_keys=("a", "b"), response_store_bytes=6000)) as url:
        one, two = (OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for key in "ab")
        ids = [one.responses.create(model="demo", input="Hi", max_output_tokens=2).id for _ in range(8)]
        assert one.responses.retrieve(ids[-1]).id == ids[-1]
        with pytest.raises(NotFoundError):
            two.responses.retrieve(ids[-1])
        with pytest.raises(NotFoundError):
            one.responses.retrieve(ids[0])


def test_json_schema_and_log_probabilities(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    made = client.responses.create(
        model="demo",
        input=QUESTION,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=40,
    )
    part: Any = made.output[0].content[0]  # type: ignore[union-attr]
    assert json.loads(part.text)["n"] in (1, 2)
    assert made.usage is not None and len(part.logprobs) == made.usage.output_tokens
    assert all(1 <= len(entry.top_logprobs) <= 3 for entry in part.logprobs)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "tools": [{"type": "web_search"}], "tool_choice": "required"}, "only functions are served"),
        ({"input": [{"type": "computer_call"}]}, "input[0] is of type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "only text is served"),
        ({"input": "a", "truncation": "auto"}, "truncation"),
        ({"input": "a", "max_tokens": 3}, "give max_output_tokens"),
        ({"input": [{"role": "elf", "content": "x"}]}, "role"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "arguments must be a text"),
        ({"input": "a", "prompt": {"id": "x"}}, "Unknown parameter"),
        ({"input": "a", "tool_choice": {"type": "mcp"}}, "only functions are served"),
        ({"input": []}, "input"),
    ],
)
def test_what_is_not_served_is_said(url: str, body: dict[str, Any], words: str) -> None:
    status, answer = post(url + "/v1/responses", body)
    assert status == 400 and words in answer["error"]["message"]


def test_a_failure_in_a_stream_is_an_event(client: OpenAI) -> None:
    """The grammar cannot be satisfied: no token is left in mid-answer."""
    more = {"allowed_tokens": [5], "grammar": {"kind": "regex", "text": "[0-9]+"}}
    try:
        events = list(client.responses.create(model="demo", input="a", stream=True, extra_body=more))
    except BadRequestError:
        return  # found before the stream began
    assert events[-1].type == "response.failed"


def test_another_method_is_refused(url: str) -> None:
    assert send(url + "/v1/responses")[0] == 405
