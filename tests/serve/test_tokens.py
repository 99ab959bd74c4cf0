"""Bytes of single tokens: put together they are the bytes of the text."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.text import Text
from paceline.serve.tokens import Tokens

TEXT = Text(Path(__file__).parents[2] / "src/paceline/demo/target")
TOKENS = Tokens(TEXT.tokenizer)


@given(st.text(max_size=40))
def test_bytes_add_up(text: str) -> None:
    ids = TEXT.tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(TOKENS.bytes(i) for i in ids) == text.encode()


def test_no_two_tokens_look_the_same() -> None:
    texts = [TOKENS.text(i) for i in range(len(TEXT.tokenizer))]
    assert len(set(texts)) == len(texts)
    assert r"bytes:\xc3" in texts and "<|end|>" in texts


def sentencepiece() -> Any:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    model = models.BPE(
        {"<unk>": 0, "\u2581the": 1, "<0xE2>": 2, "\u20ac": 3}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_sentencepiece_with_byte_fallback() -> None:
    tokens = Tokens(sentencepiece())
    assert [tokens.bytes(i) for i in range(4)] == [b"<unk>", b" the", b"\xe2", "\u20ac".encode()]
    assert tokens.text(2) == r"bytes:\xe2"
