"""What form an answer must have: from response_format, tools and tool_choice to one grammar."""

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from paceline.core.grammar import Grammar
from paceline.serve import harmony
from paceline.serve.errors import ApiError
from paceline.serve.protocol import ChatRequest, NamedChoice, Sampling
from paceline.serve.syntax import syntax_of
from paceline.serve.triggered import ANY_OBJECT, CALL_LAYOUT, NO_MARKS, arguments, channels, moved, triggered

Choice = Literal["none", "auto", "required"]


def given_grammar(body: Sampling) -> Grammar | None:
    """The request's own grammar."""
    return None if body.grammar is None else Grammar(body.grammar.kind, body.grammar.text)


def chat_grammar(body: ChatRequest, template: str = "", marks: Mapping[str, int] = NO_MARKS) -> Grammar | None:
    """The one grammar of a chat request. `template`: the chat template by whose signs calls are read; `marks`: ids of
    the model's special tokens by their texts. Raises ApiError for two that exclude each other, and for what could be
    broken: a strict tool, or at most one call, where the model itself chooses."""
    choice, given = tool_choice(body), body.response_format
    sources = {
        "grammar": given_grammar(body),
        "response_format": None if given is None else of_format(body),
        "tool_choice": forced(body),
    }
    wanted = [name for name, grammar in sources.items() if grammar is not None]
    if choice == "auto" and wanted in ([], ["response_format"]):
        return of_choice(body, template, marks)
    if wanted and choice == "auto":
        wanted.append("tools")
    if len(wanted) > 1:
        message = f"{wanted[0]} and {wanted[1]} both shape the whole answer; give one, or tool_choice none."
        raise ApiError(400, message, param=wanted[0])
    return sources[wanted[0]] if wanted else None


def of_choice(body: ChatRequest, template: str, marks: Mapping[str, int]) -> Grammar | None:
    """The grammar of an answer in which the model itself chooses whether to call: none where nothing is to be kept.
    Raises ApiError where the calls of the model are of no syntax that is known."""
    tools, wish = body.tools or [], body.response_format
    answer = None
    if wish is not None and of_format(body) is not None:
        answer = wish.json_schema.schema_ if wish.json_schema is not None else ANY_OBJECT
    channelled, strict = harmony.speaks(template), any(tool.function.strict for tool in tools)
    single = body.parallel_tool_calls is False and not channelled  # with channels a call ends the answer in any case
    if answer is None and not strict and not single:
        return None
    if channelled and all(mark in marks for mark in harmony.HARMONY_MARKS):
        return channels(tools, answer, marks)
    syntax = syntax_of(template)
    if syntax is None or channelled:
        message = "tools cannot be kept to a form: this model's calls are of no syntax that is known."
        raise ApiError(400, message, param="tools")
    return triggered(syntax, tools, not single, answer, marks)


def tool_choice(body: ChatRequest) -> Choice | NamedChoice:
    """Choice of the tool: by the model or by name. Raises ApiError for a choice without tools and for a name that is
    not among them."""
    names = [tool.function.name for tool in body.tools or ()]
    choice = body.tool_choice or ("auto" if names else "none")
    if len(set(names)) < len(names):
        raise ApiError(400, "tools has two functions of one name; give each its own.", param="tools")
    if choice != "none" and not names:
        raise ApiError(400, "tool_choice is given without tools; give tools.", param="tool_choice")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        message = f"tool_choice names {choice.function.name[:64]!r}, but tools has {', '.join(names)}."
        raise ApiError(400, message, param="tool_choice")
    return choice


def of_format(body: ChatRequest) -> Grammar | None:
    wish = body.response_format
    assert wish is not None
    if (wish.type == "json_schema") is not (wish.json_schema is not None):
        message = 'response_format needs json_schema exactly when its type is "json_schema".'
        raise ApiError(400, message, param="response_format")
    if wish.json_schema is not None:
        return Grammar("json_schema", orjson.dumps(wish.json_schema.schema_).decode())
    return Grammar("json_object") if wish.type == "json_object" else None


def forced(body: ChatRequest) -> Grammar | None:
    """The grammar of a call that must be made: of its arguments where one function is named, else of
    {"name": ..., "arguments": ...}."""
    choice, tools = tool_choice(body), body.tools or []
    if isinstance(choice, NamedChoice):
        named = next(tool for tool in tools if tool.function.name == choice.function.name)
        return Grammar("json_schema", orjson.dumps({**CALL_LAYOUT, **arguments(named)}).decode())
    if choice != "required":
        return None
    schema = {
        **CALL_LAYOUT,
        "$defs": {t.function.name: moved(arguments(t), f"#/$defs/{t.function.name}") for t in tools},
        "anyOf": [call(t.function.name) for t in tools],
    }
    return Grammar("json_schema", orjson.dumps(schema).decode())


def call(name: str) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
