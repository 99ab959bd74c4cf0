"""`ngram`: prompt lookup decoding (Saxena, 2023). The draft is what followed the last n tokens earlier in the text.

The index maps every n-gram of prompt and output to the place after its most recent occurrence; it grows by one
entry per n and token, so a step costs O(new tokens), not O(length).

How much to draft is learned from the request's own text: before a committed token enters the index, the index is asked
what it would have guessed there. So the hit rate of each n is known without spending a row on it, also where nothing
is drafted, and it depends on committed tokens alone.
"""

from collections.abc import Sequence
from functools import partial

from paceline.core.forest import Forest, Law
from paceline.core.plan import Worth
from paceline.core.registry import Offers
from paceline.core.rows import Lookups
from paceline.core.verdict import Verdict
from paceline.draft import DRAFTERS, Ask, Host, View

LONGEST = 4
WORTH = Worth(0.06)
"""A node is drafted while the chance that it is kept is at least this, unless the planner knows better: a row beyond
the first costs 1-3 % of a step."""
STAMINA = 0.8
"""Least chance, once a guess was right, that the next one of the same run is."""
MEMORY = 0.95
"""Weight of a rate's past at each new observation."""
TRIES = {True: 3.0, False: 20.0}
"""A rate starts as one hit in this many tries, for greedy requests and for others. A sampled text repeats itself less:
its rates start below WORTH, so nothing is drafted until a guess would have been right."""


class Index:
    """n-grams of one growing text -> position after their most recent occurrence that has a continuation."""

    def __init__(self, prompt: int = 0, greedy: bool = True) -> None:
        """`prompt`: tokens that are not the model's own, whose predictability says nothing of its output's."""
        self.after: dict[tuple[int, ...], int] = {}
        self.prompt, self.seen = prompt, 1
        self.hits = [1.0] * (LONGEST + 1)
        self.tries = [TRIES[greedy]] * (LONGEST + 1)

    def extend(self, tokens: list[int]) -> None:
        """Enter every n-gram of `tokens` that ends before the last token (the suffix itself has no continuation)."""
        for end in range(self.seen, len(tokens)):
            if end >= self.prompt:
                self._observe(tokens, end)
            for n in range(1, min(LONGEST, end) + 1):
                self.after[tuple(tokens[end - n : end])] = end
        self.seen = max(self.seen, len(tokens))

    def _observe(self, tokens: list[int], end: int) -> None:
        n, start = self.match(tokens, end)
        if n:
            self.hits[n] = MEMORY * self.hits[n] + (tokens[start] == tokens[end])
            self.tries[n] = MEMORY * self.tries[n] + 1

    def match(self, tokens: list[int], end: int) -> tuple[int, int]:
        """Length of the longest known suffix of tokens[:end], and the place after its last occurrence; (0, 0)."""
        for n in range(min(LONGEST, end - 1), 0, -1):
            start = self.after.get(tuple(tokens[end - n : end]))
            if start is not None:
                return n, start
        return 0, 0

    def size(self, n: int, most: int, least: float) -> int:
        """How many nodes a match of length n deserves."""
        rate = chance = self.hits[n] / self.tries[n]
        count = 0
        while count < most and chance >= least:
            count, chance = count + 1, chance * max(rate, STAMINA)
        return count

    def lookup(self, tokens: list[int], count: int) -> list[int]:
        """`count` tokens that followed the longest known suffix; a match that reaches the end of the text continues
        into what it has itself drafted (a period repeats)."""
        n, start = self.match(tokens, len(tokens))
        return self._copy(tokens, start, count) if n else []

    @staticmethod
    def _copy(tokens: list[int], start: int, count: int) -> list[int]:
        drafted = tokens[start : start + count]
        while len(drafted) < count:
            drafted.append(drafted[start - len(tokens)])
        return drafted

    def draft(self, tokens: list[int], most: int, least: float = WORTH.node) -> list[int]:
        """What is worth drafting after `tokens`, at most `most`, each kept with a chance of at least `least`."""
        self.extend(tokens)
        n, start = self.match(tokens, len(tokens))
        return self._copy(tokens, start, self.size(n, most, least)) if n else []


@DRAFTERS.register(
    "ngram",
    Offers(
        summary="prompt lookup over prompt and output",
        laws=frozenset({Law.POINT}),
        shape="chain",
        nodes=15,
        thrifty=True,
        runs=True,
    ),
)
class NgramDrafter:
    def __init__(self, host: Host) -> None:
        pass

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            if ask.item.nodes:
                tokens = self._index(ask, view).draft(ask.request.tokens, ask.item.chain, _worth(ask))
                forest.add_chain(ask.place, tokens, ask.law)
        return forest

    def chains(self, asks: Sequence[Ask], view: View) -> Lookups:
        """The library looks up without an index; it is told how often matches were right."""
        texts, rates = [ask.request.tokens for ask in asks], []
        for ask, tokens in zip(asks, texts):
            index = self._index(ask, view)
            index.extend(tokens)
            rates.append([x for pair in zip(index.hits, index.tries) for x in pair])
        most = [ask.item.chain for ask in asks]
        return Lookups([a.place for a in asks], most, [*map(_worth, asks)], texts, rates, STAMINA, MEMORY)

    @staticmethod
    def _index(ask: Ask, view: View) -> Index:
        return view.slot(ask.request, partial(Index, len(ask.request.prompt), ask.request.params.greedy))

    def learn(self, view: View, verdict: Verdict) -> None:
        pass


def _worth(ask: Ask) -> float:
    return (ask.item.worth or WORTH).node
