"""Steps and mentor are their slow twins, and ways in which they can go wrong: each differs from a twin, or from the one
model that the text should be of."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from paceline.core.operations import Submit
from paceline.reason import Cues, Ensemble, MentorSettings, StepSettings, cues, steps
from paceline.reason.mentor import Breaks, Mentor
from paceline.reason.pen import Pen, PenPart
from paceline.reason.runner import BASE, SMALL
from paceline.reason.steps import StepwiseAnswer
from tests.reason import slow
from tests.reason.conftest import DRAWN, GREEDY, PROMPT, alone

pytestmark = pytest.mark.full
MOST = 60
SHORT = replace(GREEDY, max_tokens=MOST)
STEPS = [StepSettings(separator="apples", tau=tau, first=first) for tau, first in ((3.5, 0), (4.0, 1), (4.5, 0))]
OFTEN = Cues(negative=("he", "she"), positive=("total",), verify=("so",))
MENTORS = [
    MentorSettings(separator="apples", peek=6, verify=12, cues=OFTEN, check="Stop. ", **changes)  # type: ignore[arg-type]
    for changes in ({}, {"begin": 5, "excess": 1, "recap": 9}, {"choose": "opposite"}, {"always": True})
]


def stepwise(pair: Ensemble) -> None:
    """Text, authors and scores are the twin's."""
    for wish in STEPS:
        answer, want = pair.generate(PROMPT, wish, SHORT), slow.steps(pair, pair.llm.ids(PROMPT), wish, MOST)
        assert answer.token_ids == [token for _, part, _ in want for token in part]
        told = [(s["author"], s["tokens"], s.get("score")) for s in answer.report["segments"]]
        assert [each[:2] for each in told] == [(author, len(part)) for author, part, _ in want]
        for (_, _, got), (_, _, grade) in zip(told, want):
            assert got == (grade if grade is None else pytest.approx(grade, abs=1e-4))


def mentored(pair: Ensemble) -> None:
    """Text and authors are the twin's."""
    for wish in MENTORS:
        answer, want = pair.generate(PROMPT, wish, SHORT), slow.mentor(pair, pair.llm.ids(PROMPT), wish, MOST)
        assert answer.token_ids == [token for _, part in want for token in part], wish
        told = [(each["author"], each["tokens"]) for each in answer.report["segments"]]
        assert summed(told) == summed([(author, len(part)) for author, part in want])


WORDS = ("has", "how", "he", "she", "so", "many", "did", "left", "apples", "people")
"""Words that the demo pair writes."""
WITHIN = Cues(negative=("pple",), positive=("ppl",), verify=("otal",))
"""Parts of words that the demo pair writes."""
VERIFIED = MentorSettings(separator="apples", peek=6, verify=12, cues=Cues(WORDS, (), ()), check="")
TIRED = MentorSettings(separator="H", peek=4, verify=0, excess=2, recap=5, check="Stop. ", cues=Cues((), WORDS, ()))


def within(pair: Ensemble) -> None:
    """Cues that stand within words alone call nobody."""
    wish = MentorSettings(separator="\n", peek=40, cues=WITHIN)
    params = replace(GREEDY, max_tokens=200)
    answer = pair.generate(PROMPT, wish, params)
    assert answer.text.count("pple") >= 2 and answer.report["proposed"] >= 2
    assert answer.token_ids == alone(pair, SMALL, params) and BASE not in answer.report["models"]


def verified(pair: Ensemble) -> None:
    """A mentor that verifies writes on, as in the twin."""
    twin(pair, VERIFIED, "verify")


def tired(pair: Ensemble) -> None:
    """Reflections are counted, and too many are answered with a recapitulation, as in the twin."""
    twin(pair, TIRED, "recap")


def twin(pair: Ensemble, wish: MentorSettings, why: str) -> None:
    """Text and authors are the twin's, and something was written for this reason."""
    answer, want = pair.generate(PROMPT, wish, SHORT), slow.mentor(pair, pair.llm.ids(PROMPT), wish, MOST)
    told = [(each["author"], each["tokens"]) for each in answer.report["segments"]]
    assert summed(told) == summed([(author, len(part)) for author, part in want])
    assert answer.token_ids == [token for _, part in want for token in part]
    assert any(each["why"] == why for each in answer.report["handovers"])


def summed(parts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Neighbours of one author are one."""
    sums = [(author, sum(tokens for _, tokens in each)) for author, each in groupby(parts, lambda part: part[0])]
    return [(author, tokens) for author, tokens in sums if tokens]


def sampled(pair: Ensemble) -> None:
    """At tau 0 it is the small model's own text, drawn with one seed over all steps."""
    answer = pair.generate(PROMPT, StepSettings(separator=" ", tau=0), DRAWN)
    assert answer.token_ids == alone(pair, SMALL, DRAWN)
    assert len(answer.report["segments"]) > 5


def hands(pair: Ensemble) -> None:
    """A hand-over computes what is new, and at most a block more."""
    for wish in (STEPS[0], MENTORS[3]):
        for engine in pair.runner.engines.values():
            engine.cache.drop_prefix()
        found = pair.generate(PROMPT, wish, GREEDY).report["handovers"]
        assert len(found) >= 4 and any(each["known"] > 32 for each in found)
        assert all(each["known"] - each["cached"] <= pair.llm.engine.config.block_size for each in found)


@pytest.mark.parametrize(
    "check", [stepwise, mentored, sampled, hands, within, verified, tired], ids=lambda check: check.__name__
)
def test_it_is_the_slow_twin(pair: Ensemble, check: Callable[[Ensemble], None]) -> None:
    check(pair)


# -- mutants -----------------------------------------------------------------------------------------------------------


def the_judge_misses_the_last_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "Submit", lambda prompt, params: Submit(prompt[:-1], params))


def low_scores_are_good(patch: pytest.MonkeyPatch) -> None:
    real = steps.score
    patch.setattr(steps, "score", lambda *args: 9 - real(*args))


def the_base_model_sees_the_draft(patch: pytest.MonkeyPatch) -> None:
    real, last = Pen.write, list[int]()

    def write(self: Pen, most: int, why: str, stops: Any = (), ahead: Any = ()) -> Any:
        part = yield from real(self, most, why, stops, last if why == "rewrite" and len(last) < most else ahead)
        last[:] = part.tokens if why == "draft" else []
        return part

    patch.setattr(Pen, "write", write)


def the_first_steps_are_judged(patch: pytest.MonkeyPatch) -> None:
    real = StepwiseAnswer.script
    patch.setattr(StepwiseAnswer, "script", lambda self, stage: real(replace_wishes(self, first=0), stage))


def replace_wishes(policy: Any, **changes: Any) -> Any:
    policy.settings = replace(policy.settings, **changes)
    return policy


def a_draft_loses_its_end(patch: pytest.MonkeyPatch) -> None:
    real = Pen.done

    def done(self: Pen, request: Any, before: int, begun: float, why: str) -> PenPart:
        part = real(self, request, before, begun, why)
        return replace(part, tokens=part.tokens[:-1]) if len(part.tokens) > 2 and not part.cut else part

    patch.setattr(Pen, "done", done)


def the_students_peek_stands_before_the_mentors(patch: pytest.MonkeyPatch) -> None:
    real = Mentor.take

    def take(self: Mentor, pen: Pen, peek: PenPart) -> Any:
        pen.stage.transcript.add(peek.tokens, SMALL)
        return (yield from real(self, pen, peek))

    patch.setattr(Mentor, "take", take)


def a_paragraph_ends_a_token_late(patch: pytest.MonkeyPatch) -> None:
    real = Breaks.next

    def late(self: Breaks, tokens: list[int], least: int) -> int | None:
        at = real(self, tokens, least)
        return at if at is None else min(at + 1, len(tokens))

    patch.setattr(Breaks, "next", late)


def every_hand_over_begins_from_nothing(patch: pytest.MonkeyPatch) -> None:
    real = Pen.begin

    def begin(self: Pen, most: int, stops: Any = (), ahead: Any = ()) -> Any:
        self.stage.engines[self.name].cache.drop_prefix()
        return real(self, most, stops, ahead)

    patch.setattr(Pen, "begin", begin)


def cues_are_matched_within_words(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cues, "pattern", lambda words: re.compile("|".join(map(re.escape, words)), re.IGNORECASE))


def nothing_follows_a_verification(patch: pytest.MonkeyPatch) -> None:
    real = Mentor.burst

    def burst(self: Mentor, pen: Pen, most: int, why: str) -> Any:
        if why == "verify":
            return PenPart([], "", False, True)
        return (yield from real(self, pen, most, why))

    patch.setattr(Mentor, "burst", burst)


def reflections_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mentor, "reflections", property(lambda self: 0, lambda self, count: None))


def each_step_draws_anew(patch: pytest.MonkeyPatch) -> None:
    """The first step has the seed of the answer, later ones have others."""
    real = Pen.begin

    def begin(self: Pen, most: int, stops: Any = (), ahead: Any = ()) -> Any:
        request = self.stage.transcript.request
        seed, request.seed = request.seed, request.seed + len(self.stage.transcript.tokens)
        try:
            return real(self, most, stops, ahead)
        finally:
            request.seed = seed

    patch.setattr(Pen, "begin", begin)


MUTANTS = {
    stepwise: [the_judge_misses_the_last_token, low_scores_are_good, the_base_model_sees_the_draft,
               the_first_steps_are_judged, a_draft_loses_its_end],
    mentored: [the_students_peek_stands_before_the_mentors, a_paragraph_ends_a_token_late],
    hands: [every_hand_over_begins_from_nothing],
    within: [cues_are_matched_within_words],
    verified: [nothing_follows_a_verification],
    tired: [reflections_are_not_counted],
    sampled: [each_step_draws_anew],
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "mutant"),
    [(check, mutant) for check, mutants in MUTANTS.items() for mutant in mutants],
    ids=lambda it: it.__name__,
)
def test_a_mutant_dies(
    pair: Ensemble, check: Callable[[Ensemble], None], mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(pair)
