"""The draft vocabulary: which tokens it has, and when it changes."""

import json
from pathlib import Path

import pytest
import torch

from paceline.core.errors import InputError
from paceline.draft.vocabulary import COMPARED_EVERY, DraftVocabulary, VocabularyWish, strings, vocabulary_of, wish_of
from paceline.engine.text import Text
from tests.tiny import tiny_checkpoint


class Head:
    """Remembers what it was told."""

    def __init__(self, vocab_size: int = 1000) -> None:
        self.vocab_size = vocab_size
        self.words: list[list[int]] = []

    def narrow(self, words: torch.Tensor, drafts: bool) -> None:
        self.words.append(words.tolist())


def test_what_the_option_says(tmp_path: Path) -> None:
    assert wish_of("32k") == wish_of(32768) == VocabularyWish(32768, False, None)
    assert wish_of("learn:8k") == VocabularyWish(8192, True, None)
    assert wish_of("learn").learns
    assert wish_of(f"20000:{tmp_path}") == VocabularyWish(20000, False, tmp_path)
    for wrong in ("", "many", "32m", "learn:x", "-5", "12"):
        with pytest.raises(InputError, match="draft_vocab is"):
            wish_of(wrong)


def test_the_commonest_are_in(tmp_path: Path) -> None:
    """Counted in a text, and specials whatever is counted."""
    text = Text(tiny_checkpoint(tmp_path / "model", "llama"))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": "lazy dog " * 9}) + "\n" + json.dumps(["brown fox"]) + "\nnot json {\n")
    assert list(strings(corpus)) == ["lazy dog " * 9, "brown fox", "not json {\n"]
    head = Head(320)
    counted = vocabulary_of(VocabularyWish(96, False, corpus), head, text, drafts=True)  # type: ignore[arg-type]
    first = vocabulary_of(VocabularyWish(96, False, None), head, text, drafts=True)  # type: ignore[arg-type]
    ids = text.tokenizer.encode("lazy dog", add_special_tokens=False)
    specials = set(text.tokenizer.all_special_ids)
    assert {*ids, *specials} <= set(counted.words.tolist()) and max(ids) > 96
    assert specials <= set(first.words.tolist()) and not set(ids) <= set(first.words.tolist())
    assert head.words == [counted.words.tolist(), first.words.tolist()]
    assert counted.words.tolist() == sorted(counted.words.tolist()) and len(counted.words) == 96
    with pytest.raises(InputError, match="cannot be read"):
        vocabulary_of(VocabularyWish(96, False, tmp_path / "none"), head, text, drafts=True)  # type: ignore[arg-type]


def test_it_learns() -> None:
    """It changes once enough of the text lies outside, to what is common now, and old text weighs less."""
    head = Head()
    words = DraftVocabulary(head, 100, torch.arange(1000, 0, -1).double() / 2000, [5, 999], drafts=True)  # type: ignore[arg-type]
    assert words.words.tolist() == [*range(99), 999]
    words.read([7] * COMPARED_EVERY)
    assert words.changes == 0  # nothing lies outside
    words.read([*range(500, 550), *[7] * COMPARED_EVERY])
    assert words.changes == 1 and set(range(500, 550)) | {5, 7, 999} <= set(words.words.tolist())
    assert words.share([500, 7, 400]) == pytest.approx(2 / 3)
    for _ in range(40):
        words.read([*range(600, 697)] * 60)
    assert set(words.words.tolist()) == {*range(600, 697), 5, 999, 7}
    assert len(head.words) == words.changes + 1
    words.read([-1, 1000])  # where nothing could be drawn
