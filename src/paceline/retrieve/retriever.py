"""`Retriever`: what finds passages. Its scores are whole numbers, so that a passage has the same score in a batch,
alone and in a request's own cache, on any number of threads; of equal scores the lower number is first."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.int64]
Hit = tuple[int, int]
"""A passage's number and its score."""


class Retriever(Protocol):
    """Finds the passages of one index. Safe to use from several threads."""

    kind: str
    ranks_exactly: bool
    """The best of all passages is also the best of any few that it is among: a cache that holds it returns it. Where
    this fails verification finds fewer hits; it never lets a wrong passage through."""
    unit: float
    """A score of 1 as people know it."""
    size: int
    """Passages."""

    def query(self, text: str) -> Any:
        """A text as `search` and `scores` take it; always made alone, so that it is the same in every batch."""

    def search(self, queries: Sequence[Any], k: int) -> list[list[Hit]]:
        """The best `k` passages for each query, best first, in one call."""

    def scores(self, query: Any, ids: Sequence[int]) -> Scores:
        """[len(ids)] The scores of some passages, by the same measure as `search`."""


def best(scores: Scores, k: int) -> list[Hit]:
    """The `k` best of all passages' scores [N], by score and then by number."""
    k = min(k, len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > least)
    ids = np.concatenate([above, np.flatnonzero(scores == least)[: k - len(above)]])
    ids = ids[np.lexsort((ids, -scores[ids]))]
    return [(int(i), int(scores[i])) for i in ids]


class PassageCache:
    """The passages that one request has met: a speculative retriever, by the scores of the real one (RaLMSpec, 4.1)."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever
        self.ids: list[int] = []
        """Ascending."""

    def add(self, ids: Sequence[int]) -> None:
        self.ids = sorted({*self.ids, *ids})

    def top(self, query: Any) -> Hit | None:
        """The best of those it holds; None while it is empty."""
        if not self.ids:
            return None
        scores = self.retriever.scores(query, self.ids)
        at = int(np.argmax(scores))
        return self.ids[at], int(scores[at])
