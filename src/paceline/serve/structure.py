"""What form an answer must have: from response_format, tools and tool_choice to one grammar."""

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from paceline.core.grammar import Grammar
from paceline.serve import triggered as triggered_
from paceline.serve.errors import ApiError
from paceline.serve.protocol import ChatRequest, NamedChoice, Sampling, Tool
from paceline.serve.syntax import Syntax

CALL_LAYOUT = {"x-guidance": {"whitespace_pattern": " "}}
"""Layout of a call: at most one space between the parts of its JSON. Small models that indent it run into their limit
of tokens before it is whole."""
Choice = Literal["none", "auto", "required"]
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
"""The arguments of a function that takes none."""


def given_grammar(body: Sampling) -> Grammar | None:
    """The request's own grammar."""
    return None if body.grammar is None else Grammar(body.grammar.kind, body.grammar.text)


def chat_grammar(body: ChatRequest, syntax: Syntax | None = None) -> Grammar | None:
    """The one grammar of a chat request. Raises ApiError for two that exclude each other, and for what could be broken:
    a strict tool, or at most one call, where the model itself chooses."""
    choice, given = tool_choice(body), body.response_format
    sources = {
        "grammar": given_grammar(body),
        "response_format": None if given is None else of_format(body),
        "tool_choice": forced(body),
    }
    wanted = [name for name, grammar in sources.items() if grammar is not None]
    if choice == "auto" and wanted in ([], ["response_format"]):
        return of_choice(body, syntax)
    if wanted and choice == "auto":
        wanted.append("tools")
    if len(wanted) > 1:
        message = f"{wanted[0]} and {wanted[1]} both shape the whole answer; give one, or tool_choice none."
        raise ApiError(400, message, param=wanted[0])
    return sources[wanted[0]] if wanted else None


def of_choice(body: ChatRequest, syntax: Syntax | None) -> Grammar | None:
    """The grammar of an answer in which the model itself chooses whether to call: none where nothing is to be kept.
    Raises ApiError where the calls of the model are of no syntax that is known."""
    tools, wish = body.tools or [], body.response_format
    answer = None
    if wish is not None and of_format(body) is not None:
        answer = wish.json_schema.schema_ if wish.json_schema is not None else triggered_.ANY_OBJECT
    strict = any(tool.function.strict for tool in tools)
    if answer is None and not strict and body.parallel_tool_calls is not False:
        return None
    if syntax is None:
        message = "tools cannot be kept to a form: this model's calls are of no syntax that is known."
        raise ApiError(400, message, param="tools")
    return triggered_.triggered(syntax, tools, body.parallel_tool_calls is not False, answer)


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


def arguments(tool: Tool) -> Mapping[str, Any]:
    """The schema of a function's arguments; none given means none taken, as OpenAI has it."""
    return NO_ARGUMENTS if tool.function.parameters is None else tool.function.parameters


def call(name: str) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def moved(schema: Any, to: str) -> Any:
    """The schema with its references to itself rewritten for its new place in another one."""
    if isinstance(schema, list):
        return [moved(part, to) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own: Any = schema.get("$ref")
    refers = isinstance(own, str) and own.startswith("#")
    return {k: to + own[1:] if k == "$ref" and refers else moved(part, to) for k, part in schema.items()}
