"""From a request's body to SamplingParams."""

import secrets
from typing import Any

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.serve.errors import ApiError
from paceline.serve.protocol import Sampling

SAME = ("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "allowed_tokens", "bad_words", "stop", "stop_token_ids", "include_stop", "min_tokens", "max_tokens",
        "ignore_eos", "skip_special_tokens", "priority", "deadline_ms", "user")  # fmt: skip
"""Parameters with the same name and meaning in SamplingParams; null is SamplingParams' default."""

EVERYTHING = 1 << 40
"""More tokens than a text has: the answer comes back, too."""


def sampling_params(body: Sampling, **more: Any) -> SamplingParams:
    """The body's parameters, those in `more` instead of its own. Raises InputError."""
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options is given without stream; set stream to true.", param="stream_options")
    values: dict[str, Any] = {name: getattr(body, name) for name in SAME if getattr(body, name) is not None}
    if body.logit_bias:
        values["logit_bias"] = {token_id(key): bias for key, bias in body.logit_bias.items()}
        if len(values["logit_bias"]) < len(body.logit_bias):
            raise InputError("logit_bias has one token id in two spellings; give each once.")
    if body.cache_salt:
        values["tenant"] = body.cache_salt
    if body.top_k == -1:
        values["top_k"] = 0
    if body.speculation is not None:
        wish = body.speculation
        values.update(drafter=wish.drafter, max_nodes=wish.max_nodes, verifier=wish.verifier)
    if body.prompt_cache_key is not None or body.prompt_cache_retention is not None:
        values["returns"] = EVERYTHING
    return SamplingParams(**{**values, **more})


def seeds(body: Sampling, prompts: int) -> list[int]:
    """The body's seed for every prompt; else a fresh one each, of 53 bits, which JavaScript reads exactly."""
    return [secrets.randbits(53) if body.seed is None else body.seed for _ in range(prompts)]


def token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 20):
        raise InputError(f"logit_bias has the key {key[:40]!r}, but keys must be token ids.")
    return int(key)
