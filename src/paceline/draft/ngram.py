"""`ngram`: prompt lookup decoding (Saxena, 2023). The draft is what followed the last n tokens earlier in the text.

The index maps every n-gram of prompt and output to the place after its most recent occurrence; it grows by one
entry per n and token, so a step costs O(new tokens), not O(length).
"""

from collections.abc import Sequence

from paceline.core.forest import Forest, Law
from paceline.core.registry import Offers
from paceline.core.verdict import Verdict
from paceline.draft import DRAFTERS, Ask, Host, View

LONGEST = 4
SHORTEST = 2


class Index:
    """n-grams of one growing text -> position after their most recent occurrence that has a continuation."""

    def __init__(self) -> None:
        self.after: dict[tuple[int, ...], int] = {}
        self.seen = 0

    def extend(self, tokens: list[int]) -> None:
        """Enter every n-gram of `tokens` that ends before the last token (the suffix itself has no continuation)."""
        for end in range(max(self.seen, SHORTEST), len(tokens)):
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self.after[tuple(tokens[end - n : end])] = end
        self.seen = max(self.seen, len(tokens))

    def lookup(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the longest known suffix; a match that reaches the end of the text
        continues into what it has itself drafted (a period repeats)."""
        for n in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
            start = self.after.get(tuple(tokens[-n:]))
            if start is not None:
                drafted = tokens[start : start + count]
                period = len(tokens) - start
                while len(drafted) < count:
                    drafted.append(drafted[-period])
                return drafted
        return []


@DRAFTERS.register(
    "ngram",
    Offers(summary="prompt lookup over prompt and output", laws=frozenset({Law.POINT}), shape="chain", nodes=5),
)
class NgramDrafter:
    def __init__(self, host: Host) -> None:
        pass

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            if ask.item.nodes == 0:
                continue
            index = view.slot(ask.request, Index)
            index.extend(ask.request.tokens)
            forest.add_chain(ask.place, index.lookup(ask.request.tokens, ask.item.nodes), ask.law)
        return forest

    def learn(self, view: View, verdict: Verdict) -> None:
        pass
