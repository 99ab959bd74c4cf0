"""Log-probabilities in OpenAI's two formats. Every generated token is listed, the one that ended the text too."""

from collections.abc import Sequence
from typing import Any

from paceline.core.request import TokenLogprob
from paceline.engine.detokenize import Detokenizer
from paceline.serve.tokens import Tokens

JSON_MINUS_INFINITY = -9999.0
"""Number in place of minus infinity, which JSON does not have."""


def finite(logprob: float) -> float:
    return max(logprob, JSON_MINUS_INFINITY)


def of_chat(tokens: Tokens, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """`choice.logprobs` of chat completions."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        return {"token": tokens.text(token), "bytes": list(tokens.bytes(token)), "logprob": finite(logprob)}

    content = [{**one(e.token, e.logprob), "top_logprobs": [one(t, p) for t, p in e.top.items()]} for e in entries]
    return {"content": content, "refusal": None} if content else None


class Offsets:
    """Where each token's text begins in a growing text."""

    def __init__(self, detokenizer: Detokenizer, start: int = 0) -> None:
        self._detokenizer, self._at = detokenizer, start

    def push(self, token: int) -> int:
        at = self._at
        self._at += len(self._detokenizer.push(token))
        return at


class EchoOffsets:
    """Where each token of a prompt begins in its echo, which shows special tokens that the prompt has as text, and not
    those that the tokenizer put around it: these have no width there."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], echo: str) -> None:
        reader = Detokenizer(tokenizer, False)
        starts, at = list[int](), 0
        whole = ""
        for token in prompt:
            starts.append(at)
            whole += (text := reader.push(token))
            at += len(text)
        ahead = max(0, whole.find(echo))
        self._starts = iter([min(max(0, start - ahead), len(echo)) for start in starts])

    def push(self, token: int) -> int:
        return next(self._starts)


def of_completion(
    tokens: Tokens, ids: Sequence[int], entries: Sequence[TokenLogprob | None], offsets: Offsets | EchoOffsets
) -> dict[str, Any]:
    """`choice.logprobs` of text completions; no entry: the first token of a prompt, which nothing predicts."""

    def top(entry: TokenLogprob) -> dict[str, float]:
        others = {t: p for t, p in entry.top.items() if t != entry.token}
        named = {tokens.text(entry.token): finite(entry.logprob)}  # always listed, perhaps as one more
        for token, logprob in others.items():
            text = tokens.text(token)  # two tokens may have one text, as A and <0x41>
            named[f"token_id:{token}" if text in named else text] = finite(logprob)
        return named

    return {
        "tokens": [tokens.text(token) for token in ids],
        "token_logprobs": [None if e is None else finite(e.logprob) for e in entries],
        "top_logprobs": [None if e is None else top(e) for e in entries],
        "text_offset": [offsets.push(token) for token in ids],
    }


def joined(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The parts of one choice as one; both formats are dictionaries of lists."""
    whole: dict[str, Any] | None = None
    for part in parts:
        if part is None:
            continue
        if whole is None:
            whole = {key: list(value) if isinstance(value, list) else value for key, value in part.items()}
            continue
        for key, value in part.items():
            if isinstance(value, list):
                whole[key].extend(value)
    return whole
