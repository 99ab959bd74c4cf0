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
    blocks = [] if not isinstance(body.system, list) else body.system
    found = [has_mark(each) for each in (*lists, body.tools or [])]
    return any(found) or body.cache_control is not None or any(each.cache_control is not None for each in blocks)


def has_mark(blocks: list[Any]) -> bool:
    """Is there a `cache_control` in a block? ApiError 400 for one that is no object."""
    found = [block["cache_control"] for block in blocks if block.get("cache_control") is not None]
    if any(not isinstance(mark, dict) for mark in found):
        raise ApiError(400, 'cache_control must be an object, such as {"type": "ephemeral"}.', param="cache_control")
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
