"""How sure a model was, from log-probabilities of its tokens.

Under a constraint the distribution is that of the allowed tokens alone, so these are probabilities given that the
answer keeps to its form. They rank answers; whether they are calibrated is for each application to measure.
"""

import math
from collections.abc import Mapping, Sequence

from .client import Token
from .forms import WRAP


def mean(tokens: Sequence[Token]) -> float | None:
    """The geometric mean of the tokens' probabilities, in (0, 1]; None without log-probabilities."""
    return math.exp(sum(t.logprob for t in tokens) / len(tokens)) if tokens else None


def of_part(tokens: Sequence[Token], begin: int, end: int) -> float | None:
    """The probability of the part [begin, end) of the text that the tokens make, in characters: the product over the
    tokens that lie in it. None without log-probabilities."""
    total, at, found = 0.0, 0, False
    for token in tokens:
        at, before = at + len(token.token), at
        if before < end and at > begin and token.token.strip():
            total, found = total + token.logprob, True
    return math.exp(total) if found else None


def over_words(tokens: Sequence[Token], words: Sequence[str], wrapped: bool) -> dict[str, float]:
    """The probability of each word, summing to 1; empty without log-probabilities.

    At each place the mass of a token that was not taken goes to the words that it still leads to, in equal parts where
    it leads to several; what the listed alternatives do not cover is left out before scaling.
    """
    mass, path, before = dict.fromkeys(words, 0.0), 1.0, ""
    for token in tokens:
        for other in token.top:
            if other.token != token.token:
                spread(mass, stem(before + other.token, wrapped), path * math.exp(other.logprob))
        path, before = path * math.exp(token.logprob), before + token.token
    spread(mass, stem(before, wrapped), path, whole=True)
    total = sum(mass.values())
    return {word: m / total for word, m in mass.items()} if total and tokens else {}


def stem(text: str, wrapped: bool) -> str | None:
    """The part of a text that belongs to the word; None while a wrapped answer's word has not begun."""
    if not wrapped:
        return text
    return text[found.end() :] if (found := WRAP.match(text)) else None


def spread(mass: dict[str, float], begun: str | None, amount: float, whole: bool = False) -> None:
    """Give `amount` to the words that a text leads to; a `whole` one leads no further."""
    if not begun:
        return
    to = [] if whole else [w for w in mass if w.startswith(begun)]
    to = to or sorted((w for w in mass if begun.startswith(w)), key=len)[-1:]
    for word in to:
        mass[word] += amount / len(to)


def expected(probabilities: Mapping[str, float]) -> float:
    """The mean of words that are numbers, such as scores from 0 to 9."""
    return sum(float(word) * p for word, p in probabilities.items())
