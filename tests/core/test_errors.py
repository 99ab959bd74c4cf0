"""Messages of errors: bounded, and harmless on a terminal."""

import pytest

from paceline.core import errors
from paceline.core.errors import MAX_MESSAGE_CHARS, InputError


@pytest.mark.parametrize(
    "text", ["a" * 5_000, "\x1b" * 5_000, "a" * 900 + "\x1b" * 700 + "\u202eb" * 500, "\x1b" * 600]
)
def test_long_messages_lose_their_middle(text: str) -> None:
    escaped = text.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    half = MAX_MESSAGE_CHARS // 2
    assert str(InputError(text)) == f"{escaped[:half]} ... {escaped[5 - half :]}"


def test_a_message_is_shortened_before_it_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0

    def counted(it: str) -> str:
        nonlocal seen
        seen += 1
        return ascii(it)

    monkeypatch.setattr(errors, "ascii", counted, raising=False)
    assert len(str(InputError("\x1b" * 100_000))) == MAX_MESSAGE_CHARS
    assert 0 < seen <= MAX_MESSAGE_CHARS
