"""Paging with one predicted bit a request (Antoniadis et al., "Paging with Succinct Predictions", ICML 2023).

Bit 1: this block can go. With k blocks, OPT faults at best, and n0 wrong zeros and n1 wrong ones among the bits:

    policy        the bit's truth                                faults, at most (the randomised ones on average)
    det           1 iff Belady evicts it before its next use     OPT + (k-1) n0 + n1
    mark0         1 iff Belady evicts it before its next use     OPT + 2 H(k) n0 + n1
    mark_predict  1 iff the next phase does not ask for it       2 OPT + H(k) n0 + n1

A phase is a longest run of uses of k distinct blocks, H(k) = 1 + 1/2 + ... + 1/k. The bounds are those of paging, where
any block may go; of a cache, blocks in use and blocks that others continue stay.

A block's rank begins with the phase of its last use, so beginning a phase, which unmarks every block, is one addition:
whatever has a lesser phase is unmarked.
"""

from collections.abc import Set as AbstractSet

from paceline.cache.eviction import Rank, Ranked
from paceline.cache.predict import ReusePredictor
from paceline.core.noise import Stream

EVER = -1
"""A phase before all others."""


class _Phased(Ranked):
    def __init__(self, predictor: ReusePredictor) -> None:
        super().__init__()
        self._predictor = predictor
        self._bits: dict[int, int] = {}
        self._phase = 0

    def ask(self, block: int, name: bytes, parent: bytes) -> None:
        self._bits[block] = self._predictor.bit(name, parent)
        super().ask(block, name, parent)

    def tell(self, name: bytes, returns: bool) -> None:
        """The client's word on the content that is asked for next."""
        tell = getattr(self._predictor, "tell", None)
        if tell is not None:
            tell(name, returns)

    def expect(self, name: bytes) -> None:
        """The content that is asked for next comes back for certain."""
        expect = getattr(self._predictor, "expect", None)
        if expect is not None:
            expect(name)

    def ends(self, rank: Rank) -> bool:
        """Does a phase end because even the least rank is this?"""
        return rank[0] == self._phase

    def victim(self, candidates: AbstractSet[int]) -> int:
        rank, block = self.least(candidates)
        self._phase += self.ends(rank)
        return block


class Det(_Phased):
    """A block with bit 1, else flush the whole cache. What was flushed stays until room is needed, and goes before all
    else then: never worse than an empty cache."""

    def __init__(self, predictor: ReusePredictor) -> None:
        super().__init__(predictor)
        self._clock = 0

    def rank(self, block: int) -> Rank:
        self._clock += 1
        return self._phase, 1 - self._bits[block], self._clock

    def expect(self, name: bytes) -> None:
        """The content that is asked for next comes back for certain."""
        expect = getattr(self._predictor, "expect", None)
        if expect is not None:
            expect(name)

    def ends(self, rank: Rank) -> bool:
        return rank[:2] == (self._phase, 1)


class _Random(_Phased):
    """Uniform choice is the least of independent draws, each made at a block's last use."""

    def __init__(self, predictor: ReusePredictor, noise: Stream) -> None:
        super().__init__(predictor)
        self._noise = noise
        self._draws = 0

    def draw(self) -> int:
        self._draws += 1
        return self._noise.key(self._draws)


class Mark0(_Random):
    """A block with bit 1 at once; else marking, where each use with bit 0 marks."""

    def rank(self, block: int) -> Rank:
        return EVER if self._bits[block] else self._phase, self.draw()


class MarkPredict(_Random):
    """Marking, where each use marks; of the unmarked, those with bit 1 go first."""

    def rank(self, block: int) -> Rank:
        return self._phase, 1 - self._bits[block], self.draw()
