"""Ways in which speculative retrieval can go wrong: each changes the text of some seed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.operations import Submit
from paceline.retrieve import PassageIndex, Retrieval, generate, policy
from paceline.retrieve.policy import Retrieving
from paceline.retrieve.prompts import QuestionPrompts
from tests.retrieve.scenes import one_at_a_time

QUESTION = "Tom has 3 apples and buys 4 more."
PARAMS = SamplingParams(temperature=0.8, max_tokens=33, drafter="none")
WISH = Retrieval(4, 3, "exact", prefetch=2, query_tokens=8)
answers, judge, query = Retrieving._answers, Retrieving._judge, QuestionPrompts.query


def noise_follows_the_prompt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy, "Submit", lambda prompt, params, offset: Submit(prompt, params))


def every_guess_is_right(patch: pytest.MonkeyPatch) -> None:
    def found(self: Any, call: Any, guesses: Sequence[Any] = ()) -> Any:
        return [[guess] for guess in guesses] or answers(self, call)

    patch.setattr(Retrieving, "_answers", found)


def what_was_written_meanwhile_stays(patch: pytest.MonkeyPatch) -> None:
    def kept(self: Any, stage: Any, made: Any, guesses: Any, call: Any, ahead: Any) -> Any:
        judge(self, stage, made, guesses, call, ahead)
        return ahead

    patch.setattr(Retrieving, "_judge", kept)


def queries_are_cut_a_token_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuestionPrompts, "query", lambda self, output: query(self, output[:-1]))


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    noise_follows_the_prompt, every_guess_is_right, what_was_written_meanwhile_stays, queries_are_cut_a_token_early,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_dies(
    llm: LLM, index: PassageIndex, mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    each = [replace(PARAMS, seed=seed) for seed in range(6)]
    want = [one_at_a_time(llm, QUESTION, index.passages, index.retriever("exact"), params, WISH) for params in each]
    assert [generate(llm, QUESTION, index, params, WISH).output.token_ids for params in each] == want
    mutant(monkeypatch)
    assert [generate(llm, QUESTION, index, params, WISH).output.token_ids for params in each] != want
