"""Prompt lookup against a brute-force search."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.params import SamplingParams
from paceline.draft.ngram import MAX_NGRAM_TOKENS, NgramDrafter, NgramIndex
from tests.lossless.cases import Setting, Wish, run


def brute_force(tokens: list[int], count: int) -> list[int]:
    """The continuation of the most recent earlier occurrence of the longest suffix, by scanning."""
    for n in range(min(MAX_NGRAM_TOKENS, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                text = list(tokens)
                while len(text) < len(tokens) + count:
                    text.append(text[end + len(text) - len(tokens)])
                return text[len(tokens) :]
    return []


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8), st.integers(1, 5))
def test_lookup_is_the_brute_force_search(tokens: list[int], count: int, pieces: int) -> None:
    index = NgramIndex()
    for i in range(pieces):
        index.extend(tokens[: len(tokens) * (i + 1) // pieces])
    assert index.lookup(tokens, count) == brute_force(tokens, count)


def test_a_copy_is_drafted_whole() -> None:
    text = [5, 6, 7, 8, 9, 10, 11]
    index = NgramIndex()
    index.extend([*text, 1, 5, 6])
    assert index.lookup([*text, 1, 5, 6], 4) == [7, 8, 9, 10]


def test_nothing_known_drafts_nothing() -> None:
    index = NgramIndex()
    index.extend([1, 2, 3, 4])
    assert index.lookup([1, 2, 3, 4], 4) == []


def test_a_text_that_repeats_is_drafted_further_than_one_that_does_not() -> None:
    prompt = [1, 2, 3, 4]
    steady, fickle = NgramIndex(len(prompt)), NgramIndex(len(prompt))
    repeated = prompt + [1, 2, 3, 4] * 6
    assert len(steady.draft(repeated, 7)) == 7
    changing = prompt + [t for i in range(12) for t in (1, 10 + i)]
    assert fickle.draft([*changing, 1], 7) == []


def test_rates_depend_on_committed_tokens_alone() -> None:
    """Built at once or token by token, drafting in between or not: the same draft."""
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 3, 1, 2]
    whole, stepwise = NgramIndex(3), NgramIndex(3)
    for end in range(4, len(text)):
        stepwise.draft(text[:end], 5)
    assert stepwise.draft(text, 5) == whole.draft(text, 5)
    assert (stepwise.hits, stepwise.tries) == (whole.hits, whole.tries)


def test_a_sampled_text_is_drafted_only_after_a_guess_would_have_been_right() -> None:
    prompt, text = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 1]
    assert NgramIndex(len(prompt), greedy=True).draft(text, 7)
    sampled = NgramIndex(len(prompt), greedy=False)
    assert sampled.draft(text, 7) == []
    assert sampled.draft([*text, 2], 7) == []  # the guess was right, but this match is longer: another rate
    assert sampled.draft([*text, 2, 3, 4, 5, 1], 7) != []


def test_a_drafter_that_fails_to_learn_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is committed when drafters learn: its tokens stand, and the text goes on without the drafter."""

    def learn(self: NgramDrafter, view: object, verdict: object) -> None:
        raise ValueError("no")

    wish = Wish([1, 2, 3, 1, 2], SamplingParams(temperature=0.0, max_tokens=20, drafter="ngram", seed=0).resolve({}))
    [[plain]] = run(Setting().engine(), [replace(wish, params=replace(wish.params, drafter="none"))])
    monkeypatch.setattr(NgramDrafter, "learn", learn)
    engine = Setting().engine()
    [[request]] = run(engine, [wish])
    assert len(engine.drafters.errors) == 1 and request.output == plain.output
