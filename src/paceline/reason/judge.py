"""The judge of a step: one model grades what another wrote with one digit, off the end of the text that it knows.

    [prompt][accepted steps][draft] [question: how good is that, 0-9][begin of an answer] -> one token of ten
    └─ in its prefix cache ┘└──────────── computed ────────────────┘

SpecReason (arXiv 2504.07891), section 4. The digit's distribution is that of the ten digits alone; the score is its
mean, or the most probable digit. With `odds` the judge is asked whether the step is right, and the score is nine times
the chance of yes against no: small models are better at saying whether a step is right than how right it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from paceline.core.errors import InputError, RefusalError
from paceline.engine.text import Message, Text

JUDGE_SCORES = ("mean", "argmax", "odds")
GRADING_QUESTION = "Grade only the last step of your reasoning: from 0 (wrong) to 9 (right). Answer with one digit."
"""Short, since a judge computes it again for each step."""
LEADS = ("Score: ", "Score:", "Score:\n", "")
"""What the answer begins with: the first behind which each digit is one token."""
MARK = "Yb7qMark"
"""Text that no chat template contains, to find a place in a rendered one."""
DIGITS = "0123456789"
ODDS_QUESTIONS = (
    ("Is the last step of your reasoning right? Answer with Yes or No.", ("No", "Yes")),
    ("Is the last step of your reasoning right? Answer with 1 if it is, with 0 if not.", ("0", "1")),
)
"""Questions for the odds, and the words for no and yes: the first whose words are one token each."""
HIGHEST_SCORE = 9.0
"""Score of a step of which the judge is sure."""


@dataclass(frozen=True, slots=True)
class DraftJudge:
    """What stands between a draft and its score. Token ids."""

    suffix: list[int]
    digits: tuple[int, ...]
    """The tokens of 0 to 9, or of no and yes."""

    @classmethod
    def of(cls, text: Text, messages: Sequence[Message] | None = None, how: str = "mean") -> "DraftJudge":
        """For a conversation by the model's chat template; without one, plain text. `how`: the score. RefusalError for
        a tokenizer that does not write a digit, or yes and no, as one token."""
        asked = ODDS_QUESTIONS if how == "odds" else ((GRADING_QUESTION, tuple(DIGITS)),)
        for (question, words), lead in product(asked, LEADS):
            opening = (after(text, messages, question) if messages else f"\n\n({question})\n") + lead
            suffix = ids(text, opening)
            grown = [ids(text, opening + word) for word in words]
            if all(len(it) == len(suffix) + 1 and it[:-1] == suffix for it in grown):
                tokens = tuple(it[-1] for it in grown)
                if len(set(tokens)) == len(words):
                    return cls(suffix, tokens)
        raise RefusalError(
            "The judge's tokenizer has no single token for each answer (a digit, or yes and no), so it cannot score "
            "steps; use mentor."
        )


def ids(text: Text, plain: str) -> list[int]:
    return list(text.tokenizer.encode(plain, add_special_tokens=False))


def after(text: Text, messages: Sequence[Message], question: str = GRADING_QUESTION) -> str:
    """What a conversation goes on with behind an answer, up to where the answer to `question` begins."""
    user = [message for message in messages if message.get("role") == "user"][-1:]
    if not user:
        raise InputError("messages has none of role user, so there is nothing that steps could answer; add one.")
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": MARK}]
    whole = text.render([*talk, {"role": "user", "content": question}])
    return whole.rsplit(MARK, 1)[1]


def score(
    logprobs: Mapping[int, float], digits: Sequence[int], how: str, scale: float = 1.0, shift: float = 0.0
) -> float:
    """From log-probabilities of tokens the score in [0, 9]: `mean`, sum of i p_i / sum of p_i over the digits that are
    there, `argmax`, the most probable of them, or `odds`, 9 p_yes / (p_no + p_yes), of which `scale` and `shift`
    calibrate the log-odds. 0 where none is there: then only a tau of 0 accepts the step."""
    weights = {i: math.exp(logprobs[token]) for i, token in enumerate(digits) if token in logprobs}
    total = sum(weights.values())
    if not total > 0:
        return 0.0
    if how == "argmax":
        return float(max(weights, key=lambda i: weights[i]))
    mean = sum(i * weight for i, weight in weights.items()) / total
    return HIGHEST_SCORE * calibrated(mean, scale, shift) if how == "odds" else mean


def calibrated(chance: float, scale: float, shift: float) -> float:
    """A chance whose log-odds are multiplied by `scale` (> 0), and `shift` added: a chance of 0 or 1 stays."""
    if not 0 < chance < 1 or (scale, shift) == (1, 0):
        return chance
    odds = scale * math.log(chance / (1 - chance)) + shift
    return 1 / (1 + math.exp(-odds)) if odds > 0 else math.exp(odds) / (1 + math.exp(odds))
