"""The target's next-token distributions by the tokens before (STAND, Song et al. 2025, arXiv 2506.04708), and their
worth."""

from collections import OrderedDict
from collections.abc import Sequence

from paceline.draft.rates import FIRST_TRIES

MAX_CONTEXT_TOKENS = 4
LAW_TOKENS = 10
"""Most tokens of a kept distribution."""
MAX_LAWS = 1 << 16
"""Most distributions kept; the one that was learned least recently goes first."""
LAW = 1200
"""Bytes of a distribution."""
LAW_DECAY = 0.99
"""Weight of a rate's past at each new observation."""


class LawTable:
    """Contexts of 1 to MAX_CONTEXT_TOKENS tokens -> (count, {token: probability at T = 1}, most probable first)."""

    def __init__(self, remember: int = 1 << 28) -> None:
        """`remember`: bytes."""
        self.cap = min(MAX_LAWS, remember // LAW)
        self.laws: OrderedDict[tuple[int, ...], tuple[int, dict[int, float]]] = OrderedDict()

    def find(self, tokens: Sequence[int]) -> tuple[int, dict[int, float]]:
        """(n, the distribution) of the longest known context that ends `tokens`; (0, {})."""
        for n in range(min(MAX_CONTEXT_TOKENS, len(tokens)), 0, -1):
            found = self.laws.get(tuple(tokens[-n:]))
            if found is not None:
                return n, found[1]
        return 0, {}

    def learn(self, tokens: Sequence[int], law: dict[int, float]) -> None:
        """Enter what followed every context that ends `tokens`."""
        for n in range(1, min(MAX_CONTEXT_TOKENS, len(tokens)) + 1):
            self.merge(tuple(tokens[-n:]), law)

    def merge(self, context: tuple[int, ...], law: dict[int, float]) -> None:
        """The running mean of all distributions seen there (a missing token counts as 0), cut to LAW_TOKENS tokens."""
        count, old = self.laws.get(context, (0, {}))
        mean = {token: p * count / (count + 1) for token, p in old.items()}
        for token, p in law.items():
            mean[token] = mean.get(token, 0.0) + p / (count + 1)
        self.laws[context] = count + 1, dict(sorted(mean.items(), key=lambda item: -item[1])[:LAW_TOKENS])
        self.laws.move_to_end(context)
        if len(self.laws) > self.cap:
            self.laws.popitem(last=False)


class LawRates:
    """How often the distributions of each n foretold the token that came, by temperature (0: greedy)."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, float], tuple[float, float]] = {}

    def worth(self, n: int, t: float) -> float:
        hits, tries = self.seen.get((n, t), (1.0, FIRST_TRIES[t == 0]))
        return hits / tries

    def observe(self, n: int, t: float, hit: bool) -> None:
        hits, tries = self.seen.get((n, t), (1.0, FIRST_TRIES[t == 0]))
        self.seen[n, t] = LAW_DECAY * hits + hit, LAW_DECAY * tries + 1
