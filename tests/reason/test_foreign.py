"""A small model with another tokenizer: texts are handed over, not tokens. Steps serve it, mentor refuses it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline import RefusalError
from paceline.engine.pair import DEMO
from paceline.reason import Ensemble, MentorSettings, StepSettings
from paceline.reason.ensemble import plain
from paceline.reason.judge import DraftJudge, ids, score
from paceline.reason.pen import Pen, PenPart
from paceline.reason.runner import BASE, SMALL
from tests.reason.conftest import GREEDY, PROMPT, alone, clean
from tests.reason.slow import greedy
from tests.tiny import tiny_checkpoint

MOST = 100
LONG = replace(GREEDY, max_tokens=MOST)
WISH = StepSettings(tau=4.42, step_tokens=10)
"""A tau that some drafts pass and some do not."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """The small model's tokens are bytes."""
    small = tiny_checkpoint(tmp_path_factory.mktemp("bytes"), seed=2, layers=1)
    with Ensemble(DEMO / "target", small=small, dtype="float32", blocks=60, drafter="none", check=True) as made:
        yield made


def twin(mixed: Ensemble) -> list[tuple[str, list[int]]]:
    """SpecReason's loop, nothing cached: (author, tokens of the base model) of each step. The small model keeps its own
    bytes, which need not be whole characters, and is told the base model's steps as texts."""
    base, other = mixed.llm.text, mixed.runner.texts[SMALL]
    judge, prompt, text, own = DraftJudge.of(base), mixed.llm.ids(PROMPT), list[int](), list[int]()
    trace = list[tuple[str, list[int]]]()
    while len(text) < MOST:
        left = min(WISH.step_tokens, MOST - len(text))
        stop = {"stop": (WISH.separator,), "include_stop": True}
        wrote = greedy(mixed, SMALL, [*other.encode(PROMPT), *own], left, **stop).output
        author, part = SMALL, ids(base, plain(other, wrote))
        asked = [*prompt, *text, *part, *judge.suffix]
        told = greedy(mixed, BASE, asked, 1, allowed_tokens=judge.digits, logprobs=10).logprobs[0].top
        if score(told, judge.digits, WISH.score) < WISH.tau:
            author, part = BASE, greedy(mixed, BASE, [*prompt, *text], left, **stop).output
            wrote = ids(other, plain(base, part))
        part = part[: MOST - len(text)]
        trace.append((author, part))
        text, own = [*text, *part], [*own, *wrote]
    return trace


def compare(mixed: Ensemble) -> None:
    answer, want = mixed.generate(PROMPT, WISH, LONG), twin(mixed)
    assert answer.token_ids == [token for _, part in want for token in part]
    told = [(segment["author"], segment["tokens"]) for segment in answer.report["segments"]]
    assert told == [(author, len(part)) for author, part in want]
    assert {author for author, _ in told} == {SMALL, BASE} and len(told) > 4
    clean(mixed)


def test_hand_overs_by_text_are_the_slow_twins(mixed: Ensemble) -> None:
    compare(mixed)


def the_small_model_does_not_hear_the_base_model(self: Pen, part: PenPart, author: Pen) -> None:
    self.own += part.tokens if author is self else []


def the_small_model_hears_tokens(self: Pen, part: PenPart, author: Pen) -> None:
    self.own += [token % 256 for token in part.tokens]


@pytest.mark.parametrize("heard", [the_small_model_does_not_hear_the_base_model, the_small_model_hears_tokens])
def test_a_mutant_dies(mixed: Ensemble, heard: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pen, "heard", heard)
    with pytest.raises(AssertionError):
        compare(mixed)


def test_at_either_end_of_tau_it_is_one_models_text(mixed: Ensemble) -> None:
    short = replace(GREEDY, max_tokens=40)
    for tau, name in ((0.0, SMALL), (9.1, BASE)):
        answer = mixed.generate(PROMPT, replace(WISH, tau=tau), short)
        assert {s["author"] for s in answer.report["segments"]} == {name} and answer.report["proposed"] > 1
        clean(mixed)
    assert answer.token_ids == alone(mixed, BASE, short)


def test_what_speaks_of_tokens_is_refused(mixed: Ensemble) -> None:
    with pytest.raises(RefusalError, match="another tokenizer"):
        mixed.generate(PROMPT, MentorSettings(), GREEDY)
    with pytest.raises(RefusalError, match="logit_bias"):
        mixed.generate(PROMPT, StepSettings(), replace(GREEDY, logit_bias={3: 1.0}))
