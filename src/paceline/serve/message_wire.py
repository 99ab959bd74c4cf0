"""Requests of POST /v1/messages (Anthropic's API), and what they are as chat requests."""

from collections.abc import Sequence
from typing import Any, Literal

import orjson
from pydantic import Field

from paceline.serve.errors import ApiError
from paceline.serve.other_clients import NO_MEDIA
from paceline.serve.protocol import ChatRequest, Sampling
from paceline.serve.response_wire import validated, word
from paceline.serve.wire import Label, Loose, Shallow, Wire

Block = Shallow
THINKING = Literal["enabled", "adaptive", "disabled"]


class TextBlock(Wire):
    type: Literal["text"]
    text: str
    cache_control: Loose | None = None
    citations: list[Loose] | None = None


class MessageTurn(Wire):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block] = Field(description="a text or a list of blocks")


class Thinking(Wire):
    type: THINKING
    budget_tokens: int | None = Field(None, ge=1)
    display: str | None = None


class OutputFormat(Wire):
    type: Literal["json_schema"]
    schema_: Shallow = Field(alias="schema")


class OutputConfig(Wire):
    effort: str | None = None
    format: OutputFormat | None = None


class ToolWish(Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountRequest(Wire):
    """What a prompt is made of."""

    model: Label | None = Field(None, description="the name of the served model")
    messages: list[MessageTurn] = Field(
        min_length=1, description='a list of {"role": ..., "content": ...}, at least one'
    )
    system: str | list[TextBlock] | None = Field(None, description="a text or a list of text blocks")
    tools: list[Shallow] | None = Field(
        None, max_length=128, description='a list of {"name": ..., "input_schema": ...}, 128 at most'
    )
    tool_choice: ToolWish | None = Field(None, description='{"type": "auto", "any", "tool" (with name) or "none"}')
    thinking: Thinking | None = Field(
        None, description='{"type": "enabled" or "disabled"}; a hint, read by chat templates that know enable_thinking'
    )
    chat_template_kwargs: Shallow | None = Field(None, description="variables of the model's chat template")
    cache_control: Loose | None = Field(None, description='{"type": "ephemeral"}: the prompt comes back (eviction)')
    output_config: OutputConfig | None = Field(
        None, description='{"format": {"type": "json_schema", "schema": ...}}; "effort" is a hint without effect'
    )
    output_format: OutputFormat | None = Field(None, description="`format` of output_config, as older clients send it")
    context_management: Shallow | None = Field(None, description="an object without edits")
    mcp_servers: list[Loose] | None = Field(None, max_length=0, description="an empty list: no server is asked")
    inference_geo: Label | None = Field(None, description="a text (a label)")
    speed: Literal["standard"] | None = Field(None, description='"standard"')


class MessagesRequest(Sampling, CountRequest):
    """Anthropic's parameters, and those of this server's other end points that shape the text."""

    max_tokens: int = Field(ge=1, description="a whole number >= 1")
    stop_sequences: list[str] | None = Field(None, max_length=16, description="a list of texts, 16 at most")
    metadata: Shallow | None = Field(None, description='{"user_id": text} (a label)')
    service_tier: Literal["auto", "standard_only"] | None = Field(None, description='"auto" or "standard_only"')


def as_chat(body: CountRequest, template: str) -> ChatRequest:
    """Chat request for the body of a messages or count request. `template`: the model's chat template. Raises ApiError
    for fields that are not supported."""
    if any(not keeps_all(edit) for edit in (body.context_management or {}).get("edits") or ()):
        message = (
            "context_management has edits, but nothing is taken out of prompts here; leave out all but clear_thinking "
            "with keep all."
        )
        raise ApiError(400, message, param="context_management")
    wish: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        given = {name: getattr(body, name) for name in Sampling.model_fields if name in body.model_fields_set}
        for name in ("model", "stream_options", "n"):
            if name != "model" and given.pop(name, None) not in (None, 1):
                raise ApiError(400, f"{name} belongs to another endpoint; leave it out.", param=name)
        given.pop("model", None)
        wish = {name: value.model_dump() if isinstance(value, Wire) else value for name, value in given.items()}
        wish |= {"stop": body.stop_sequences or None, "include_stop": bool(body.stop_sequences)}
    conversation = messages(body)
    last = conversation[-1]
    prefill = last["role"] == "assistant" and not last.get("tool_calls")
    kwargs = {**thinking(body.thinking, template), **(body.chat_template_kwargs or {})}
    form = body.output_config and body.output_config.format
    if form is not None and body.output_format is not None:
        raise ApiError(400, "output_format and output_config both give a form; give one.", param="output_format")
    form = form or body.output_format
    return validated(
        ChatRequest,
        {
            **wish,
            "response_format": form
            and {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema_}},
            "messages": conversation,
            "tools": [tool(each, i) for i, each in enumerate(body.tools or ())] or None,
            "continue_final_message": prefill or None,
            "chat_template_kwargs": kwargs or None,
            **choice(body.tool_choice, body.tools or ()),
        },
    )


PLAIN_TOOL = {"defer_loading": False, "allowed_callers": ["direct"]}
"""Fields of a tool with the values that say nothing new: it is shown from the beginning, and the model calls it."""


def keeps_all(edit: Any) -> bool:
    """An edit that takes nothing out of the prompt."""
    return isinstance(edit, dict) and str(edit.get("type")).startswith("clear_thinking") and edit.get("keep") == "all"


def tool(given: dict[str, Any], place: int) -> dict[str, Any]:
    """A tool as the chat API writes it: a function, or one that runs elsewhere and is left out there."""
    where = f"tools[{place}]"
    if not isinstance(given.get("type"), str | None):
        raise ApiError(400, f"{where} has a type that is no text; leave it out for a function.", param=where)
    if kind(given) != "function":
        return {"type": kind(given)}
    known = {"type", "name", "description", "input_schema", "cache_control", "strict", "eager_input_streaming",
             "input_examples"}  # fmt: skip
    for name, plain in PLAIN_TOOL.items():
        known |= {name} if given.get(name) == plain else set()
    if extra := sorted(given.keys() - known):
        raise ApiError(400, f"{where} has the unknown field {extra[0][:60]!r}; remove it.", param=where)
    schema = given.get("input_schema")
    said = given.get("description")
    if given.get("input_examples") and isinstance(said, str | None):
        said = f"{said or ''}\nExamples of arguments: {orjson.dumps(given['input_examples']).decode()}".strip()
    function = {"name": given.get("name"), "description": said, "strict": given.get("strict")}
    return {"type": "function", "function": {**function, "parameters": schema}}


def kind(tool: dict[str, Any]) -> str:
    """Type of a tool in the chat API."""
    given = tool.get("type")
    return given if isinstance(given, str) and given != "custom" else "function"


def choice(given: ToolWish | None, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`tool_choice` and `parallel_tool_calls` of the chat API."""
    if given is None:
        return {}
    if (given.type == "tool") is not (given.name is not None):
        raise ApiError(400, 'tool_choice needs a name exactly when its type is "tool".', param="tool_choice")
    its_kind = next((kind(each) for each in tools if each.get("name") == given.name), "function")
    named = {"type": its_kind, "function": {"name": given.name}}
    chosen = {"auto": "auto", "any": "required", "none": "none", "tool": named}[given.type]
    return {"tool_choice": chosen, "parallel_tool_calls": False if given.disable_parallel_tool_use else None}


def thinking(wish: Thinking | None, template: str) -> dict[str, Any]:
    return {} if wish is None or "enable_thinking" not in template else {"enable_thinking": wish.type != "disabled"}


# -- messages --------------------------------------------------------------------------------------------------------


def messages(body: CountRequest) -> list[dict[str, Any]]:
    """The conversation as messages of the chat API; a tool's results become messages of their own, before the text."""
    found: list[dict[str, Any]] = []
    if body.system is not None:
        system = body.system if isinstance(body.system, str) else "\n".join(block.text for block in body.system)
        found.append({"role": "system", "content": system})
    for place, turn in enumerate(body.messages):
        where = f"messages[{place}].content"
        if isinstance(turn.content, str):
            found.append({"role": turn.role, "content": turn.content})
        elif turn.role == "assistant":
            found.append(answered(turn.content, where))
        else:
            found.extend(asked(turn.role, turn.content, where))
    return found


def answered(blocks: list[Block], where: str) -> dict[str, Any]:
    """A past answer: its text, what it thought, and the tools that it used."""
    said, thought, calls = [], [], []
    for i, block in enumerate(blocks):
        match block.get("type"):
            case "text":
                said.append(word(block, "text", f"{where}[{i}]"))
            case "thinking":
                thought.append(word(block, "thinking", f"{where}[{i}]"))
            case "redacted_thinking":
                pass  # no model behind this server made it, none can read it
            case "tool_use":
                arguments = block.get("input")
                if not isinstance(arguments, dict):
                    raise ApiError(400, f"{where}[{i}].input must be an object; give it.", param=where)
                function = {"name": word(block, "name", where), "arguments": orjson.dumps(arguments).decode()}
                calls.append({"id": word(block, "id", where), "type": "function", "function": function})
            case kind:
                raise unserved(kind, f"{where}[{i}]")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(said) if said or not calls else None}
    if thought:
        message["reasoning_content"] = "\n".join(thought)
    return {**message, "tool_calls": calls} if calls else message


def asked(role: str, blocks: list[Block], where: str) -> list[dict[str, Any]]:
    results, said = [], []
    for i, block in enumerate(blocks):
        match block.get("type"):
            case "text":
                said.append(word(block, "text", f"{where}[{i}]"))
            case "tool_result":
                result = content(block.get("content"), f"{where}[{i}]")
                results.append({"role": "tool", "tool_call_id": word(block, "tool_use_id", where), "content": result})
            case kind:
                raise unserved(kind, f"{where}[{i}]")
    return [*results, *([{"role": role, "content": "\n".join(said)}] if said or not results else [])]


def content(given: Any, where: str) -> str:
    """The text of a tool's result."""
    if given is None or isinstance(given, str):
        return given or ""
    parts = given if isinstance(given, list) else [given]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise unserved(part.get("type") if isinstance(part, dict) else part, where)
    return "\n".join(word(part, "text", where) for part in parts)


def unserved(kind: object, where: str) -> ApiError:
    return ApiError(400, f"{where} is of type {str(kind)[:40]!r}, which is not served: {NO_MEDIA}.", param=where)
