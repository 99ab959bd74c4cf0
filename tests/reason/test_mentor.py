"""The mentor: its own student's text, what it takes over and for how long, and what a hand-over costs."""

from dataclasses import replace
from typing import Any

import pytest

from paceline import InputError, SamplingParams
from paceline.reason import Cues, Ensemble, MentorSettings
from paceline.reason.ensemble import make
from paceline.reason.runner import BASE, SMALL
from tests.reason.conftest import DRAWN, GREEDY, PROMPT, alone, clean

LONG = replace(GREEDY, max_tokens=300)
OFTEN = Cues(negative=("he", "she"), positive=("total",), verify=("so",))
"""Words that the demo pair writes."""


def mentor(**changes: Any) -> MentorSettings:
    return MentorSettings(**{"separator": "apples", "peek": 6, "verify": 12, "cues": OFTEN, "check": "", **changes})


@pytest.mark.parametrize(
    ("text", "sentiment"),
    [
        ("Wait, let me think again.", -1), ("Yes, I am confident.", 1), ("Yes. Wait.", -1), ("yes yes wait", 1),
        ("Bayes saw it in his eyes; the checkers are awaited.", 0), ("", 0), ("The\nFINAL   ANSWER is 4", 1),
        ("Hold on - double-check", -1), ("Rechecking wait_time", 0),
    ],
)  # fmt: skip
def test_cues_are_words(text: str, sentiment: int) -> None:
    assert Cues().sentiment(text) == sentiment


def test_a_cue_within_another_counts_once() -> None:
    assert Cues(verify=("check", "double-check"), negative=(), positive=("yes",)).sentiment("yes yes double-check") == 1
    assert Cues().verifies("Let me verify") and not Cues().verifies("unverified")


@pytest.mark.parametrize("params", [GREEDY, DRAWN, replace(GREEDY, ignore_eos=False)])
@pytest.mark.parametrize("wish", [mentor(), mentor(always=True), mentor(choose="opposite"), mentor(begin=7, excess=1)])
def test_a_mentor_like_the_student_changes_nothing(
    twins: Ensemble, params: SamplingParams, wish: MentorSettings
) -> None:
    answer = twins.generate(PROMPT, wish, params)
    assert answer.token_ids == alone(twins, SMALL, params)
    if params.ignore_eos:
        assert "mentor" in {s["author"] for s in answer.report["segments"]} or wish.choose == "opposite"
    clean(twins)


def test_without_a_cue_the_student_is_alone(pair: Ensemble) -> None:
    answer = pair.generate(PROMPT, mentor(cues=Cues(("qqq",), ("qqq",), ("qqq",))), LONG)
    assert answer.token_ids == alone(pair, SMALL, LONG)
    report = answer.report
    assert report["proposed"] == report["accepted"] > 2 and BASE not in report["models"]
    assert report["models"][SMALL]["requests"] == 1, "a neutral peek is the student's own text, in the same request"


def test_hand_overs_compute_the_delta(pair: Ensemble) -> None:
    for engine in pair.runner.engines.values():
        engine.cache.drop_prefix()
    prompt = [*pair.llm.ids(PROMPT)] * 20
    report = pair.generate(prompt, mentor(always=True), LONG).report
    size, known, accepted = pair.llm.engine.config.block_size, {BASE: 0, SMALL: 0}, 0
    for each in report["handovers"]:
        assert each["cached"] >= known[each["model"]] - size
        known[each["model"]] = max(known[each["model"]], each["at"])
        accepted += 1
    later = [each for each in report["handovers"] if each["cached"]]
    share = sum(each["cached"] for each in later) / sum(each["at"] for each in later)
    assert accepted >= 5 and share > 0.9, share


def test_bursts_grow(pair: Ensemble) -> None:
    """excess 1, 6, 11, ...; recapitulations of 10, 35, 60 tokens."""
    cues = Cues(verify=(), negative=("a", "e", "he", "she", "so", "the", "total", "apples", "has", "how", "many"))
    prompt, params = pair.llm.ids(PROMPT), replace(GREEDY, max_tokens=900).resolve({})
    policy: Any = pair.policy(mentor(excess=1, recap=10, cues=cues, peek=3), None, PROMPT)
    [request] = pair.runner.submit(prompt, params, policy)
    while not request.finish:
        pair.runner.step()
    recaps = [each["wrote"] for each in policy.report["handovers"] if each["why"] == "recap"]
    assert recaps[:2] == [10, 35][: len(recaps)] and recaps
    assert (policy.excess, policy.recap) == (1 + 5 * len(recaps), 10 + 25 * len(recaps))
    full: Any = pair.policy(MentorSettings(), None, PROMPT)
    assert (full.excess, full.recap) == (15, 125)


def test_the_self_check_is_written_once_a_recapitulation(pair: Ensemble) -> None:
    answer = pair.generate(PROMPT, mentor(excess=1, check="Stop here. "), LONG)
    recaps = [each for each in answer.report["handovers"] if each["why"] == "recap"]
    assert answer.text.count("Stop here. ") == len(recaps) >= 1


def test_text_only_grows(pair: Ensemble) -> None:
    params = LONG.resolve({})
    [request] = pair.runner.submit(pair.llm.ids(PROMPT), params, pair.policy(mentor(always=True), None, PROMPT))
    seen, text = list[int](), ""
    while request.finish is None:
        pair.runner.step()
        assert request.output[: len(seen)] == seen and request.text.startswith(text)
        seen, text = list(request.output), request.text
    assert len(seen) == 300


def test_a_budget_ends_the_mentors_part(pair: Ensemble) -> None:
    report = pair.generate(PROMPT, mentor(always=True, budget=6), LONG).report
    assert sum(s["tokens"] for s in report["segments"] if s["author"] == "mentor") == 6


def test_bad_wishes_have_one_sentence(pair: Ensemble) -> None:
    for wrong in ({"choose": "best"}, {"peek": 0}, {"verify": -1}, {"recap": 0}, {"separator": ""}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            mentor(**wrong)
    assert make(pair.runner, pair.llm.text, mentor(), None).kind == "mentor"
