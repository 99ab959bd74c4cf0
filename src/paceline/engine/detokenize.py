"""Text of a growing token list, never splitting a character."""

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"
"""What a decoder puts where bytes are not, or not yet, a character."""


TAIL, FAR = 6, 256
"""Tokens of a prompt that open the window; and where to give up looking for some that are seen."""
MOST_PARTIAL = 64
"""Tokens without a whole character up to which each is looked at; of a longer run, one for each 16 that it has."""


class Detokenizer:
    """Token by token to text; the pieces concatenate to what `tokenizer.decode(before + all ids)` adds to
    `tokenizer.decode(before)`.

    Decodes a short window and returns what it gained. The window opens at tokens already shown, because a token's
    text may depend on the one before it (SentencePiece drops the first space of a text), and moves on only when
    the text ends in a whole character. Of a long run of tokens that make none, as a client's `allowed_tokens` may ask
    for, not each is decoded, for that would take the square of their number. (`tokenizers.DecodeStream` does nearly the
    same, but cannot be flushed.)
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True, before: Sequence[int] = ()) -> None:
        """`tokenizer`: a fast tokenizer of transformers. `before`: the prompt, whose last tokens count as shown."""
        self._decode = tokenizer.backend_tokenizer.decode
        self.skip = skip_special_tokens
        self._window: list[int] = self._tail(before)
        self._shown = len(self._window)
        """Tokens at the window's start whose text was returned; `_prefix` is that text."""
        self._prefix = self._text(self._window) if self._window else ""
        self._due = 0
        """Tokens that the window has when it is decoded again."""

    def _tail(self, before: Sequence[int]) -> list[int]:
        """The last tokens of a prompt, enough that some text is visible and that they begin with a whole
        character: of bytes that begin within one, some decoders make nothing at all."""
        size = TAIL
        while size < min(len(before), FAR) and not self._text(list(before[-size:])):
            size *= 2
        tails = [list(before[-n:]) for n in range(size, size + 4) if n <= len(before)] or [list(before)]
        return next((tail for tail in tails if not self._text(tail).startswith(REPLACEMENT)), tails[0])

    def push(self, token: int) -> str:
        """The text that `token` completes, perhaps none."""
        self._window.append(token)
        if len(self._window) < self._due:
            return ""
        text = self._text(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._known(text)):
            run = len(self._window) - self._shown
            self._due = len(self._window) + run // 16 if run > MOST_PARTIAL else 0
            return ""
        piece = text[len(self._known(text)) :]
        del self._window[: self._shown]
        self._shown, self._prefix, self._due = len(self._window), self._text(self._window), 0
        return piece

    def finish(self) -> str:
        """What was held back: bytes that never became a character, as U+FFFD. Call once, at the end."""
        text = self._text(self._window)
        piece = text[len(self._known(text)) :]
        self._window.clear()
        self._shown, self._prefix = 0, ""
        return piece

    def _known(self, text: str) -> str:
        """The beginning of `text` that was shown. A prompt that ends within a character shows less than its text."""
        known = self._prefix
        while known.endswith(REPLACEMENT) and not text.startswith(known):
            known = known[:-1]
        return known

    def _text(self, ids: list[int]) -> str:
        text: str = self._decode(ids, skip_special_tokens=self.skip)
        return text
