"""Cue words of reflection, affirmation and verification, counted as words: the "yes" of "Bayes" is none."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

VERIFY = ("verify", "think again", "recap", "check", "double-check")
NEGATIVE = ("wait", "alternatively", "hold on", "another")
POSITIVE_WORDS = ("yeah", "yes", "final answer", "confident")


@dataclass(frozen=True, slots=True)
class Cues:
    """Words and phrases, lower-case."""

    verify: tuple[str, ...] = VERIFY
    negative: tuple[str, ...] = NEGATIVE
    positive: tuple[str, ...] = POSITIVE_WORDS

    def sentiment(self, text: str) -> int:
        """+1 where affirmations are more, -1 where reflections and verifications are more or as many, 0 without a
        cue."""
        good = count(self.positive, text)
        bad = count(self.negative, text) + count(self.verify, text)
        return 0 if not good + bad else 1 if good > bad else -1

    def verifies(self, text: str) -> bool:
        return count(self.verify, text) > 0


def count(words: Sequence[str], text: str) -> int:
    """How often words of the list stand in a text, in any case."""
    return len(pattern(tuple(words)).findall(text)) if words else 0


@lru_cache(maxsize=64)
def pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """The longest first, so that "double-check" is one cue and not two."""
    parts = [r"\s+".join(map(re.escape, word.split())) for word in sorted(words, key=len, reverse=True)]
    return re.compile(rf"(?<![\w])(?:{'|'.join(parts)})(?![\w])", re.IGNORECASE)
