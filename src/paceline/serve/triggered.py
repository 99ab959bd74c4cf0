"""Grammars that begin in the middle of an answer: free text, then a tool call that keeps to its schema.

    head[lazy]: TEXT "<tool_call>"      as much text as the model likes, up to the first marker
    call: head object close             from there on the call, by the schemas of the functions

A strict function keeps its arguments; without parallel calls the answer ends with its first call. With
`response_format` the text is an answer of that form in place of a call.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.grammar import JSON_LAYOUT, Grammar
from paceline.serve.protocol import Tool
from paceline.serve.syntax import Syntax

TEXT = r"/(.|\n)*/"
SPACE = r"/([ \n]|\n\n)?/"
"""Between the parts of a call. A model that may go on with white space for ever sometimes does."""
ANY_OBJECT = {"type": "object"}
LAYOUT = {"x-guidance": JSON_LAYOUT}


def triggered(syntax: Syntax, tools: Sequence[Tool], parallel: bool, answer: Mapping[str, Any] | None) -> Grammar:
    """The grammar of an answer with tools that the model may call. `answer`: the schema of the text, where it has
    one."""
    head = json.dumps(syntax.marker)
    calls = {"tagged": tagged, "list": listed, "chain": chained}[syntax.form](syntax, parallel)
    start = (
        "start: calls | answer\nanswer: %json " + json.dumps({**LAYOUT, **answer}) if answer else "start: calls | TEXT"
    )
    trigger = f"head: {head}" if answer else f"head[lazy]: TEXT {head}"
    names = " | ".join(f"call_{at}" for at in range(len(tools)))
    bodies = "\n".join(f"call_{at}: %json {json.dumps(body(tool, syntax))}" for at, tool in enumerate(tools))
    lines = [start, trigger, calls, f"object: {names}", bodies, f"SPACE: {SPACE}", f"TEXT: {TEXT}"]
    return Grammar("lark", "\n".join(lines) + "\n")


def tagged(syntax: Syntax, parallel: bool) -> str:
    close = json.dumps(syntax.close)
    more = f" (SPACE {json.dumps(syntax.marker)} SPACE object SPACE {close})*" if parallel else ""
    return f"calls: head SPACE object SPACE {close}{more}"


def listed(syntax: Syntax, parallel: bool) -> str:
    more = ' (SPACE "," SPACE object)*' if parallel else ""
    return f'calls: head SPACE "[" SPACE object{more} SPACE "]"'


def chained(syntax: Syntax, parallel: bool) -> str:
    more = ' (SPACE ";" SPACE object)*' if parallel else ""
    return f"calls: head SPACE object{more}"


def body(tool: Tool, syntax: Syntax) -> dict[str, Any]:
    """The schema of one call. Arguments of a function that is not strict may be any object."""
    from paceline.serve.structure import CALL_LAYOUT, arguments, moved

    strict, name = tool.function.strict, tool.function.name
    key = "parameters" if syntax.name == "llama" else "arguments"
    given = moved(arguments(tool), f"#/$defs/{name}") if strict else ANY_OBJECT
    return {
        **CALL_LAYOUT,
        "$defs": {name: given},
        "type": "object",
        "properties": {"name": {"const": name}, key: {"$ref": f"#/$defs/{name}"}},
        "required": ["name", key],
        "additionalProperties": False,
    }


FALLBACK_MARK = "<tool_call>"
"""Marker that a model writes whose own chat template has no place for tools."""


def described(tools: Sequence[Tool]) -> str:
    """Functions in words, for the system message of a model whose chat template shows none."""
    functions = "\n".join(json.dumps(tool.model_dump(exclude_none=True)["function"]) for tool in tools)
    return (
        f"You may call these functions:\n{functions}\n"
        'To call one, answer with <tool_call>{"name": NAME, "arguments": {...}}</tool_call> and nothing after it.'
    )


def without_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools: functions in the system message, calls and results as text."""
    made: list[dict[str, Any]] = []
    for message in messages:
        text = str(message.get("content") or "")
        if message["role"] == "tool":
            text, role = f"<tool_response>\n{text}\n</tool_response>", "user"
        else:
            role = str(message["role"])
            written = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
            text = "\n".join([*([text] if text else []), *(f"<tool_call>{call}</tool_call>" for call in written)])
        if made and made[-1]["role"] == role == "user":
            made[-1]["content"] += f"\n{text}"
        else:
            made.append({"role": role, "content": text})
    told = described(tools)
    if made and made[0]["role"] == "system":
        made[0]["content"] = f"{made[0]['content']}\n\n{told}".strip()
        return made
    return [{"role": "system", "content": told}, *made]
