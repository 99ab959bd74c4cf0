"""`suffix`: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975). The draft is a tree of what followed the longest
known suffix of the text, in the request's own text and in the recent outputs of all requests.

As in `ngram`, what a guess is worth is learned from committed text: before a token is read, its automaton is asked what
it would have guessed. A request that does not repeat anything drafts nothing.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from paceline.core.forest import ROOT, Forest, Law
from paceline.core.registry import Offers
from paceline.core.request import Request
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.automaton import MAX_SUFFIX_TOKENS, Automaton
from paceline.draft.rates import FIRST_TRIES, RATE_DECAY, RATE_MIN_CHANCE, STAMINA

MAX_GENERATION_STATES = 1 << 17
"""Most states at which a generation of past outputs makes way for the next."""
STATE_BYTES = 400
"""Bytes of a state, of which there are two generations."""

Paths = dict[tuple[int, ...], float]
"""A tree: the tokens of each node from depth 1 down to it -> the chance that it is accepted."""


class SuffixReader:
    """One text on its way into an automaton, and how often the automaton's guesses about it were right."""

    def __init__(self, automaton: Automaton, greedy: bool) -> None:
        self.automaton, self.last, self.state, self.n = automaton, 0, 0, 0
        self.hits = [1.0] * (MAX_SUFFIX_TOKENS.bit_length() + 1)
        self.tries = [FIRST_TRIES[greedy]] * (MAX_SUFFIX_TOKENS.bit_length() + 1)
        """By the bit length of the match's length; a try weighs as much as the guess was sure of itself."""

    def read(self, token: int, observe: bool) -> None:
        a = self.automaton
        state, n = a.fit(self.state, self.n)  # other texts may have split it
        if observe:
            self._observe(*a.match(state, n), token)
        self.last = a.extend(self.last, token)
        a.tally(a.after[state][token])
        self.state, self.n = a.step(state, n, token)

    def _observe(self, state: int, n: int, token: int) -> None:
        if n:
            shares, b = self.automaton.shares(state), n.bit_length()
            guess = max(shares, key=shares.__getitem__)
            self.hits[b] = RATE_DECAY * self.hits[b] + (guess == token)
            self.tries[b] = RATE_DECAY * self.tries[b] + shares[guess]

    def rate(self, n: int) -> float:
        return min(1.0, self.hits[n.bit_length()] / self.tries[n.bit_length()])

    def tree(self, most: int, least: float = RATE_MIN_CHANCE.node) -> Paths:
        """The most probable continuations, none below `least`, best first; a text that ends goes on as its longest
        suffix did."""
        a, out = self.automaton, Paths()
        heap: list[tuple[float, tuple[int, ...], int, int]] = [(-1.0, (), *a.fit(self.state, self.n))]
        while heap and len(out) <= most:
            minus, path, state, n = heapq.heappop(heap)
            out[path] = -minus
            state, n = a.match(state, n)
            chance = -minus * max(self.rate(n), STAMINA if path else 0.0)
            if n and chance >= least:
                for token, share in a.shares(state).items():
                    if chance * share >= least:
                        heapq.heappush(heap, (-chance * share, (*path, token), *a.step(state, n, token)))
        del out[()]
        return out


@dataclass(slots=True)
class SuffixMemory:
    """What is kept of one request."""

    own: SuffixReader
    start: int
    """First token that enters the shared automata: a little of what its output follows on from."""
    seen: int = 0
    shared: list[SuffixReader] = field(default_factory=list)


@DRAFTERS.register(
    "suffix",
    Offers(summary="suffix automata of the text and of past outputs", laws=frozenset({Law.POINT}), shape="tree",
           nodes=15, stops_early=True, learns=True),
)  # fmt: skip
class SuffixDrafter:
    def __init__(self, host: Host) -> None:
        self.ages, self.cap = [Automaton()], min(MAX_GENERATION_STATES, host.remember // 2 // (2 * STATE_BYTES))
        """Past outputs, the older generation first; the younger one begins when the older is half full."""

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            memory = self._read(view, ask.request, ask.request.tokens)
            if ask.item.nodes:
                nodes, least = ask.item.nodes, (ask.item.min_chance or RATE_MIN_CHANCE).node
                trees = [reader.tree(nodes, least) for reader in (memory.own, *memory.shared[:1])]
                self._plant(forest, ask, merged(trees, nodes))
        return forest

    @staticmethod
    def _plant(forest: Forest, ask: Ask, paths: Iterable[tuple[int, ...]]) -> None:
        places: dict[tuple[int, ...], int] = {(): ROOT}
        for path in paths:
            places[path] = forest.add(ask.place, path[-1], places[path[:-1]], law=ask.law)

    def learn(self, view: View) -> None:
        """Read what was committed now: there may be no next draft."""
        for ask in view.asks:
            tail = [token for token in view.results[ask.place].tokens[-1:] if token >= 0]
            self._read(view, ask.request, [*ask.txn.lease.tokens, *tail])

    def _read(self, view: View, request: Request, tokens: list[int]) -> SuffixMemory:
        """Read the tokens that are new."""
        greedy = request.params.greedy
        start = max(0, len(request.tokens) - MAX_SUFFIX_TOKENS)
        memory = view.slot(request, partial(self._remember, greedy, start))
        kept = {id(r.automaton): r for r in memory.shared}
        memory.shared = [kept.get(id(age)) or SuffixReader(age, greedy) for age in self.ages]
        for i in range(memory.seen, len(tokens)):
            memory.own.read(tokens[i], i >= len(request.prompt))
            for reader in memory.shared if i >= memory.start else ():
                reader.read(tokens[i], i >= len(request.prompt))
        memory.seen = max(memory.seen, len(tokens))
        self._age()
        return memory

    @staticmethod
    def _remember(greedy: bool, start: int) -> SuffixMemory:
        return SuffixMemory(SuffixReader(Automaton(), greedy), start)

    def _age(self) -> None:
        if len(self.ages[0]) > self.cap:
            del self.ages[0]
        if len(self.ages) < 2 and len(self.ages[0]) > self.cap // 2:
            self.ages.append(Automaton())


def merged(trees: Iterable[Paths], most: int) -> list[tuple[int, ...]]:
    """The `most` most probable nodes of all trees, parents first; of a node in several, the larger chance counts."""
    chance = Paths()
    for tree in trees:
        for path, value in tree.items():
            chance[path] = max(value, chance.get(path, 0.0))
    return sorted(chance, key=lambda path: (-chance[path], len(path)))[:most]
