"""Pieces concatenate to the text, and no piece holds half a character."""

from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from paceline.engine.detokenize import REPLACEMENT, Detokenizer
from tests.tiny import trained


@cache
def bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE: most characters beyond ASCII are several tokens."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained(320), bos_token="<bos>", eos_token="<eos>")
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<tool>", special=True)]})
    return tokenizer


def pieces(tokenizer, ids, skip=True):
    detokenizer = Detokenizer(tokenizer, skip)
    return [detokenizer.push(token) for token in ids] + [detokenizer.finish()]


TEXT = st.text(st.sampled_from("ab .\n<>0é東京🙂👩‍🚀\u0301ß") | st.characters(exclude_categories=("Cs",)), max_size=30)
SPECIALS = ("<bos>", "<eos>", "<tool>")


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXT | st.sampled_from(SPECIALS), max_size=6), st.booleans())
def test_pieces_are_the_text(parts, skip):
    tokenizer = bpe()
    ids = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]
    got = pieces(tokenizer, ids, skip)
    assert "".join(got) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert not any(REPLACEMENT in piece for piece in got) or REPLACEMENT in "".join(parts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 325), max_size=40))
def test_any_ids_at_all(ids):
    """Invalid bytes and ids beyond the vocabulary: still the decoded text, with nothing lost at the end."""
    assert "".join(pieces(bpe(), ids)) == bpe().decode(ids, skip_special_tokens=True)


def test_a_character_appears_whole():
    tokenizer = bpe()
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    assert pieces(tokenizer, ids) == [""] * (len(ids) - 1) + ["🙂", ""]
    assert pieces(tokenizer, ids[:-1]) == [""] * (len(ids) - 1) + [REPLACEMENT]


class Counted:
    """A tokenizer whose decoder counts the ids that it is given."""

    def __init__(self) -> None:
        self.backend_tokenizer, self.ids = self, 0

    def decode(self, ids, skip_special_tokens):
        self.ids += len(ids)
        return bpe().backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("token", ["euro", "<tool>"])
def test_a_run_without_characters_costs_linear_time(token):
    """A client may ask for the first byte of a character, or a special token, for ever: `allowed_tokens`."""
    ids = bpe().encode("€")[:1] if token == "euro" else bpe().convert_tokens_to_ids([token])
    run = [*bpe().encode("a"), *ids * 3000, *bpe().encode("b c")]
    counted = Counted()
    assert "".join(pieces(counted, run)) == bpe().decode(run, skip_special_tokens=True)
    assert counted.ids < 100 * len(run)


WORDS = ("<s>", "▁a", "b", "▁", "<0xE2>", "<0x82>", "<0xAC>", "▁.")


def llama_like() -> SimpleNamespace:
    """SentencePiece's decoder: the text's first space is dropped, bytes stand for unknown characters."""
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(WORDS)}, [], byte_fallback=True))
    backend.add_special_tokens(["<s>"])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return SimpleNamespace(backend_tokenizer=backend)


WHOLE = ((0,), (1,), (2,), (3,), (4, 5, 6), (7,))
"""Tokens of WORDS that make whole characters."""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WHOLE), max_size=10), st.booleans())
def test_leading_spaces_survive(groups, skip):
    tokenizer, ids = llama_like(), [token for group in groups for token in group]
    assert "".join(pieces(tokenizer, ids, skip)) == tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [((1, 2, 1), ["a", "b", " a", ""]), ((1, 0, 1), ["a", "", " a", ""]), ((1, 4, 5, 6), ["a", "", "", "€", ""])],
)
def test_llama_like_pieces(ids, expected):
    assert pieces(llama_like(), ids) == expected
