"""`ngram`: prompt lookup decoding (Saxena, 2023). The draft is what followed the last n tokens earlier in the text.

The index maps every n-gram of prompt and output to the place after its most recent occurrence; it grows by one
entry per n and token, so a step costs O(new tokens), not O(length).

How much to draft is learned from the request's own text: before a committed token enters the index, the index is asked
what it would have guessed there. So the hit rate of each n is known without spending a row on it, also where nothing
is drafted, and it depends on committed tokens alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from paceline.core.forest import Forest, Law
from paceline.core.proposer import Draft, ProposerTable, Turn
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.rates import FIRST_TRIES, RATE_DECAY, RATE_MIN_CHANCE, STAMINA
from paceline.native.structs import CLookups, addresses, integers_in, reals_in

MAX_NGRAM_TOKENS = 4


class NgramIndex:
    """n-grams of one growing text -> position after their most recent occurrence that has a continuation."""

    def __init__(self, prompt: int = 0, greedy: bool = True) -> None:
        """`prompt`: tokens that are not the model's own, whose predictability says nothing of its output's."""
        self.after: dict[tuple[int, ...], int] = {}
        self.prompt, self.seen = prompt, 1
        self.hits = [1.0] * (MAX_NGRAM_TOKENS + 1)
        self.tries = [FIRST_TRIES[greedy]] * (MAX_NGRAM_TOKENS + 1)

    def extend(self, tokens: list[int]) -> None:
        """Enter every n-gram of `tokens` that ends before the last token (the suffix itself has no continuation)."""
        for end in range(self.seen, len(tokens)):
            if end >= self.prompt:
                self._observe(tokens, end)
            for n in range(1, min(MAX_NGRAM_TOKENS, end) + 1):
                self.after[tuple(tokens[end - n : end])] = end
        self.seen = max(self.seen, len(tokens))

    def _observe(self, tokens: list[int], end: int) -> None:
        n, start = self.match(tokens, end)
        if n:
            self.hits[n] = RATE_DECAY * self.hits[n] + (tokens[start] == tokens[end])
            self.tries[n] = RATE_DECAY * self.tries[n] + 1

    def match(self, tokens: list[int], end: int) -> tuple[int, int]:
        """Length of the longest known suffix of tokens[:end], and the place after its last occurrence; (0, 0)."""
        for n in range(min(MAX_NGRAM_TOKENS, end - 1), 0, -1):
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

    def draft(self, tokens: list[int], most: int, least: float = RATE_MIN_CHANCE.node) -> list[int]:
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
        stops_early=True,
        runs=True,
        auto=("ngram",),
    ),
)
class NgramDrafter:
    def __init__(self, host: Host) -> None:
        pass

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            if ask.item.nodes:
                tokens = self._index(ask, view).draft(ask.request.tokens, ask.item.chain, _least(ask))
                forest.add_chain(ask.place, tokens, ask.law)
        return forest

    def propose(self, asks: Sequence[Ask], view: View) -> "LookupProposer":
        indices = [self._index(ask, view) for ask in asks]
        for ask, index in zip(asks, indices):
            index.extend(ask.request.tokens)
        texts, nodes = [ask.place for ask in asks], [ask.item.chain for ask in asks]
        return LookupProposer(texts, nodes, [*map(_least, asks)], [ask.request.tokens for ask in asks], indices)

    @staticmethod
    def _index(ask: Ask, view: View) -> NgramIndex:
        return view.slot(ask.request, partial(NgramIndex, len(ask.request.prompt), ask.request.params.greedy))

    def learn(self, view: View) -> None:
        pass


@dataclass(slots=True)
class LookupProposer:
    """Prompt lookup between the passes of a run. The same in C++, native/propose_ngram.h, scans the text without an
    index."""

    texts: list[int]
    nodes: list[int]
    least: list[float]
    """Minimum chance that a whole draft is kept, per text."""
    tokens: list[list[int]]
    """All of each text, the one that has a row last."""
    indices: list[NgramIndex]

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        out = list[Draft]()
        for turn in turns:
            place, most = turn.place, min(self.nodes[turn.place], turn.room, turn.most)
            drafted = self.indices[place].draft([*self.tokens[place], *turn.said], most, self.least[place])
            out.append((drafted, range(-1, len(drafted) - 1)))
        return out

    def kept(self, turns: Sequence[Turn], paths: Sequence[Sequence[int]]) -> None:
        pass

    def native(self) -> ProposerTable:
        """It counts how often matches were right; Python's indices get the run's tokens after it."""
        rates = [x for index in self.indices for pair in zip(index.hits, index.tries) for x in pair]
        held = (
            integers_in([token for tokens in self.tokens for token in tokens]),
            integers_in([*map(len, self.tokens)]),
            reals_in(rates),
            integers_in(self.nodes),
            reals_in(self.least),
        )
        state = CLookups(len(self.texts), MAX_NGRAM_TOKENS, *addresses(*held), STAMINA, RATE_DECAY)
        return ProposerTable("paceline_ngram", state, held)


def _least(ask: Ask) -> float:
    return (ask.item.min_chance or RATE_MIN_CHANCE).node
