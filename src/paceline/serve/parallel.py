"""From a chat request's `reasoning` of policy `parallel` to a policy."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from paceline.reason.parallel import Parallel, ParallelSettings, writes_tags
from paceline.reason.runner import Policy
from paceline.serve.errors import ApiError
from paceline.serve.prompts import render
from paceline.serve.protocol import ChatRequest, Message, MessagePart
from paceline.serve.server import Server

PARALLEL_FIELDS = (
    "mode", "early", "depth", "fan_out", "path_tokens", "branch_tokens", "conclusion", "deadline_s",
)  # fmt: skip
"""Settings of the policy."""


async def policy(body: ChatRequest, server: Server, args: Mapping[str, Any]) -> Policy:
    """Raises ApiError and InputError for what cannot be done."""
    assert body.reasoning is not None
    given = body.reasoning.model_dump(exclude_none=True, exclude={"policy"})
    for name in given:
        if name not in PARALLEL_FIELDS:
            message = (
                f"reasoning.{name} is not of policy parallel, which knows {', '.join(PARALLEL_FIELDS)}; remove it."
            )
            raise ApiError(400, message, param=f"reasoning.{name}")
    settings = ParallelSettings(**{"mode": "tags" if writes_tags(server.text.tokenizer) else "prompt", **given})
    if body.tools and args.get("tools"):
        raise ApiError(400, "tools and reasoning cannot be combined; leave one of them out.", param="reasoning")
    last = body.messages[-1]
    if settings.mode == "prompt" and (last.role != "user" or body.continue_final_message):
        raise ApiError(400, "Parallel writing by prompt needs a last message of role user.", param="messages")
    loop = asyncio.get_running_loop()

    def rendered(extra: str) -> "Future[list[int]]":
        messages = [*body.messages[:-1], longer(last, extra)]
        return asyncio.run_coroutine_threadsafe(render(server, messages, args), loop)

    return Parallel(settings, rendered)


def longer(message: Message, extra: str) -> Message:
    """A message with more text at its end."""
    content = message.content
    more = [*content, MessagePart(type="text", text=extra)] if isinstance(content, list) else (content or "") + extra
    return message.model_copy(update={"content": more})
