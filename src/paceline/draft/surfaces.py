"""`Surfaces`: the bytes that each id of a tokenizer stands for, so that two tokenizers can be compared."""

from collections.abc import Iterable
from functools import cache
from typing import Any

BYTE_TOKEN_CHARS = 6
"""Length of a byte as SentencePiece writes it: <0x0A>."""


@cache
def letters() -> dict[str, int]:
    """{letter: byte} of byte-level BPE (GPT-2): printable bytes as themselves, the rest from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


class Surfaces:
    """Bytes of the tokens of one tokenizer: byte-level BPE, or pieces with U+2581 for a space and <0x0A> for a byte."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        """`size`: ids that the model can draw."""
        self.tokenizer = tokenizer
        added = tokenizer.get_added_vocab()
        self.special = {number: name for name, number in added.items()}
        byte_level = '"ByteLevel"' in tokenizer.backend_tokenizer.to_str()
        self.bytes: list[bytes | None] = [None] * size
        for piece, number in tokenizer.get_vocab().items():
            if number < size and number not in self.special:
                self.bytes[number] = _of_letters(piece) if byte_level else _of_piece(piece)
        self.ids: dict[bytes | None, int] = {}
        for number, each in enumerate(self.bytes):
            if each:
                self.ids.setdefault(each, number)
        self.begin = list(tokenizer.encode(""))
        """What the tokenizer puts before every text."""

    def of(self, token: int) -> bytes | None:
        """The bytes of an id; None for a special one."""
        return self.bytes[token] if token < len(self.bytes) else None

    def shown(self, token: int) -> bytes:
        """Bytes of a token as `of` gives them; a special token gives its name, since another tokenizer may have one of
        that name."""
        return self.of(token) or self.special.get(token, "").encode()

    def join(self, ids: Iterable[int]) -> bytes | None:
        """The bytes of several; None where one is special."""
        parts = [self.of(token) for token in ids]
        return None if None in parts else b"".join(part for part in parts if part)

    def spell(self, text: bytes, start: bool = False) -> list[int]:
        """Ids of a text; [] where it ends within a character. `start`: with what stands before every text."""
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.end == len(text) and error.reason == "unexpected end of data":
                return []
            decoded = text.decode("utf-8", "replace")
        ids = list(self.tokenizer.encode(decoded, add_special_tokens=False))
        return [*self.begin, *ids] if start else ids


def _of_letters(piece: str) -> bytes | None:
    table = letters()
    return bytes(table[letter] for letter in piece) if all(letter in table for letter in piece) else None


def _of_piece(piece: str) -> bytes:
    if len(piece) == BYTE_TOKEN_CHARS and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()
