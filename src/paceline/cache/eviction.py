"""Which cached prefix to forget when room is needed: the `Eviction` protocol, and least-recently-used."""

from abc import ABC, abstractmethod
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Protocol


class Eviction(Protocol):
    """Chooses among published blocks that no lease holds. Only `BlockPool` calls it.

    A policy may also have `tell(name, returns)`, called just before `ask`: does the client say that this content is
    asked for again soon? And `expect(name)`, likewise: it is asked for again for certain, by a request that waits.

    A block may become in use, or leave the index, without notice; `offer` always precedes its being a candidate again.
    """

    def ask(self, block: int, name: bytes, parent: bytes) -> None:
        """The content `name`, which continues `parent`, was wanted and is in `block`: found, or just computed."""

    def touch(self, block: int) -> None:
        """`block` has just lost its last holder. Of one request's blocks the last is touched first."""

    def offer(self, block: int) -> None:
        """`block` is a candidate now: no lease holds it, and no block that could be evicted first continues its
        text."""

    def victim(self, candidates: AbstractSet[int]) -> int:
        """The block to evict: one of `candidates` (never empty; each was offered). The policy forgets it."""


Rank = tuple[int, ...]


class Ranked(ABC):
    """Forgets the candidate of least rank; a subclass says what a block's rank is. O(log blocks) amortised.

    The heap holds outdated entries, which `victim` drops for good: of blocks in use, gone, or ranked again.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, Rank] = {}
        self._heap: list[tuple[Rank, int]] = []

    @abstractmethod
    def rank(self, block: int) -> Rank:
        """Rank of a block that is being used; the block keeps this rank until it is used again."""

    def ask(self, block: int, name: bytes, parent: bytes) -> None:
        self.touch(block)

    def touch(self, block: int) -> None:
        self._ranks[block] = self.rank(block)

    def offer(self, block: int) -> None:
        if len(self._heap) > 2 * len(self._ranks):
            self._heap = [(rank, block) for block, rank in self._ranks.items()]
            heapify(self._heap)
        heappush(self._heap, (self._ranks[block], block))

    def victim(self, candidates: AbstractSet[int]) -> int:
        return self.least(candidates)[1]

    def least(self, candidates: AbstractSet[int]) -> tuple[Rank, int]:
        """Take the candidate of least rank out."""
        while True:
            rank, block = heappop(self._heap)
            if block in candidates and self._ranks.get(block) == rank:
                del self._ranks[block]
                return rank, block


class LRU(Ranked):
    """Forgets the block whose last use is oldest."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0

    def rank(self, block: int) -> Rank:
        self._clock += 1
        return (self._clock,)
