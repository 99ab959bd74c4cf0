"""What a request says of its prompt: this beginning comes back. Eviction may believe it (cache/predict.py)."""

from typing import Any

from paceline.engine.door import DOOR
from paceline.serve.calls import HttpCall
from paceline.serve.chat import variables
from paceline.serve.errors import ApiError
from paceline.serve.message_wire import CountRequest, messages
from paceline.serve.prompts import render
from paceline.serve.protocol import ChatRequest
from paceline.serve.server import Server
from paceline.serve.wishes import EVERYTHING

MARK_TTLS = (None, "5m", "1h")
"""Lifetimes of a `cache_control`. Both are word that the prompt comes back; nothing is kept for a time."""


def breakpoint(body: CountRequest) -> int | None:
    """How many messages of the chat API end with the last `cache_control` of a body; None: it has none, or it stands in
    the last message, or with no message at all, and so holds for all."""
    marked = [i for i, turn in enumerate(body.messages) if isinstance(turn.content, list) and has_mark(turn.content)]
    if marked:
        last = marked[-1] + 1
        if last == len(body.messages):
            return None
        return len(messages(body.model_copy(update={"messages": body.messages[:last]})))
    return 1 if body.system is not None and marks(body) else None


def marks(body: CountRequest) -> bool:
    """Is there a `cache_control` in it?"""
    lists: list[list[Any]] = [turn.content for turn in body.messages if isinstance(turn.content, list)]
    system = [{"cache_control": each.cache_control} for each in body.system] if isinstance(body.system, list) else []
    found = [has_mark(each) for each in (*lists, body.tools or [], system, [{"cache_control": body.cache_control}])]
    return any(found)


def has_mark(blocks: list[Any]) -> bool:
    """Is there a `cache_control` in a block? ApiError 400 for one that is not Anthropic's."""
    found = [block["cache_control"] for block in blocks if block.get("cache_control") is not None]
    for mark in found:
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or mark.get("ttl") not in MARK_TTLS:
            message = 'cache_control must be {"type": "ephemeral"}, where you like with "ttl": "5m" or "1h".'
            raise ApiError(400, message, param="cache_control")
    return bool(found)


async def heed(body: CountRequest, chat: ChatRequest, server: Server) -> None:
    """Take the `cache_control` of a messages body as word of what comes back, for this call."""
    call = DOOR.get()
    if not isinstance(call, HttpCall) or not marks(body):
        return
    count = None if body.cache_control is not None else breakpoint(body)
    if count is None:
        call.returns = EVERYTHING
        return
    try:
        args = {**variables(chat, server), "add_generation_prompt": False, "continue_final_message": False}
        call.returns = len(await render(server, chat.messages[:count], args))
    except (ApiError, ValueError):  # a template that has no such beginning: nothing is said
        return
