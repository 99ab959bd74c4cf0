"""Grammars that begin in the middle of an answer: free text, then a tool call that keeps to its schema.

    head[lazy]: TEXT "<tool_call>"      as much text as the model likes, up to the first marker
    call: head object close             from there on the call, by the schemas of the functions

A marker that is one special token of the model is written as that token, <[ID]>, and free text holds none.
A strict function keeps its arguments; without parallel calls the answer ends with its first call. With
`response_format` the text is an answer of that form in place of a call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.grammar import JSON_LAYOUT, Grammar
from paceline.serve import harmony
from paceline.serve.protocol import Tool
from paceline.serve.syntax import Syntax

TEXT = r"/(.|\n)*/"
SPACE = r"/([ \n]|\n\n)?/"
"""Between the parts of a call. A model that may go on with white space for ever sometimes does."""
ANY_OBJECT = {"type": "object"}
NO_MARKS: Mapping[str, int] = {}
LAYOUT = {"x-guidance": JSON_LAYOUT}
CALL_LAYOUT = {"x-guidance": {"whitespace_pattern": " "}}
"""Layout of a call: at most one space between the parts of its JSON. Small models that indent it run into their limit
of tokens before it is whole."""
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
"""The arguments of a function that takes none."""


def written(marker: str, marks: Mapping[str, int]) -> str:
    """A marker in a grammar: the special token with this text where there is one, else the text."""
    return f"<[{marks[marker]}]>" if marker in marks else json.dumps(marker)


def triggered(
    syntax: Syntax,
    tools: Sequence[Tool],
    parallel: bool,
    answer: Mapping[str, Any] | None,
    marks: Mapping[str, int] = NO_MARKS,
) -> Grammar:
    """The grammar of an answer with tools that the model may call. `answer`: the schema of the text, where it has
    one. `marks`: the special tokens of the model."""
    head, lazy = written(syntax.marker, marks), "" if syntax.marker in marks else "[lazy]"
    objects, text = {"tagged": tagged, "list": listed, "chain": chained}[syntax.form](syntax, parallel, marks), "TEXT"
    starts, texts = [f"head {objects}"], [f"TEXT: {TEXT}"]
    if syntax.bare:  # a call that is read without its marker keeps to the schema, too
        text, bare = "OTHER", re.escape(syntax.bare)
        starts.append(objects)
        texts += ["OTHER: TEXT & ~BARE", rf"BARE: /((.|\n)*<\/think>)?[ \t\r\n]*{bare}(.|\n)*/"]
    trigger = f"head: {head}" if answer else f"head{lazy}: {text} {head}"
    starts.append("answer" if answer else text)
    names = " | ".join(f"call_{at}" for at in range(len(tools)))
    bodies = [f"call_{at}: %json {json.dumps(body(tool, syntax))}" for at, tool in enumerate(tools)]
    lines = [
        f"start: {' | '.join(starts)}", *([formed(answer)] if answer else []), trigger, f"object: {names}", *bodies,
        f"SPACE: {SPACE}", *texts,
    ]  # fmt: skip
    return Grammar("lark", "\n".join(lines) + "\n")


def formed(answer: Mapping[str, Any]) -> str:
    return "answer: %json " + json.dumps({**LAYOUT, **answer})


def tagged(syntax: Syntax, parallel: bool, marks: Mapping[str, int]) -> str:
    marker, close = written(syntax.marker, marks), written(syntax.close, marks)
    more = f" (SPACE {marker} SPACE object SPACE {close})*" if parallel else ""
    return f"SPACE object SPACE {close}{more}"


def listed(syntax: Syntax, parallel: bool, marks: Mapping[str, int]) -> str:
    more = ' (SPACE "," SPACE object)*' if parallel else ""
    return f'SPACE "[" SPACE object{more} SPACE "]"'


def chained(syntax: Syntax, parallel: bool, marks: Mapping[str, int]) -> str:
    more = ' (SPACE ";" SPACE object)*' if parallel else ""
    return f"SPACE object{more}"


def channels(tools: Sequence[Tool], answer: Mapping[str, Any] | None, marks: Mapping[str, int]) -> Grammar:
    """The grammar of an answer in harmony's form: reasoning and commentary, then one call or the final message.
    `answer`: the schema of the final message, where it has one. `marks` has all of `harmony.HARMONY_MARKS`."""
    start, channel, message, constrain, end = (written(mark, marks) for mark in harmony.HARMONY_MARKS)
    calls = list[str]()
    for at, tool in enumerate(tools):
        to = f"to={harmony.FUNCTION_PREFIX}{tool.function.name}"
        first = f"{channel} {json.dumps(f'commentary {to} ')} {constrain}"
        second = f"{json.dumps(f' {to}')} {channel} {json.dumps('commentary ')} {constrain}?"
        calls.append(f'call_{at}: ({first} | {second}) "json" {message} arguments_{at}')
        given = arguments(tool) if tool.function.strict else ANY_OBJECT
        calls.append(f"arguments_{at}: %json {json.dumps({**CALL_LAYOUT, **given})}")
    lines = [
        f'start: (said {end} {start} "assistant")* (last | {" | ".join(f"call_{at}" for at in range(len(tools)))})',
        f'said: {channel} ("analysis" | "commentary") {message} TEXT',
        f'last: {channel} "final" (" " {constrain} "json")? {message} {"answer" if answer else "TEXT"}',
        *([formed(answer)] if answer else []), *calls, f"TEXT: {TEXT}",
    ]  # fmt: skip
    return Grammar("lark", "\n".join(lines) + "\n")


def body(tool: Tool, syntax: Syntax) -> dict[str, Any]:
    """The schema of one call. Arguments of a function that is not strict may be any object."""
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


def arguments(tool: Tool) -> Mapping[str, Any]:
    """The schema of a function's arguments; none given means none taken, as OpenAI has it."""
    return NO_ARGUMENTS if tool.function.parameters is None else tool.function.parameters


def moved(schema: Any, to: str) -> Any:
    """The schema with its references to itself rewritten for its new place in another one."""
    if isinstance(schema, list):
        return [moved(part, to) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own: Any = schema.get("$ref")
    refers = isinstance(own, str) and own.startswith("#")
    return {k: to + own[1:] if k == "$ref" and refers else moved(part, to) for k, part in schema.items()}


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
