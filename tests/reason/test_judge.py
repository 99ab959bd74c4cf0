"""The digit's distribution, by hand and from a model's own logits."""

import math

import pytest

from paceline import InputError, RefusalError, SamplingParams
from paceline.engine.pair import DEMO
from paceline.reason import Ensemble, StepSettings
from paceline.reason.judge import DIGITS, DraftJudge, score
from paceline.reason.runner import BASE, SMALL
from tests.reason.conftest import GREEDY, OPTIONS, PROMPT, alone

TOKENS = tuple(range(100, 110))


def law(chances: dict[int, float]) -> dict[int, float]:
    return {token: math.log(chance) for token, chance in chances.items()}


def test_mean_and_argmax_by_hand() -> None:
    told = law({107: 0.5, 104: 0.25, 9: 0.25})
    assert score(told, TOKENS, "mean") == pytest.approx((7 * 0.5 + 4 * 0.25) / 0.75)
    assert score(told, TOKENS, "argmax") == 7
    assert score(law({9: 0.9, 103: 0.1}), TOKENS, "argmax") == 3, "the likeliest token is no digit"
    assert score(law({9: 0.9, 103: 0.1}), TOKENS, "mean") == pytest.approx(3)
    assert score(law({9: 1.0}), TOKENS, "mean") == 0, "a judge without a digit: accepted at a tau of 0 alone"
    assert score({100: math.nan, 101: math.nan}, TOKENS, "mean") == 0


def test_odds_are_nine_times_the_chance_of_yes() -> None:
    no, yes = 11, 12
    assert score(law({no: 0.2, yes: 0.6}), (no, yes), "odds") == pytest.approx(9 * 0.75)
    assert score(law({yes: 0.6}), (no, yes), "odds") == 9
    assert score(law({5: 0.6}), (no, yes), "odds") == 0


def test_calibrated_odds_by_hand() -> None:
    no, yes = 11, 12
    told = law({no: 0.2, yes: 0.6})
    assert score(told, (no, yes), "odds", 2.0, -1.0) == pytest.approx(9 / (1 + math.exp(1 - 2 * math.log(3))))
    assert score(law({yes: 0.6}), (no, yes), "odds", 2.0, -50.0) == 9
    assert score(told, (no, yes), "odds", 1.0, -800.0) == 0 and score(told, (no, yes), "odds", 500.0, 800.0) == 9
    for wrong in ({"scale": 0.0}, {"scale": math.nan}, {"shift": math.inf}, {"score": "mean", "shift": 1.0}):
        with pytest.raises(InputError, match="scale"):
            StepSettings(**{"score": "odds", **wrong})  # type: ignore[arg-type]


def test_odds_read_one_token_behind_a_shared_prefix(pair: Ensemble) -> None:
    judge = DraftJudge.of(pair.llm.text, [{"role": "user", "content": "1 + 1?"}], "odds")
    assert [pair.llm.text.decode([token]).strip() for token in judge.digits] in (["No", "Yes"], ["0", "1"])
    wish = {"score": "odds", "separator": "apples", "scale": 0.5, "shift": -1}
    for tau, author in ((0.0, SMALL), (9.1, BASE)):
        answer = pair.generate(PROMPT, StepSettings(tau=tau, **wish), GREEDY)  # type: ignore[arg-type]
        assert answer.token_ids == alone(pair, author, GREEDY)
        assert all(0 <= segment["score"] <= 9 for segment in answer.report["segments"])
    judges = [each for each in answer.report["handovers"] if each["why"] == "judge"]
    assert len(judges) > 1 and all(each["cached"] + 16 >= each["known"] for each in judges)


def test_a_small_model_that_is_the_larger_one_is_refused() -> None:
    with (
        Ensemble(DEMO / "draft", small=DEMO / "target", **OPTIONS) as swapped,
        pytest.raises(RefusalError, match="swap them"),
    ):
        swapped.generate(PROMPT, StepSettings(), GREEDY)


def test_the_mean_does_not_depend_on_where_it_is_normalised() -> None:
    chances = {100 + i: (i + 1) / 110 for i in range(10)} | {5: 0.5}
    among = {token: chance / 0.5 for token, chance in chances.items() if token >= 100}
    assert score(law(chances), TOKENS, "mean") == pytest.approx(score(law(among), TOKENS, "mean"))


def test_every_digit_is_one_token_behind_the_lead(pair: Ensemble) -> None:
    judge = DraftJudge.of(pair.llm.text, [{"role": "user", "content": "1 + 1?"}])
    assert [pair.llm.text.decode([token]).strip() for token in judge.digits] == list(DIGITS)
    assert "Grade only the last step" in pair.llm.text.decode(judge.suffix)


def test_the_score_is_that_of_the_raw_logits(pair: Ensemble) -> None:
    """The judge draws under a mask of ten tokens; here its distribution is read without one."""
    answer = pair.generate(PROMPT, StepSettings(tau=0, separator="apples"), GREEDY)
    judge, segments = DraftJudge.of(pair.llm.text), answer.report["segments"]
    size, at = pair.llm.engine.model.vocab_size, 0
    assert len(segments) >= 2
    for segment in segments:
        before, at = answer.token_ids[:at], at + segment["tokens"]
        draft = answer.token_ids[len(before) : at]
        body = [token for token in draft if token not in pair.llm.engine.session.eos]
        prompt = [*pair.llm.ids(PROMPT), *before, *body, *judge.suffix]
        wish = SamplingParams(temperature=0, max_tokens=1, logprobs=size, ignore_eos=True)
        [raw] = pair.llm.generate([prompt], wish, progress=False)
        assert raw.outputs[0].logprobs is not None
        want = score(raw.outputs[0].logprobs[0].top, judge.digits, "mean")
        assert segment["score"] == pytest.approx(want, abs=1e-4)


def test_a_tokenizer_without_digits_is_refused(pair: Ensemble) -> None:
    class Wordy:
        """Two tokens for a 7."""

        chat_template = None

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [t for c in text for t in ([ord(c)] * 2 if c == "7" else [ord(c)])]

    class Fake:
        tokenizer = Wordy()

    with pytest.raises(RefusalError, match="token for each answer"):
        DraftJudge.of(Fake())  # type: ignore[arg-type]
