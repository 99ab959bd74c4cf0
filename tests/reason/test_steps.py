"""Steps: whose text it is at either end of tau, what hand-overs cost, and how an answer may end."""

from itertools import pairwise

import pytest

from paceline import CapacityError, InputError, RefusalError, SamplingParams
from paceline.engine.options import Options
from paceline.engine.pair import DEMO
from paceline.reason import Ensemble, MentorSettings, StepSettings
from paceline.reason.ensemble import PolicyAnswer, split
from paceline.reason.runner import BASE, SMALL, Runner
from tests.reason.conftest import DRAWN, GREEDY, OPTIONS, PROMPT, alone, clean


def steps(**changes: object) -> StepSettings:
    return StepSettings(**{"separator": "apples", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_at_either_end_of_tau_it_is_one_models_own_text(pair: Ensemble, params: SamplingParams) -> None:
    for tau, name in ((0.0, SMALL), (9.1, BASE)):
        answer = pair.generate(PROMPT, steps(tau=tau), params)
        assert answer.token_ids == alone(pair, name, params)
        assert {segment["author"] for segment in answer.report["segments"]} == {name}
        assert answer.report["proposed"] >= 2
        clean(pair)


def test_penalties_and_limits_reach_over_steps(pair: Ensemble) -> None:
    """What a model wrote before a hand-over is still its output."""
    for wish in ({"frequency_penalty": 0.7}, {"presence_penalty": 1.5}, {"min_tokens": 60}, {"stop": "the"}):
        params = SamplingParams(temperature=0.7, seed=3, max_tokens=60, **wish)  # type: ignore[arg-type]
        answer = pair.generate(PROMPT, steps(tau=0), params)
        want = alone(pair, SMALL, params)
        assert answer.token_ids == want, wish


def test_acceptance_does_not_rise_with_tau(pair: Ensemble) -> None:
    """Until the first rejection the drafts are the same for every tau."""
    streaks, scores = [], list[float]()
    for tau in (0, 2, 3, 3.5, 4, 4.5, 5, 9.1):
        segments = pair.generate(PROMPT, steps(tau=tau), GREEDY).report["segments"]
        if not tau:
            scores = [segment["score"] for segment in segments]
        streak = next((i for i, s in enumerate(segments) if s["author"] == BASE), len(segments))
        assert streak == next((i for i, grade in enumerate(scores) if grade < tau), len(scores))
        streaks.append(streak)
    assert all(b <= a for a, b in pairwise(streaks)) and streaks[0] > streaks[-1] == 0


@pytest.mark.parametrize("tau", [0.0, 4.0, 9.1])
def test_hand_overs_compute_the_delta(pair: Ensemble, tau: float) -> None:
    """Judges and models that take up find all but one block of what their model knew."""
    for engine in pair.runner.engines.values():
        engine.cache.drop_prefix()
    report = pair.generate(PROMPT, steps(tau=tau), GREEDY).report
    size, known = pair.llm.engine.config.block_size, {BASE: 0, SMALL: 0}
    accepted = len(pair.llm.ids(PROMPT))
    for each in report["handovers"]:
        prefix = min(known[each["model"]], accepted)
        assert each["cached"] >= prefix - size
        known[each["model"]] = max(known[each["model"]], accepted)
        accepted = max(accepted, each["at"] if each["why"] != "judge" else 0)
    judges = [each for each in report["handovers"] if each["why"] == "judge"]
    assert len(judges) >= 2 and all(each["wrote"] == each["passes"] == 1 for each in judges)
    if tau == 0:
        assert report["models"][BASE]["written"] == len(judges), "an accepted step costs the base a judge's token"


def test_first_steps_and_budget(pair: Ensemble) -> None:
    segments = pair.generate(PROMPT, steps(tau=0, first=2), GREEDY).report["segments"]
    assert [s["author"] for s in segments[:3]] == [BASE, BASE, SMALL] and "score" not in segments[0]
    report = pair.generate(PROMPT, steps(tau=9.1, budget=1), GREEDY).report
    assert [s["author"] for s in report["segments"]][:2] == [BASE, SMALL] and report["proposed"] == 1


@pytest.mark.parametrize("drafter", ["model", pytest.param("ngram", marks=pytest.mark.full)])
def test_speculation_within_a_rewrite_changes_no_token(drafter: str) -> None:
    """The small model drafts steps, and tokens of the steps that the base model writes itself."""
    options = {**OPTIONS, "drafter": drafter}
    with Ensemble(DEMO / "target", draft=DEMO / "draft", small=DEMO / "draft", **options) as fast:
        for params, tau in ((GREEDY, 4.0), (DRAWN, 9.1)):
            plain, quick = (fast.generate(PROMPT, steps(tau=tau, speculate=how), params) for how in (False, True))
            assert plain.token_ids == quick.token_ids and told(plain) == told(quick)
            (wrote, passes), (same, fewer) = map(rewritten, (plain, quick))
            assert wrote == same == passes > 0 and (fewer < passes or drafter == "ngram")
        clean(fast)


def told(answer: PolicyAnswer) -> list[tuple[str, int]]:
    return [(segment["author"], segment["tokens"]) for segment in answer.report["segments"]]


def rewritten(answer: PolicyAnswer) -> tuple[int, int]:
    """Tokens and passes of the steps that the base model wrote."""
    hands = [each for each in answer.report["handovers"] if each["why"] == "rewrite"]
    return sum(each["wrote"] for each in hands), sum(each["passes"] for each in hands)


def test_a_step_may_be_cut_and_a_blank_one_is_none(pair: Ensemble) -> None:
    answer = pair.generate(PROMPT, steps(tau=0, step_tokens=5), GREEDY)
    assert answer.token_ids == alone(pair, SMALL, GREEDY)
    assert max(s["tokens"] for s in answer.report["segments"]) <= 5
    blank = pair.generate(PROMPT, StepSettings(tau=0, separator=" "), GREEDY)
    assert blank.token_ids == alone(pair, SMALL, GREEDY)
    assert all(s["text"].strip() for s in blank.report["segments"][:-1])


def test_repeats_end_it_where_that_is_asked(pair: Ensemble) -> None:
    bias = SamplingParams(temperature=0, max_tokens=60, logit_bias={pair.llm.text.tokenizer.encode(".")[-1]: 100.0})
    assert pair.generate(PROMPT, steps(tau=0, separator="."), bias).finish_reason == "length"
    answer = pair.generate(PROMPT, steps(tau=0, separator=".", repeats=3), bias)
    assert (answer.finish_reason, answer.report["ended"], len(answer.token_ids)) == ("stop", "repeat", 3)


def test_a_deadline_returns_what_stands(pair: Ensemble) -> None:
    times = iter(range(10_000))
    pair.runner.clock, real = lambda: next(times), pair.runner.clock
    try:
        answer = pair.generate(PROMPT, steps(tau=9.1, deadline_s=120), GREEDY)
    finally:
        pair.runner.clock = real
    whole = alone(pair, BASE, GREEDY)
    assert (answer.finish_reason, answer.report["ended"]) == ("length", "deadline")
    assert 0 < len(answer.token_ids) < len(whole) and answer.token_ids == whole[: len(answer.token_ids)]
    clean(pair)


def test_leaving_at_any_time_leaves_nothing(pair: Ensemble) -> None:
    """Closing a stream ends drafts, judges and rewrites alike."""
    messages = [{"role": "user", "content": PROMPT}]
    for count in (1, 2, 3):
        stream = pair.stream(messages, steps(tau=4), GREEDY)
        for _ in range(count):
            next(stream)
        stream.close()
        clean(pair)
    for wish in (steps(tau=4), MentorSettings(always=True, separator="apples")):
        for stops in range(1, 60, 7):
            params, ids = GREEDY.resolve({}), pair.llm.ids(PROMPT)
            [request] = pair.runner.submit(ids, params, pair.policy(wish, None, PROMPT))
            for _ in range(stops):
                pair.runner.step()
            pair.runner.abort(request)
            clean(pair)


def test_a_stream_is_the_accepted_text(pair: Ensemble) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    for wish in (steps(tau=4), MentorSettings(always=True, separator="apples", peek=5)):
        pieces = list(pair.stream(messages, wish, GREEDY))
        answer = pair.chat(messages, wish, GREEDY)
        assert "".join(text for text, _ in pieces) == answer.text
        assert {author for _, author in pieces} == {s["author"] for s in answer.report["segments"]}
        assert "".join(s["text"] for s in answer.report["segments"]) == answer.text


def test_bad_wishes_have_one_sentence(pair: Ensemble) -> None:
    for wrong in ({"score": "max"}, {"step_tokens": 0}, {"first": -1}, {"repeats": 1}, {"separator": ""}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            steps(**wrong)
    single = Runner({BASE: pair.llm.engine})
    with pytest.raises(RefusalError, match="second, small model"):
        single.submit(pair.llm.ids(PROMPT), GREEDY.resolve({}), pair.policy(steps(), None, PROMPT))


def test_one_budget_for_both() -> None:
    for memory in (120 << 20, 200 << 20):
        base, small = split(Options(DEMO / "target", memory=memory, dtype="float32"), DEMO / "draft")
        assert base.memory + small.memory == memory and min(base.memory, small.memory) > 0  # type: ignore[operator]
    with pytest.raises(CapacityError, match="both models"):
        split(Options(DEMO / "target", memory=1 << 20), DEMO / "draft")
    with pytest.raises(RefusalError, match="prefix_cache"):
        split(Options(DEMO / "target", prefix_cache=False), DEMO / "draft")
