"""Requests of POST /v1/responses, and what they are as chat requests: one engine, one set of rules behind both."""

from typing import Any, Literal, TypeVar

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from paceline.serve.errors import ApiError
from paceline.serve.other_clients import NO_MEDIA, other_kinds, permitted
from paceline.serve.protocol import ChatRequest, Sampling
from paceline.serve.wire import MAX_LABEL_CHARS, Shallow, Wire

ROLES = ("system", "developer", "user", "assistant")
TEXT_PART_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
LOGPROBS = "message.output_text.logprobs"
INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
OTHERS_INCLUDED = (
    "file_search_call",
    "web_search_call",
    "computer_call_output",
    "code_interpreter_call",
    "message.input_image",
)
"""What clients ask to include along with tools that are not served: there is none of it."""
PAST_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
PAST_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
Item = Shallow
Made = TypeVar("Made", bound=BaseModel)


class ResponseStreamOptions(Wire):
    include_obfuscation: bool | None = None


class TextFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Shallow | None = Field(None, alias="schema")
    strict: bool | None = None


class TextWish(Wire):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class EffortWish(Wire):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed", "none"] | None = None


class ConversationName(Wire):
    id: str


class ResponsesRequest(Sampling):
    """OpenAI's parameters, and those of this server's other end points that shape the text."""

    input: str | list[Item] = Field(description="a text or a list of items, at least one", min_length=1)
    instructions: str | None = Field(None, description="a text: the system message of this turn")
    previous_response_id: str | None = Field(None, description="the id of an answer that was stored")
    conversation: str | ConversationName | None = Field(
        None, description="the id of a conversation (POST /v1/conversations), which this turn and its answer join"
    )
    store: bool | None = Field(None, description="true (the default): keep the answer for previous_response_id")
    stream_options: ResponseStreamOptions | None = Field(  # type: ignore[assignment]
        None, description='{"include_obfuscation": false}, with stream'
    )
    max_output_tokens: int | None = Field(None, ge=1, description="a whole number >= 1")
    max_tool_calls: int | None = Field(
        None, ge=1, description="a whole number >= 1 (of built-in tools; there are none)"
    )
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")
    tools: list[Shallow] | None = Field(
        None, max_length=128, description='a list of {"type": "function", "name": ..., "parameters": ...}, 128 at most'
    )
    tool_choice: str | Shallow | None = Field(
        None, description='"none", "auto", "required" or {"type": "function", "name": NAME}'
    )
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    text: TextWish | None = Field(None, description='{"format": {"type": "text", "json_object" or "json_schema", ...}}')
    reasoning: EffortWish | None = Field(
        None,
        description='{"effort": ...}; a hint, read by chat templates that know reasoning_effort or enable_thinking',
    )
    include: list[str] | None = Field(None, description=f"a list of {' and '.join(INCLUDES)}")
    truncation: Literal["disabled", "auto"] | None = Field(None, description='"disabled"')
    background: bool | None = Field(None, description="false")
    metadata: dict[str, str] | None = Field(None, max_length=16, description="texts by name, which come back")
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = Field(
        None, description='"auto", "default", "flex", "priority" or "scale" (a label)'
    )
    safety_identifier: str | None = Field(None, description="a text (a label)")
    chat_template_kwargs: Shallow | None = Field(None, description="variables of the model's chat template")


def as_chat(body: ResponsesRequest, items: list[Item], template: str) -> ChatRequest:
    """Chat request for the body of a responses request. `items`: the whole conversation. `template`: the model's chat
    template. Raises ApiError for fields that are not supported."""
    check(body)
    tools, wish = allowed(body)
    given = {name: getattr(body, name) for name in Sampling.model_fields if name in body.model_fields_set}
    for name in ("model", "stream", "stream_options", "n", "max_tokens"):
        given.pop(name, None)
    chat: dict[str, Any] = {
        **{name: value.model_dump() if isinstance(value, Wire) else value for name, value in given.items()},
        "stream": bool(body.stream),
        "max_tokens": body.max_output_tokens,
        "messages": one_system(messages(items, body.instructions)),
        "tools": [tool(each) for each in tools if each.get("type") == "function"] or None,
        "tool_choice": choice(wish) if functions(tools, wish) else None,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": None if body.text is None else form(body.text),
        "chat_template_kwargs": {**thinking(body.reasoning, template), **(body.chat_template_kwargs or {})} or None,
    }
    if said := body.previous_response_id or conversation_id(body) or ("stored" if body.store else None):
        chat.setdefault("prompt_cache_key", said)  # the client says that it goes on
    if LOGPROBS in (body.include or ()) or body.top_logprobs:
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return validated(ChatRequest, chat)


def conversation_id(body: ResponsesRequest) -> str | None:
    """Conversation that a request is a turn of; None: none. ApiError for one that goes on in two ways."""
    given = body.conversation
    if given is not None and body.previous_response_id is not None:
        message = "conversation and previous_response_id both say what was said before; give one of them."
        raise ApiError(400, message, param="conversation")
    return given.id if isinstance(given, ConversationName) else given


def validated(model: type[Made], values: dict[str, Any]) -> Made:
    """A request of the server's own from its fields; a fault in them is the client's."""
    try:
        return model.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def check(body: ResponsesRequest) -> None:
    """What the protocol has and this server has not."""
    if body.background:
        raise ApiError(
            400, "background is true, but answers are made while one waits; stream them.", param="background"
        )
    if body.truncation == "auto":
        raise ApiError(400, "truncation is 'auto', but nothing is dropped here; use 'disabled'.", param="truncation")
    if body.max_tokens is not None:
        raise ApiError(400, "max_tokens belongs to another endpoint; give max_output_tokens.", param="max_tokens")
    if body.n not in (None, 1):
        raise ApiError(400, f"n is {body.n}, but a response is one answer; leave it out.", param="n")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        message = "stream_options has include_obfuscation, but nothing is padded here; leave it out."
        raise ApiError(400, message, param="stream_options")
    for name in body.include or ():
        if name not in INCLUDES and not name.startswith(tuple(f"{kind}." for kind in OTHERS_INCLUDED)):
            message = f"include has {name[:60]!r}, but only {' and '.join(INCLUDES)} can be included."
            raise ApiError(400, message, param="include")


def allowed(body: ResponsesRequest) -> tuple[list[Item], Any]:
    """Tools that may be called, and the choice among them."""
    try:
        tools, wish = permitted(body.tools or [], body.tool_choice)
    except ValueError as error:
        raise ApiError(400, str(error), param="tool_choice") from None
    return tools, wish


def functions(tools: list[Item], wish: Any) -> bool:
    """Whether any tool is a function. Raises ApiError for a choice of one that is none."""
    kinds = [str(each.get("type"))[:40] for each in tools]
    if isinstance(wish, dict) and wish.get("type") != "function":
        message = f"tool_choice names a tool of type {str(wish.get('type'))[:40]!r}, but only functions are served."
        raise ApiError(400, message, param="tool_choice")
    if wish == "required" and kinds and "function" not in kinds:
        message = f"tool_choice is required, but the tools are of type {kinds[0]!r}, and only functions are served."
        raise ApiError(400, message, param="tool_choice")
    return "function" in kinds or (wish not in (None, "auto", "none") and not kinds)


def left_out(body: ResponsesRequest) -> str:
    """Kinds of the tools that are not served and that the model is not shown."""
    return other_kinds(body.tools or ())


def one_system(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with those of the system at the beginning made one: most chat templates take one."""
    count = next((at for at, each in enumerate(found) if each["role"] not in ("system", "developer")), len(found))
    if count < 2:
        return found
    return [
        {"role": found[0]["role"], "content": "\n\n".join(each["content"] for each in found[:count])},
        *found[count:],
    ]


def tool(given: dict[str, Any]) -> dict[str, Any]:
    """A function as the chat API writes it."""
    return {"type": "function", "function": {name: value for name, value in given.items() if name != "type"}}


def choice(given: str | dict[str, Any] | None) -> Any:
    if isinstance(given, dict) and given.get("type") == "function" and given.keys() == {"type", "name"}:
        return {"type": "function", "function": {"name": given["name"]}}
    if given is not None and given not in ("none", "auto", "required"):
        message = 'tool_choice must be "none", "auto", "required" or {"type": "function", "name": NAME}.'
        raise ApiError(400, message, param="tool_choice")
    return given


def form(wish: TextWish) -> dict[str, Any] | None:
    """`response_format` of the chat API."""
    if wish.format is None:
        return None
    if wish.format.type != "json_schema":
        return {"type": wish.format.type}
    if wish.format.schema_ is None:
        raise ApiError(400, "text.format needs schema when its type is json_schema; give it.", param="text")
    return {"type": "json_schema", "json_schema": {"name": wish.format.name, "schema": wish.format.schema_}}


def thinking(wish: EffortWish | None, template: str) -> dict[str, Any]:
    """What a chat template reads of the effort; nothing where it reads nothing."""
    if wish is None or wish.effort is None:
        return {}
    if "reasoning_effort" in template:
        return {"reasoning_effort": wish.effort}
    return {"enable_thinking": wish.effort != "none"} if "enable_thinking" in template else {}


# -- items -----------------------------------------------------------------------------------------------------------


READ: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "reasoning": ("content", "summary"),
    "function_call": ("name", "arguments", "call_id"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "local_shell_call": ("call_id", "action"),
    "local_shell_call_output": ("call_id", "output"),
}
"""Fields that are read from an item of each type, in addition to its type, id and status."""


def as_items(given: str | list[Item]) -> list[Item]:
    """The input as items, with the fields alone that are read: others are not kept."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else [*map(known, given)]


def known(item: Item) -> Item:
    kind = item.get("type") or "message"
    names = READ.get(kind, ()) if isinstance(kind, str) else ()
    labels = {name: label for name in ("id", "status") if isinstance(label := item.get(name), str)}
    made = {"type": kind, **{name: label for name, label in labels.items() if len(label) <= MAX_LABEL_CHARS}}
    made |= {name: parts(item[name]) for name in names if item.get(name) is not None}
    if kind == "reasoning" and made.get("content"):
        made.pop("summary", None)  # nobody reads it next to the content
    return made


def parts(content: Any) -> Any:
    """A content, of whose parts the fields are left that are read."""
    if not isinstance(content, list):
        return content
    return [
        {name: part[name] for name in ("type", "text", "refusal") if name in part} if isinstance(part, dict) else part
        for part in content
    ]


def messages(items: list[Item], instructions: str | None) -> list[dict[str, Any]]:
    """Items as the messages of the chat API: reasoning, text and calls of one turn become one message."""
    found: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    thought = ""
    for place, item in enumerate(items):
        kind, where = item.get("type") or "message", f"input[{place}]"
        if kind == "reasoning":
            thought += text(item.get("content") or item.get("summary") or "", where)
        elif kind in PAST_CALLS:
            name, arguments = called(item, where)
            id, function = word(item, "call_id", where), {"name": name, "arguments": arguments}
            call = {"id": id, "type": "function", "function": function}
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind in PAST_OUTPUTS:
            id = word(item, "call_id", where)
            found.append({"role": "tool", "tool_call_id": id, "content": text(item.get("output"), where)})
        elif kind == "web_search_call":
            pass  # that a search was made; what it found is in no item
        elif kind == "message":
            found.append({"role": role(item, where), "content": text(item.get("content"), where)})
        else:
            message = f"{where} is of type {str(kind)[:40]!r}, but messages, reasoning and function calls are served."
            raise ApiError(400, message, param=where)
        if thought and found and found[-1]["role"] == "assistant" and kind != "reasoning":
            found[-1]["reasoning_content"], thought = thought, ""
    return found


def called(item: Item, where: str) -> tuple[str, str]:
    """(Name, arguments) of a past call. Those of other kinds, which an answer of another server made, are shown as
    calls of functions."""
    match item.get("type"):
        case "custom_tool_call":
            return word(item, "name", where), orjson.dumps({"input": word(item, "input", where)}).decode()
        case "local_shell_call":
            return "local_shell", orjson.dumps(item.get("action")).decode()
    return word(item, "name", where), word(item, "arguments", where)


def role(item: Item, where: str) -> str:
    given = item.get("role")
    if given not in ROLES:
        raise ApiError(
            400, f"{where}.role is {str(given)[:40]!r}, but it must be one of {', '.join(ROLES)}.", param=where
        )
    return str(given)


def word(item: Item, key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{key} must be a text; give it.", param=where)
    return value


def text(content: Any, where: str) -> str:
    """The text of a content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where} has no content; give a text or a list of parts.", param=where)
    said = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            said.append(word(part, "refusal", where))
        elif kind in TEXT_PART_TYPES:
            said.append(word(part, "text", where))
        else:
            message = f"{where} has content of type {str(kind)[:40]!r}: {NO_MEDIA}."
            raise ApiError(400, message, param=where)
    return "\n".join(said)
