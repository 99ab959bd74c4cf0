"""When a request ends, and which of its text may be shown meanwhile."""

from collections.abc import Sequence
from functools import lru_cache

from paceline.core.errors import InputError
from paceline.core.request import FinishReason, Request
from paceline.engine.detokenize import Detokenizer


class Stopper:
    """Fed every output token in order, also those of an accepted run; the first that ends the request ends it, and
    the engine drops the rest. Keeps the text.

        tokens -> text | shown (a prefix of the final text) | held back: may become a stop string |
    """

    def __init__(self, request: Request, detokenizer: Detokenizer | None) -> None:
        """Takes up after the request's output so far. Raises InputError for stop strings without a tokenizer."""
        p = request.params
        if p.stops and detokenizer is None:
            raise InputError(f"stop is {p.stop!r}, but there is no tokenizer to make text with: use stop_token_ids.")
        self.params, self.stops, self.detokenizer = p, p.stops, detokenizer
        self.max_tokens = request.max_tokens + request.shift
        self.ids = frozenset(p.stop_token_ids) | (frozenset() if p.ignore_eos else request.eos)
        self.count = 0
        self._ends = [Ending(stop) for stop in self.stops]
        self._text = ""
        self._shown = 0
        """Characters of `_text` that may be shown."""
        self._finished = False
        self.extend(request.output)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take tokens that end nothing, whatever they are."""
        scanned = len(self._text)
        for token in tokens:
            self.count += 1
            self._decode(token)
        self._shown = len(self._text) - self._held(scanned)

    def push(self, token: int) -> FinishReason | None:
        """Take one token; the reason if the request ends with it. No kind of stop before `min_tokens` tokens."""
        self.count += 1
        may_stop = self.count >= self.params.min_tokens
        if may_stop and token in self.ids:
            if self.params.include_stop or not self.params.skip_special_tokens:
                self._decode(token)
            self.finish()
            return "stop"
        scanned = len(self._text)
        self._decode(token)
        if may_stop and self.stops and self._cut(scanned):
            return "stop"
        if self.count >= self.max_tokens:
            self.finish()
            return "length"
        self._shown = len(self._text) - self._held(scanned)
        return None

    def _held(self, scanned: int) -> int:
        """Characters at the end, of which those from `scanned` on are new, that may become a stop string."""
        return max((end.feed(self._text[scanned:]) for end in self._ends), default=0)

    def text(self) -> str:
        """What may be shown: always a prefix of what it will be later; everything once finished."""
        return self._text[: self._shown]

    def finish(self) -> None:
        """No more tokens come: release what was held back. Harmless when repeated."""
        if not self._finished and self.detokenizer is not None:
            self._text += self.detokenizer.finish()
        self._finished = True
        self._shown = len(self._text)

    def _decode(self, token: int) -> None:
        if self.detokenizer is not None:
            self._text += self.detokenizer.push(token)

    def _cut(self, scanned: int) -> bool:
        """End the text at the stop string that is complete first, reading on from character `scanned`; of two that
        end at one place the longer counts."""
        matches = []
        for stop in self.stops:
            start = self._text.find(stop, max(0, scanned - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start))
        if not matches:
            return False
        end, start = min(matches)
        self._text = self._text[: end if self.params.include_stop else start]
        self._finished = True
        self._shown = len(self._text)
        return True


class Ending:
    """How much of a growing text's end begins a stop string, in time linear in the text (Knuth, Morris, Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop, self.links = stop, borders(stop)
        self.length = 0

    def feed(self, text: str) -> int:
        """Length of the longest proper prefix of the stop string that ends the text so far, `text` included."""
        stop, links, n = self.stop, self.links, self.length
        for char in text:
            while n and stop[n] != char:
                n = links[n - 1]
            n += stop[n] == char
            n = links[n - 1] if n == len(stop) else n
        self.length = n
        return n


@lru_cache(maxsize=64)
def borders(stop: str) -> tuple[int, ...]:
    """For each beginning of a text the length of its longest proper prefix that also ends it."""
    lengths, n = [0], 0
    for char in stop[1:]:
        while n and stop[n] != char:
            n = lengths[n - 1]
        n += stop[n] == char
        lengths.append(n)
    return tuple(lengths)
