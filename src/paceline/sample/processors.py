"""The processors that look at a node's own path: masks and biases. Penalties and callables are in `history`.

A processor never learns whether it works on a draft: `start` reads a request's parameters, `advance` follows one
token down a path, and states are values, so siblings of a token tree do not see one another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.core.errors import InputError
from paceline.core.request import Request

Encode = Callable[[str], Sequence[int]]
"""Text -> token ids without special tokens."""


class Processor(Protocol):
    """One step of the chain. It keeps nothing between calls; what it knows of a path is in the path's state."""

    def start(self, request: Request) -> Any:
        """The state before the first output token, or None when the request does not use this processor."""

    def advance(self, state: Any, token: int) -> Any:
        """The state one output token further; `state` itself must not change."""

    def apply(self, states: Sequence[Any], logits: Tensor) -> Tensor:
        """Process logits [L, V], row i by states[i] (None: leave the row). They are the sampler's own copy and may
        be written in place."""

    def rules(self, state: Any) -> Mapping[str, Any] | None:
        """Its part of `LogitRules` at this state; None: they cannot say it."""


def scatter(logits: Tensor, ids: Sequence[Sequence[int]], value: float) -> Tensor:
    """Set logits[i, ids[i]] to `value`, in place."""
    rows = [row for row, of_row in enumerate(ids) for _ in of_row]
    if rows:
        logits[torch.tensor(rows), torch.tensor([token for of_row in ids for token in of_row])] = value
    return logits


class AllowedTokens:
    """Everything but `allowed_tokens` is removed."""

    def __init__(self) -> None:
        self._latest: tuple[object, Tensor | None] = (None, None)

    def start(self, request: Request) -> Tensor | None:
        allowed = request.params.allowed_tokens
        if self._latest[0] is not allowed:  # the samples of one prompt share the list, and so the tensor
            tensor = None if allowed is None else torch.tensor(sorted(set(allowed)), dtype=torch.int64)
            self._latest = allowed, tensor
        return self._latest[1]

    def advance(self, state: Tensor, token: int) -> Tensor:
        return state

    def apply(self, states: Sequence[Tensor | None], logits: Tensor) -> Tensor:
        for row, allowed in zip(logits, states):
            if allowed is not None:
                kept = row[allowed]
                row.fill_(float("-inf"))
                row[allowed] = kept
        return logits

    def rules(self, state: Tensor) -> Mapping[str, Any]:
        return {"allowed": state}


class Words:
    """The words that must not be completed, by the token before the last."""

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self.sizes = torch.tensor([len(word) for word in words], dtype=torch.int64)
        self.ids = torch.tensor([token for word in words for token in word], dtype=torch.int64)
        self.need = max(map(len, words)) - 1
        """Tokens of the output's end that the longest of them needs."""
        self.single = [w[0] for w in words if len(w) == 1]
        self.after: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                self.after.setdefault(word[-2], []).append(word)


@dataclass(frozen=True, slots=True)
class Tail:
    """As much of the output's end as the longest word needs."""

    words: Words
    tail: tuple[int, ...] = ()

    def completions(self) -> list[int]:
        """Last tokens of the words whose preceding tokens end the path."""
        near = self.words.after.get(self.tail[-1], ()) if self.tail else ()
        return [*self.words.single, *(w[-1] for w in near if self.tail[-(len(w) - 1) :] == w[:-1])]


MOST_WORDS = 4096
"""Tokens of all bad words of a request together: each row of each step looks for them."""


class BadWords:
    """Removes the last token of a word where the output ends with the tokens before it.

    A text is looked for as it is written, and with one space more before it, or one less. The prompt does not count.
    """

    def __init__(self, encode: Encode | None = None) -> None:
        self.encode = encode
        self._latest: tuple[object, Words | None] = (None, None)
        """Latest bad words and their ids, so that they are encoded once for all samples of a prompt."""

    def words(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """The id sequences of the request's `bad_words`."""
        return self.spell(request.params.bad_words)

    def spell(self, words: Sequence[str | Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """The id sequences of `words`. Raises InputError for a text without tokenizer, for an empty one, and for too
        many."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            if not isinstance(word, str):
                spelt = [tuple(word)]
            elif self.encode is None:
                text = word[:80]
                raise InputError(f"bad_words has the text {text!r}, but there is no tokenizer: give token ids instead.")
            else:
                spelt = spellings(self.encode, word)
            if not spelt or () in spelt:
                raise InputError(f"bad_words has {word!r}, which is empty: remove it.")
            found.update(dict.fromkeys(spelt))
        if (size := sum(map(len, found))) > MOST_WORDS:
            raise InputError(f"bad_words has {size} tokens in all its spellings, but it may have {MOST_WORDS} at most.")
        return tuple(found)

    def start(self, request: Request) -> Tail | None:
        if self._latest[0] is not request.params:
            words = self.words(request)
            self._latest = request.params, Words(words) if words else None
        known = self._latest[1]
        return None if known is None else Tail(known)

    def advance(self, state: Tail, token: int) -> Tail:
        need = state.words.need
        return replace(state, tail=(*state.tail, token)[-need:] if need else ())

    def apply(self, states: Sequence[Tail | None], logits: Tensor) -> Tensor:
        return scatter(logits, [() if state is None else state.completions() for state in states], float("-inf"))

    def rules(self, state: Tail) -> Mapping[str, Any]:
        return {"words": (state.words.sizes, state.words.ids), "tail": state.tail}


def spellings(encode: Encode, word: str) -> list[tuple[int, ...]]:
    """A text as it is written, and with the space before it toggled; none for the empty text."""
    other = word[1:] if word.startswith(" ") else f" {word}"
    return [within(encode, text) for text in (word, other) if text] if word else []


def within(encode: Encode, text: str) -> tuple[int, ...]:
    """The ids of a text inside another one: SentencePiece puts a space before the first word of a text. Where what is
    before it would change them, they are those of the text alone."""
    lead, whole = list(encode(LEAD)), list(encode(LEAD + text))
    inside = whole[len(lead) :] if whole[: len(lead)] == lead else []
    return tuple(inside or encode(text))


LEAD = "\n"


@dataclass(frozen=True, slots=True)
class Wait:
    """Output tokens still to come before any of `ids` may be drawn."""

    left: int
    ids: tuple[int, ...]


class MinTokens:
    """Removes the tokens that would stop the request while it has fewer than `min_tokens` of output."""

    def start(self, request: Request) -> Wait | None:
        params = request.params
        ids = set(params.stop_token_ids) | (set() if params.ignore_eos else request.eos)
        return Wait(params.min_tokens, tuple(sorted(ids))) if params.min_tokens and ids else None

    def advance(self, state: Wait, token: int) -> Wait:
        return replace(state, left=state.left - 1) if state.left else state

    def apply(self, states: Sequence[Wait | None], logits: Tensor) -> Tensor:
        return scatter(logits, [state.ids if state and state.left else () for state in states], float("-inf"))

    def rules(self, state: Wait) -> Mapping[str, Any]:
        return {"left": state.left, "ends": state.ids}


class LogitBias:
    """Adds `logit_bias`; -inf forbids a token."""

    def start(self, request: Request) -> tuple[Tensor, Tensor] | None:
        bias = request.params.logit_bias
        if not bias:
            return None
        return torch.tensor(list(bias), dtype=torch.int64), torch.tensor(list(bias.values()), dtype=torch.float64)

    def advance(self, state: tuple[Tensor, Tensor], token: int) -> tuple[Tensor, Tensor]:
        return state

    def apply(self, states: Sequence[tuple[Tensor, Tensor] | None], logits: Tensor) -> Tensor:
        for row, state in zip(logits, states):
            if state is not None:
                row[state[0]] += state[1].to(row)
        return logits

    def rules(self, state: tuple[Tensor, Tensor]) -> Mapping[str, Any]:
        return {"bias": state}
