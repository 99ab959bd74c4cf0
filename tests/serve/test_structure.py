"""One grammar from response_format, tools and tool_choice; two that exclude each other are refused by name."""

import json
from typing import Any

import pytest

from paceline.serve.errors import ApiError
from paceline.serve.protocol import ChatRequest
from paceline.serve.structure import chat_grammar, tool_choice
from paceline.serve.syntax import SYNTAXES
from paceline.serve.triggered import CALL_LAYOUT, moved

MESSAGES = [{"role": "user", "content": "x"}]
NESTED = {"$defs": {"P": {"type": "object"}}, "properties": {"p": {"$ref": "#/$defs/P"}, "all": {"$ref": "#"}}}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def body(**more: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": MESSAGES, **more})


def test_formats() -> None:
    assert chat_grammar(body()) is None
    assert chat_grammar(body(response_format={"type": "text"})) is None
    assert chat_grammar(body(response_format={"type": "json_object"})).kind == "json_object"  # type: ignore[union-attr]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = chat_grammar(body(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}))
    assert made is not None and json.loads(made.text) == schema
    made = chat_grammar(body(grammar={"kind": "regex", "text": "a+"}))
    assert made is not None and (made.kind, made.text) == ("regex", "a+")


def test_a_named_function_asks_for_its_arguments() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    choice = {"type": "function", "function": {"name": "g"}}
    made = chat_grammar(body(tools=[tool("f"), tool("g", parameters=schema)], tool_choice=choice))
    assert made is not None and json.loads(made.text) == {**CALL_LAYOUT, **schema}
    made = chat_grammar(body(tools=[tool("g")], tool_choice=choice))
    assert made is not None and json.loads(made.text)["additionalProperties"] is False


def test_a_required_call_is_one_of_the_functions() -> None:
    made = chat_grammar(body(tools=[tool("f"), tool("g", parameters=NESTED)], tool_choice="required"))
    assert made is not None
    schema = json.loads(made.text)
    assert [c["properties"]["name"]["const"] for c in schema["anyOf"]] == ["f", "g"]
    assert schema["$defs"]["g"]["properties"]["p"]["$ref"] == "#/$defs/g/$defs/P"


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral"])
@pytest.mark.parametrize("way", ["required", "named", "strict", "single"])
def test_a_call_spends_no_tokens_on_its_layout(way: str, name: str) -> None:
    """Every form in which a call is kept to a grammar: a space between its parts, no indentation, no endless space."""
    from llguidance import LLMatcher, LLTokenizer

    syntax = next(it for it in SYNTAXES if it.name == name)
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    key = "parameters" if name == "llama" and way in ("strict", "single") else "arguments"
    more: dict[str, Any] = {
        "required": {"tool_choice": "required"},
        "named": {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        "strict": {},
        "single": {"parallel_tool_calls": False},
    }[way]
    made = chat_grammar(body(tools=[tool("f", parameters=schema, strict=way == "strict")], **more), syntax.signs[0])
    assert made is not None
    tokens = LLTokenizer("byte")

    def takes(gap: str) -> bool:
        call = (
            f'{{{gap}"a":{gap}1}}' if way == "named" else f'{{"name":{gap}"f",{gap}"{key}":{gap}{{{gap}"a":{gap}1}}}}'
        )
        if way in ("strict", "single"):
            call = {"tagged": f"{syntax.marker}{call}{syntax.close}", "list": f"{syntax.marker}[{call}]"}.get(
                syntax.form, f"{syntax.marker}{call}"
            )
        matcher = LLMatcher(tokens, made.source())
        return bool(matcher.consume_tokens(tokens.tokenize_str(call)) and matcher.is_accepting())

    assert takes("") and takes(" ")
    assert not takes("  ") and not takes("\n  ")


def test_references_move_with_their_schema() -> None:
    assert moved(NESTED, "#/x")["properties"] == {"p": {"$ref": "#/x/$defs/P"}, "all": {"$ref": "#/x"}}
    assert moved({"$ref": "https://example.org"}, "#/x") == {"$ref": "https://example.org"}


def test_who_chooses() -> None:
    assert tool_choice(body()) == "none"
    assert tool_choice(body(tools=[tool("f")])) == "auto"
    assert tool_choice(body(tools=[tool("f")], tool_choice="none")) == "none"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"grammar": {"kind": "json_object"}, "response_format": {"type": "json_object"}},
            "grammar and response_format",
        ),
        ({"tools": [tool("f")], "response_format": {"type": "json_object"}}, "no syntax that is known"),
        (
            {"tools": [tool("f")], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format and tool_choice",
        ),
        ({"tools": [tool("f", strict=True)]}, "no syntax that is known"),
        ({"tools": [tool("f")], "parallel_tool_calls": False}, "no syntax that is known"),
        ({"tool_choice": "auto"}, "without tools"),
        ({"tools": [tool("f"), tool("f")]}, "one name"),
    ],
)
def test_what_cannot_be_held_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        chat_grammar(body(**more))
    assert caught.value.status == 400
