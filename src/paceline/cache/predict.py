"""The bit that the policies of `marking` ask for: can this block go?"""

from collections import OrderedDict
from typing import NamedTuple, Protocol

Kind = tuple[bytes, int, int]
"""(name of the text's first block, earlier uses, binary digits of the depth)."""


class ReusePredictor(Protocol):
    def bit(self, name: bytes, parent: bytes) -> int:
        """1 if the block of that name, used now, will not be used again soon. Called once per use, in order."""


class ClientBits:
    """What clients say: 0 for content of which the latest word is that it comes back. While they say so of anything,
    silence means the contrary, 1; while they say nothing, another predictor decides. A word is forgotten after those of
    `horizon` other names."""

    def __init__(self, horizon: int, rest: ReusePredictor) -> None:
        self.horizon, self.rest = horizon, rest
        self._told: OrderedDict[bytes, None] = OrderedDict()
        """Names that come back, the longest ago first."""
        self._certain: bytes | None = None

    def tell(self, name: bytes, returns: bool) -> None:
        """A client's word on the name that is asked for next."""
        self._told.pop(name, None)
        if returns:
            self._told[name] = None
            if len(self._told) > self.horizon:
                self._told.popitem(last=False)

    def expect(self, name: bytes) -> None:
        """A request that waits asks for the name that is asked for next again. It is no client's word: nothing follows
        for others, and nothing is learned from it."""
        self._certain = name

    def bit(self, name: bytes, parent: bytes) -> int:
        certain, self._certain = self._certain == name, None
        if certain:
            return 0
        other = self.rest.bit(name, parent)
        return int(name not in self._told) if self._told else other


class _Use(NamedTuple):
    time: int
    before: int
    """Uses known before this one."""
    head: bytes
    depth: int

    def kinds(self) -> tuple[Kind, Kind]:
        """What its future is learned by: among texts that begin alike, as one application's do, and among all."""
        uses, depth = min(self.before, 3), min(self.depth.bit_length(), 5)
        return (self.head, uses, depth), (b"", uses, depth)


class LearnedReuse:
    """Counts how often blocks of one kind were used again within `horizon` uses of any block, and predicts 1 where that
    is less than half. Knows at most `horizon` names and kinds; O(1) amortised. The clock is the number of uses."""

    ENOUGH = 8
    """Outcomes that say something of a kind."""
    WINDOW = 512
    """Outcomes after which a kind's counts are halved, so that older ones fade."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._uses: OrderedDict[bytes, _Use] = OrderedDict()
        """By name, the oldest last use first."""
        self._counts: OrderedDict[Kind, list[int]] = OrderedDict()
        """[not used again, used again] of each kind, the longest unchanged first."""
        self._now = 0

    def bit(self, name: bytes, parent: bytes) -> int:
        self._now += 1
        self._forget()
        before, head, depth = 0, name, 0
        if (above := self._uses.get(parent)) is not None:
            head, depth = above.head, above.depth + 1
        if (last := self._uses.pop(name, None)) is not None:
            self._count(last, True)
            before, head, depth = last.before + 1, last.head, last.depth
        use = self._uses[name] = _Use(self._now, before, head, depth)
        for kind in use.kinds():
            never, again = self._counts.get(kind, (0, 0))
            if never + again >= self.ENOUGH:
                return int(again < never)
        return 0

    def _forget(self) -> None:
        """Names not used for `horizon` uses."""
        while self._uses and next(iter(self._uses.values())).time <= self._now - self.horizon:
            _, use = self._uses.popitem(last=False)
            self._count(use, False)

    def _count(self, use: _Use, again: bool) -> None:
        for kind in use.kinds():
            counts = self._counts.setdefault(kind, [0, 0])
            self._counts.move_to_end(kind)
            counts[again] += 1
            if sum(counts) >= self.WINDOW:
                counts[:] = counts[0] // 2, counts[1] // 2
        while len(self._counts) > max(self.horizon, 2):
            self._counts.popitem(last=False)
