"""Prompts to token ids, in a pool: a long prompt must not hold up the other connections."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from paceline.engine.text import Text
from paceline.serve.errors import ApiError
from paceline.serve.protocol import Call, Message

Prompt = str | list[int]


def as_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """The prompts of a completion request: one text or list of ids, or several."""
    if prompt == []:
        raise ApiError(400, "prompt is [], but it must hold at least one token or text.", param="prompt")
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


async def encode(text: Text, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each prompt; ids pass as they are."""

    def work() -> list[list[int]]:
        return [text.encode(p) if isinstance(p, str) else p for p in prompts]

    if not any(isinstance(p, str) for p in prompts):
        return work()
    return await asyncio.to_thread(work)


async def render(text: Text, messages: Sequence[Message], args: Mapping[str, Any]) -> list[int]:
    """Token ids of a conversation by the chat template, up to where the answer begins."""
    developer = "developer" if "developer" in template(text) else "system"
    return await asyncio.to_thread(text.chat, [plain(m, developer) for m in messages], **args)


def template(text: Text) -> str:
    """The chat template's source; empty if there is none."""
    source = getattr(text.tokenizer, "chat_template", None) or ""
    return source if isinstance(source, str) else "\n".join(source.values())


def plain(message: Message, developer: str) -> dict[str, Any]:
    """A message as chat templates want it: text parts joined, the arguments of calls as objects. `developer`: what that
    role is called in the template."""
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    role = developer if message.role == "developer" else message.role
    more = message.model_dump(include={"name", "reasoning_content", "tool_call_id"}, exclude_none=True)
    if message.tool_calls:
        more["tool_calls"] = [called(call) for call in message.tool_calls]
    return {"role": role, "content": content or "", **more}


def called(call: Call) -> dict[str, Any]:
    try:
        arguments = orjson.loads(call.function.arguments)
    except orjson.JSONDecodeError as error:
        message = (
            f"messages has a call of {call.function.name!r} whose arguments are not JSON ({error}); send them as made."
        )
        raise ApiError(400, message, param="messages") from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function, **({"id": call.id} if call.id else {})}


def template_args(text: Text, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """`chat_template_kwargs`: variables of the template, none that steers how it is applied."""
    if not given:
        return {}
    taken = {*inspect.signature(text.tokenizer.apply_chat_template).parameters, "messages"}
    for name in given:
        if name in taken:
            message = f"chat_template_kwargs has {name!r}, which is not the template's to read; remove it."
            raise ApiError(400, message, param="chat_template_kwargs")
    return dict(given)
