"""Prompts to token ids, in a pool: a long prompt must not hold up the other connections."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.engine.text import Text

Prompt = str | list[int]


def as_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """The prompts of a completion request: one text or list of ids, or several."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]  # type: ignore[list-item]
    return list(prompt)  # type: ignore[arg-type]


async def encode(text: Text, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each prompt; ids pass as they are."""

    def work() -> list[list[int]]:
        return [text.encode(p) if isinstance(p, str) else p for p in prompts]

    if not any(isinstance(p, str) for p in prompts):
        return work()
    return await asyncio.to_thread(work)


async def render(text: Text, messages: Sequence[Mapping[str, Any]], args: Mapping[str, Any]) -> list[int]:
    """Token ids of a conversation by the chat template."""
    return await asyncio.to_thread(text.chat, messages, **args)
