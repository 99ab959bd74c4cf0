"""What stock clients send and this server once refused: kept, let go, or refused in one sentence."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import llguidance
import pytest
from llguidance.hf import from_tokenizer
from openai import OpenAI

from paceline import LLM
from paceline.serve.connections import plain_head
from paceline.serve.errors import ApiError
from paceline.serve.protocol import ChatRequest, Tool
from paceline.serve.response_wire import ResponsesRequest, as_chat, as_items, messages
from paceline.serve.syntax import SYNTAXES
from paceline.serve.triggered import triggered, without_tools
from paceline.serve.wire import leniency
from tests.serve.http import events, post, send

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
LOOSE: dict[str, Any] = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
SAY = [{"role": "user", "content": "Tom has 3 apples."}]


def takes(llm: LLM, grammar: str, text: str) -> bool:
    """Whether a grammar takes the text as a whole."""
    matcher = llguidance.LLMatcher(from_tokenizer(llm.text.tokenizer), grammar)
    tokens = llm.text.tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("syntax", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": %s}}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": %s}}]'),
        ("llama", '<|python_tag|>{"name": "weather", "parameters": {"city": %s}}'),
        ("list", 'functools[{"name": "weather", "arguments": {"city": %s}}]'),
    ],
)
def test_free_text_then_a_call_by_its_schema(llm: LLM, syntax: str, call: str) -> None:
    [known] = [each for each in SYNTAXES if each.name == syntax]
    tools = [Tool.model_validate(TOOL), Tool.model_validate(LOOSE)]
    kept = triggered(known, tools, parallel=False, answer=None).text
    good, bad = call % '"Rome"', call % '"Oslo"'
    assert takes(llm, kept, "Hello, it is < 3 and fine.") and takes(llm, kept, good)
    assert takes(llm, kept, f"Let me see. {good}")
    assert not takes(llm, kept, bad) and not takes(llm, kept, f"{good}{good}") and not takes(llm, kept, f"{good} more")
    if known.bare:  # read as a call without its marker, so held to the schema, too
        plain = call.replace(known.marker, "")
        assert takes(llm, kept, plain % '"Rome"') and not takes(llm, kept, plain % '"Oslo"')
        assert takes(llm, kept, f"Let me see. {known.bare}") and not takes(llm, kept, known.bare)
    shaped = triggered(known, tools, parallel=True, answer=CITY).text
    assert takes(llm, shaped, '{"city":"Rome"}') and takes(llm, shaped, good) and not takes(llm, shaped, "Hello")


def test_strict_functions_and_single_calls_with_auto(tools_client: OpenAI) -> None:
    create: Any = tools_client.chat.completions.create
    for more in ({}, {"parallel_tool_calls": False}, {"response_format": {"type": "json_object"}}):
        answer = create(model="tools", messages=SAY, tools=[TOOL], max_tokens=16, temperature=0, **more)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_tools_for_a_template_without_a_place_for_them(client: OpenAI) -> None:
    made = client.chat.completions.create(
        model="demo", messages=SAY, tools=[TOOL], tool_choice="required", max_tokens=60, temperature=0
    )  # type: ignore[call-overload]
    assert json.loads(made.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Rome", "Paris")
    shown = without_tools(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
            {"role": "tool", "content": "sunny"},
        ],
        [Tool.model_validate(TOOL)],
    )
    assert [each["role"] for each in shown] == ["system", "assistant", "user"]
    assert (
        '"weather"' in shown[0]["content"] and "<tool_call>" in shown[1]["content"] and "sunny" in shown[2]["content"]
    )


def test_tools_of_other_kinds_are_left_out_and_told(url: str) -> None:
    body = {"input": "hi", "tools": [{"type": "web_search"}, {"type": "custom", "name": "x"}], "max_output_tokens": 4}
    status, answer = post(url + "/v1/responses", body)
    assert status == 200 and answer["metadata"]["tools_left_out"] == "web_search, custom"
    include = ["web_search_call.action.sources"]
    assert post(url + "/v1/responses", {**body, "include": include, "reasoning": {"summary": "none"}})[0] == 200
    status, answer = post(url + "/v1/responses", {**body, "tool_choice": {"type": "web_search"}})
    assert status == 400 and "web_search" in answer["error"]["message"]


CUSTOM = {"type": "custom", "custom": {"name": "patch"}}


@pytest.mark.parametrize(
    ("path", "tools"),
    [
        ("/v1/chat/completions", [CUSTOM, TOOL, {"type": "web_search"}]),
        ("/v1/chat/completions", [CUSTOM]),
        ("/v1/messages", [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": CITY}]),
        ("/api/chat", [{"type": "web_search"}]),
    ],
)
def test_every_door_leaves_tools_of_other_kinds_out(url: str, path: str, tools: list[dict[str, Any]]) -> None:
    body = {"model": "demo", "messages": SAY, "max_tokens": 2, "tools": tools, "stream": False}
    if path == "/api/chat":
        body["options"] = {"num_predict": body.pop("max_tokens")}
    status, answer = post(url + path, body)
    kinds = [tool["type"] for tool in tools if tool.get("type", "function") != "function"]
    assert status == 200 and answer["metadata"]["tools_left_out"] == ", ".join(kinds)


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "patch"}}])
def test_a_tool_of_another_kind_cannot_be_chosen(url: str, choice: Any) -> None:
    body = {"messages": SAY, "max_tokens": 2, "tools": [CUSTOM], "tool_choice": choice}
    status, answer = post(url + "/v1/chat/completions", body)
    assert status == 400 and "only functions are served" in answer["error"]["message"]


@pytest.mark.parametrize("flat", [False, True], ids=["chat", "responses"])
def test_allowed_tools_are_those_that_are_left(flat: bool) -> None:
    def laid(tool: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function", **tool["function"]} if flat else tool

    def choice(mode: str, *names: str) -> dict[str, Any]:
        inner = {"mode": mode, "tools": [laid({"type": "function", "function": {"name": name}}) for name in names]}
        return {"type": "allowed_tools", **inner} if flat else {"type": "allowed_tools", "allowed_tools": inner}

    def read(wish: dict[str, Any]) -> ChatRequest:
        tools = [laid(TOOL), laid(LOOSE)]
        if flat:
            body = ResponsesRequest.model_validate({"input": "a", "tools": tools, "tool_choice": wish})
            return as_chat(body, [*SAY], "")
        return ChatRequest.model_validate({"messages": SAY, "tools": tools, "tool_choice": wish})

    made = read(choice("required", "note"))
    assert [tool.function.name for tool in made.tools or ()] == ["note"] and made.tool_choice == "required"
    assert read(choice("auto", "weather", "note")).tool_choice == "auto"
    for wrong, words in (
        (choice("auto", "other"), "allows 'other'"),
        (choice("perhaps", "note"), "needs mode"),
        (choice("required"), "names no function"),
    ):
        with pytest.raises(ValueError if not flat else ApiError, match=words):
            read(wrong)


def test_past_calls_of_other_kinds_are_shown_as_calls_of_functions() -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"},
        {"type": "local_shell_call", "call_id": "2", "action": {"command": ["ls"]}},
    ]
    said = messages(as_items([*items, {"type": "web_search_call", "id": "3", "action": {"query": "q"}}]), None)
    calls = [call["function"] for each in said for call in each.get("tool_calls", ())]
    assert [call["name"] for call in calls] == ["patch", "local_shell"] and said[2]["content"] == "ok"
    assert json.loads(calls[0]["arguments"]) == {"input": "*** Begin"}


def test_websockets_are_refused_in_one_sentence(url: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    head = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "x" * 24,
    }
    connection.request("GET", "/v1/responses", headers=head)
    answer = connection.getresponse()
    assert answer.status == 405 and b"WebSockets are not served" in answer.read()


@pytest.mark.parametrize(
    "more",
    [
        {"seed": -1}, {"repeat_penalty": 1.1}, {"cache_prompt": True}, {"reasoning_effort": "low"},
        {"prediction": {"type": "content", "content": "x"}}, {"mirostat": 0, "typical_p": 1.0}, {"client_metadata": {}},
        {"messages": [*SAY, {"role": "assistant", "content": "b", "id": "1", "metadata": {}, "created_at": 3}, *SAY]},
        {"include_stop_str_in_output": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}]},
        {"messages": [*SAY, {"role": "assistant", "content": "b", "reasoning": "c"}, *SAY]},
        {"tools": [{"type": "function", "function": {"name": "a" * 79}}], "tool_choice": "none"},
        {"max_tokens": -1, "stop": ["a", "e", " "]}, {"service_tier": "flex"}, {"verbosity": "low"},
        {"messages": [*SAY, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *SAY]},
    ],
)  # fmt: skip
def test_what_changes_nothing_is_taken(url: str, more: dict[str, Any]) -> None:
    status, answer = post(url + "/v1/chat/completions", {"messages": SAY, "max_tokens": 2, **more})
    assert status == 200, answer


def test_what_is_unknown_is_let_go_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"messages": SAY, "mirostat": 2, "unheard": 1}
    with pytest.raises(ValueError, match="mirostat is not supported: this way of sampling"):
        ChatRequest.model_validate(body)
    monkeypatch.setattr(leniency, "on", True)
    assert ChatRequest.model_validate(body).messages
    with pytest.raises(ValueError, match="give the adapter's name as model"):
        ChatRequest.model_validate({**body, "lora": "sql"})


def test_a_stream_that_need_not_be_padded(url: str) -> None:
    wish = {"messages": SAY, "max_tokens": 2, "stream_options": {"include_obfuscation": False}}
    assert events(url + "/v1/chat/completions", wish)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [TOOL] * 2000}, "tools has"),
        ({"seed": -2}, "seed"),
        ({"cache_prompt": False}, "cache_prompt"),
        ({"prediction": 3}, "prediction"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(url: str, more: dict[str, Any], words: str) -> None:
    status, answer = post(url + "/v1/chat/completions", {"messages": SAY, "max_tokens": 2, **more})
    assert status == 400 and words in answer["error"]["message"] and "\n" not in answer["error"]["message"]


def test_an_upgrade_is_served_as_http_1() -> None:
    """Java's client offers h2c with its first request; the body is read all the same. (The clients' table runs it.)"""
    body = b'{"prompt": "a"}'
    head = [b"POST / HTTP/1.1", b"Host: x", b"Connection: Upgrade, HTTP2-Settings, keep-alive", b"Upgrade: h2c"]
    sent = b"\r\n".join([*head, b"HTTP2-Settings: AAMA", b"Content-Length: 15"]) + b"\r\n\r\n" + body
    plain = plain_head(sent)
    assert b"pgrade" not in plain and b"HTTP2" not in plain and plain.endswith(body) and b"Host: x" in plain
    assert b"Connection: keep-alive" in plain and plain_head(plain) == plain


def test_embeddings_have_a_default_pooling_that_is_told(url: str) -> None:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
    connection.request("POST", "/v1/embeddings", json.dumps({"input": "a"}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["x-paceline-pooling"] == "mean"


# -- Ollama's protocol -----------------------------------------------------------------------------------------------


def lines(url: str, body: Any) -> list[dict[str, Any]]:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
    connection.request("POST", at.path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.read().splitlines()]


def test_ollamas_chat_and_generate(url: str) -> None:
    ask = {"model": "demo:latest", "messages": SAY, "options": {"num_predict": 6, "temperature": 0, "num_ctx": 4096}}
    streamed = lines(url + "/api/chat", ask)
    whole = post(url + "/api/chat", {**ask, "stream": False})[1]
    assert "".join(each["message"]["content"] for each in streamed) == whole["message"]["content"] != ""
    assert streamed[-1]["done"] and streamed[-1]["eval_count"] == whole["eval_count"] == 6
    assert whole["done_reason"] == "length" and all(not each["done"] for each in streamed[:-1])
    raw = {"model": "demo", "prompt": "Tom has", "raw": True, "options": {"num_predict": 6, "temperature": 0}}
    completed = post(url + "/v1/completions", {"prompt": "Tom has", "max_tokens": 6, "temperature": 0})[1]
    assert "".join(each["response"] for each in lines(url + "/api/generate", raw)) == completed["choices"][0]["text"]


def test_ollamas_lists(url: str) -> None:
    assert send(url + "/api/tags")[1]["models"][0]["name"] == "demo"
    assert send(url + "/api/ps")[1]["models"][0]["name"] == "demo" and send(url + "/api/version")[1]["version"]
    assert "completion" in post(url + "/api/show", {"model": "demo"})[1]["capabilities"]
    vectors = post(url + "/api/embed", {"model": "demo", "input": ["a", "b"]})[1]["embeddings"]
    older = post(url + "/api/embeddings", {"model": "demo", "prompt": "a"})[1]["embedding"]
    assert len(vectors) == 2 and len(vectors[0]) == len(older)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "images"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, "images"),
        ("generate", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("generate", {"prompt": "a", "context": [1, 2]}, "context"),
        ("chat", {"messages": SAY, "options": {"unheard": 1}}, "unheard"),
        ("chat", {"messages": SAY, "options": {"mirostat": 1}}, "mirostat"),
        ("chat", {"messages": SAY, "format": "xml"}, "format"),
        ("embed", {}, "input"),
    ],
)
def test_ollamas_refusals_are_one_sentence(url: str, path: str, body: dict[str, Any], words: str) -> None:
    status, answer = post(f"{url}/api/{path}", {"model": "demo", **body})
    assert status == 400 and isinstance(answer["error"], str) and words in answer["error"]


def test_what_ollama_manages_is_not_served(url: str) -> None:
    status, answer = post(url + "/api/pull", {"model": "x"})
    assert status == 404 and "paceline pull" in answer["error"]
    assert post(url + "/api/chat", {"model": "other", "messages": SAY})[0] == 404
