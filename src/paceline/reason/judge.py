"""The judge of a step: one model grades what another wrote with one digit, off the end of the text that it knows.

    [prompt][accepted steps][draft] [question: how good is that, 0-9][begin of an answer] -> one token of ten
    └─ in its prefix cache ┘└──────────── computed ────────────────┘

SpecReason (arXiv 2504.07891), section 4. The digit's distribution is that of the ten digits alone; the score is its
mean, or the most probable digit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.errors import InputError, RefusalError
from paceline.engine.text import Message, Text

GRADING_QUESTION = "Grade only the last step of your reasoning: from 0 (wrong) to 9 (right). Answer with one digit."
"""Short, since a judge computes it again for each step."""
LEADS = ("Score: ", "Score:", "Score:\n", "")
"""What the answer begins with: the first behind which each digit is one token."""
MARK = "Yb7qMark"
"""A word that no template has."""
DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class DraftJudge:
    """What stands between a draft and its score. Token ids."""

    suffix: list[int]
    digits: tuple[int, ...]
    """The tokens of 0 to 9."""

    @classmethod
    def of(cls, text: Text, messages: Sequence[Message] | None = None) -> "DraftJudge":
        """For a conversation by the model's chat template; without one, plain text. RefusalError for a tokenizer that
        does not write a digit as one token."""
        opening = after(text, messages) if messages else f"\n\n({GRADING_QUESTION})\n"
        for lead in LEADS:
            suffix = ids(text, opening + lead)
            grown = [ids(text, opening + lead + digit) for digit in DIGITS]
            if all(len(it) == len(suffix) + 1 and it[:-1] == suffix for it in grown):
                digits = tuple(it[-1] for it in grown)
                if len(set(digits)) == len(DIGITS):
                    return cls(suffix, digits)
        raise RefusalError("The judge's tokenizer has no token for each digit, so it cannot score steps; use mentor.")


def ids(text: Text, plain: str) -> list[int]:
    return list(text.tokenizer.encode(plain, add_special_tokens=False))


def after(text: Text, messages: Sequence[Message]) -> str:
    """What a conversation goes on with behind an answer, up to where the answer to GRADING_QUESTION begins."""
    user = [message for message in messages if message.get("role") == "user"][-1:]
    if not user:
        raise InputError("messages has none of role user, so there is nothing that steps could answer; add one.")
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": MARK}]
    whole = text.render([*talk, {"role": "user", "content": GRADING_QUESTION}])
    return whole.rsplit(MARK, 1)[1]


def score(logprobs: Mapping[int, float], digits: Sequence[int], how: str) -> float:
    """From log-probabilities of tokens the score in [0, 9]: `mean`, sum of i p_i / sum of p_i over the digits that are
    there, or `argmax`, the most probable of them. InputError where none is."""
    weights = {i: math.exp(logprobs[token]) for i, token in enumerate(digits) if token in logprobs}
    total = sum(weights.values())
    if not total > 0:
        raise InputError("The judge gave no digit a chance.")
    if how == "argmax":
        return float(max(weights, key=lambda i: weights[i]))
    return sum(i * weight for i, weight in weights.items()) / total
