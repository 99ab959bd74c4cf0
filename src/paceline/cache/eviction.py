"""Which cached prefix to forget when room is needed: the `Eviction` protocol, and least-recently-used."""

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from typing import Protocol


class Eviction(Protocol):
    """Chooses among published blocks that nobody holds. Only `BlockPool` calls it."""

    def touch(self, block: int) -> None:
        """`block` was found by a prefix search, or has just lost its last holder. Of one request's blocks the last
        is touched first: a chain without its head is of no use."""

    def victim(self, candidates: AbstractSet[int]) -> int:
        """One of `candidates` (never empty; each was touched when it became one). It is gone afterwards."""


class LRU:
    """Forgets the block whose last touch is oldest. Both methods O(1) amortised: `victim` drops, for good, entries
    of blocks that are in use, and such a block is touched again before it can be a candidate."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> None:
        self._order[block] = None
        self._order.move_to_end(block)

    def victim(self, candidates: AbstractSet[int]) -> int:
        while True:
            block, _ = self._order.popitem(last=False)
            if block in candidates:
                return block
