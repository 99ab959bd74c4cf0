"""The bytes of a single token, for log-probabilities and /tokenize."""

from collections.abc import Sequence
from typing import Any

from paceline.draft.surfaces import letters


class Tokens:
    """Single tokens of one tokenizer. A token need not be whole characters, so it has bytes first and a text second."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a fast tokenizer of transformers."""
        self.tokenizer = tokenizer
        self._added = {i: t.content for i, t in tokenizer.added_tokens_decoder.items()}
        self.special = {t.content: i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        """The tokens that `skip_special_tokens` leaves out: ids by their texts."""
        decoder = tokenizer.backend_tokenizer.decoder
        kind = b"" if decoder is None else decoder.__getstate__()
        self._byte_level = b'"ByteLevel"' in kind
        self._byte_fallback = b'"ByteFallback"' in kind
        self.whole = self._byte_level or self._byte_fallback
        """Any text has tokens of its own: nothing becomes one that stands for all that is unknown."""
        self._texts: dict[int, str] = {}

    def ids(self, texts: Sequence[str]) -> list[int]:
        """The special tokens with these texts, where there are such."""
        return [id for id, text in self._added.items() if text in texts]

    def bytes(self, token: int) -> bytes:
        """What the token adds to a text; as it is written in the middle of one."""
        if token in self._added:
            return str(self._added[token]).encode()
        name = str(self.tokenizer.convert_ids_to_tokens(token) or "")
        if self._byte_level and all(letter in letters() for letter in name):
            return bytes(letters()[letter] for letter in name)
        if self._byte_fallback and len(name) == 6 and name.startswith("<0x"):
            return bytes([int(name[3:5], 16)])
        return name.replace("\u2581", " ").encode()

    def text(self, token: int) -> str:
        r"""The token as text; `bytes:\xe2\x80` where it is not whole characters, so that two never look the same."""
        known = self._texts.get(token)
        if known is None:
            known = self._texts[token] = self._text(token)
        return known

    def _text(self, token: int) -> str:
        raw = self.bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
