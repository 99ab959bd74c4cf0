"""The bit that the policies of `marking` ask for: can this block go?"""

from collections import OrderedDict
from typing import NamedTuple, Protocol

Kind = tuple[int, int]
"""(earlier uses, binary digits of the depth): what a block's future is learned by."""


class Predictor(Protocol):
    def bit(self, name: bytes, depth: int) -> int:
        """1 if the block of that name, used now, will not be used again soon. Called once per use, in order."""


class _Use(NamedTuple):
    time: int
    before: int
    """Uses known before this one."""
    kind: Kind


class Learned:
    """Counts how often blocks of one kind were used again within `horizon` uses of any block, and predicts 1 where that
    is less than half. Knows at most `horizon` names; O(1) amortised. The clock is the number of uses."""

    MOST = (3, 5)
    """Larger values of a kind's parts count as these."""
    WINDOW = 512
    """Outcomes after which a kind's counts are halved, so that older ones fade."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._uses: OrderedDict[bytes, _Use] = OrderedDict()
        """By name, the oldest last use first."""
        self._counts: dict[Kind, list[int]] = {}
        """[not used again, used again] of each kind."""
        self._now = 0

    def bit(self, name: bytes, depth: int) -> int:
        self._now += 1
        self._forget()
        last = self._uses.pop(name, None)
        before = 0
        if last is not None:
            self._count(last.kind, True)
            before = last.before + 1
        kind = min(before, self.MOST[0]), min(depth.bit_length(), self.MOST[1])
        self._uses[name] = _Use(self._now, before, kind)
        never, again = self._counts.get(kind, (0, 0))
        return int(again < never)

    def _forget(self) -> None:
        """Names not used for `horizon` uses."""
        while self._uses and next(iter(self._uses.values())).time <= self._now - self.horizon:
            _, use = self._uses.popitem(last=False)
            self._count(use.kind, False)

    def _count(self, kind: Kind, again: bool) -> None:
        counts = self._counts.setdefault(kind, [0, 0])
        counts[again] += 1
        if sum(counts) >= self.WINDOW:
            counts[:] = counts[0] // 2, counts[1] // 2
