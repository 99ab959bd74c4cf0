"""How long an honest engine may take for a call, by what the call itself allows."""

from collections.abc import Mapping
from typing import Any

import orjson

from paceline.cluster.control.engines import REPLY_TIMEOUT_S

SLOW_PROMPT_RATE, SLOW_OUTPUT_RATE = 20.0, 1.0
"""Tokens a second that a slow engine reads and writes."""
BYTES_A_TOKEN = 4.0
LENGTH_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "num_predict")
"""Names of the longest answer in tokens; 0 and less mean that it has no limit."""


def slowest_s(body: bytes, prompt: float = 0.0) -> float:
    """Seconds that a slow engine takes for this call at most: never by what was learned of others. `prompt`: tokens,
    if that is known to be more than the body's size says. Where the answer has no limit, until nobody waits for it."""
    try:
        data = orjson.loads(body)
    except ValueError:
        return REPLY_TIMEOUT_S
    if not isinstance(data, dict) or (most := longest(data)) is None or has_media(data):
        return REPLY_TIMEOUT_S
    reads = max(prompt, len(body) / BYTES_A_TOKEN) / SLOW_PROMPT_RATE
    return min(REPLY_TIMEOUT_S, reads + choices(data) * most / SLOW_OUTPUT_RATE)


def longest(data: Mapping[str, Any]) -> float | None:
    """Longest answer that a call allows, in tokens; None where it has no limit, or one that cannot be read."""
    given = [data[name] for name in LENGTH_LIMITS if data.get(name) is not None]
    known = all(isinstance(each, int | float) and each > 0 for each in given)
    return float(max(given)) if given and known else None


def choices(data: Mapping[str, Any]) -> int:
    """Answers that a call asks for: `n` or `best_of` for each of its prompts."""
    prompts = data.get("prompt")
    several = isinstance(prompts, list) and not all(isinstance(each, int) for each in prompts)
    asked = [each for name in ("n", "best_of") if isinstance(each := data.get(name), int)]
    return max([1, *asked]) * (len(prompts) if several and prompts else 1)


def has_media(data: Mapping[str, Any]) -> bool:
    """Whether a call has images or sound, whose size does not say how long they take."""
    messages = data.get("messages")
    contents = (
        [each.get("content") for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    )
    parts = [part for each in contents if isinstance(each, list) for part in each]
    return any(isinstance(part, dict) and part.get("type", "text") != "text" for part in parts)
