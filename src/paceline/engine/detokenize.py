"""Text of a growing token list, never splitting a character."""

from typing import Any

REPLACEMENT = "\ufffd"
"""What a decoder puts where bytes are not, or not yet, a character."""


class Detokenizer:
    """Token by token to text; the pieces concatenate to `tokenizer.decode(all ids)`.

    Decodes a short window and returns what it gained. The window opens at tokens already shown, because a token's
    text may depend on the one before it (SentencePiece drops the first space of a text), and moves on only when
    the text ends in a whole character. (`tokenizers.DecodeStream` does the same, but cannot be flushed.)
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True) -> None:
        """`tokenizer`: a fast tokenizer of transformers."""
        self._decode = tokenizer.backend_tokenizer.decode
        self.skip = skip_special_tokens
        self._window: list[int] = []
        self._shown = 0
        """Tokens at the window's start whose text was returned; `_prefix` is that text."""
        self._prefix = ""

    def push(self, token: int) -> str:
        """The text that `token` completes, perhaps none."""
        self._window.append(token)
        text = self._text(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._prefix):
            return ""
        piece = text[len(self._prefix) :]
        del self._window[: self._shown]
        self._shown, self._prefix = len(self._window), self._text(self._window)
        return piece

    def finish(self) -> str:
        """What was held back: bytes that never became a character, as U+FFFD. Call once, at the end."""
        piece = self._text(self._window)[len(self._prefix) :]
        self._window.clear()
        self._shown, self._prefix = 0, ""
        return piece

    def _text(self, ids: list[int]) -> str:
        text: str = self._decode(ids, skip_special_tokens=self.skip)
        return text
