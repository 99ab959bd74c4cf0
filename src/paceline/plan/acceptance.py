"""What drafting brings: conditional acceptance by (drafter, size, depth), per request, shrunk to the drafter's mean.

The chance at depth d is that of d being kept *given that d - 1 was*: deep places are looked at only when the shallow
ones were kept, so kept / offered would be biased low (Liu et al. 2024, SmartSpec, and its pitfalls). A draft that its
drafter ended early counts as not kept where it was asked for, and costs no row there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

MEMORY, OWN_MEMORY = 0.99, 0.93
"""Weight of the past at each new round: of a drafter, and of a drafter on one request."""
SHRINK = 6.0
"""Rounds that the drafter's mean counts for in a request's own figure."""
PRIOR, WEIGHT = 0.4, 1.0
"""Chance of a first draft that nobody has tried, and the rounds that a prior counts for."""
SLACK, ALARM, MOST = 0.5, 12.0, 4.0
"""Cumulative sum test, in standard deviations: what is forgiven a round, when it rings, what one round adds at most."""


@dataclass(slots=True)
class Counts:
    """Decayed counts per depth (index 0: depth 1)."""

    tried: list[float] = field(default_factory=list)
    """Rounds in which the depth above was kept and this one asked for."""
    kept: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    """Nodes that had a row there."""

    def add(self, asked: int, offered: Sequence[int], kept: Sequence[int], memory: float) -> None:
        if len(self.tried) < asked:
            for mine in (self.tried, self.kept, self.asked, self.offered):
                mine.extend([0.0] * (asked - len(mine)))
        for d in range(asked):
            self.asked[d] = memory * self.asked[d] + 1
            self.offered[d] = memory * self.offered[d] + (offered[d] if d < len(offered) else 0)
        for d in range(asked):
            hit = d < len(kept) and kept[d] > 0
            self.tried[d] = memory * self.tried[d] + 1
            self.kept[d] = memory * self.kept[d] + hit
            if not hit:
                break


@dataclass(frozen=True, slots=True)
class Expected:
    """Per depth: the chance that it is reached and kept, and its rows."""

    kept: list[float]
    rows: list[float]


@dataclass(slots=True)
class Watch:
    """Cumulative sums of (kept - expected) in standard deviations, up and down."""

    up: float = 0.0
    down: float = 0.0

    def rings(self, kept: int, expected: Sequence[float]) -> bool:
        """Has acceptance changed? Both sums start anew when it has."""
        mean = sum(expected)
        variance = sum((2 * d + 1) * p for d, p in enumerate(expected)) - mean**2
        z = max(-MOST, min(MOST, (kept - mean) / sqrt(max(variance, 0.05))))
        self.up, self.down = max(0.0, self.up + z - SLACK), max(0.0, self.down - z - SLACK)
        if max(self.up, self.down) < ALARM:
            return False
        self.up = self.down = 0.0
        return True


Key = tuple[str, int]
"""(drafter, size): the size of a tree, 0 for chains, which are one law at every length."""


@dataclass(slots=True)
class Acceptance:
    means: dict[Key, Counts] = field(default_factory=dict)
    own: dict[int, dict[Key, Counts]] = field(default_factory=dict)
    watches: dict[Key, Watch] = field(default_factory=dict)
    changes: int = 0
    """How often acceptance was found changed."""

    def observe(self, request: int, key: Key, asked: int, offered: Sequence[int], kept: Sequence[int]) -> None:
        """One round: a draft `asked` deep; nodes with a row and nodes kept at depth 1, 2, ..."""
        expected = self.expected(None, key, asked).kept
        if self.watches.setdefault(key, Watch()).rings(sum(kept), expected):  # what was learned is of no use now
            self.changes += 1
            self.means.pop(key, None)
            for own in self.own.values():
                own.pop(key, None)
        self.means.setdefault(key, Counts()).add(asked, offered, kept, MEMORY)
        self.own.setdefault(request, {}).setdefault(key, Counts()).add(asked, offered, kept, OWN_MEMORY)

    def expected(self, request: int | None, key: Key, depth: int) -> Expected:
        """What a draft `depth` deep would bring and cost; None: to a request that is not known yet."""
        mean = self.means.get(key, _NONE)
        own = self.own.get(request, {}).get(key, _NONE) if request is not None else _NONE
        kept: list[float] = []
        rows: list[float] = []
        alive, rate = 1.0, PRIOR
        for d in range(depth):  # a depth that nobody has tried starts at the rate of the one above
            known = d < len(mean.tried)
            rate = ((mean.kept[d] if known else 0.0) + WEIGHT * rate) / ((mean.tried[d] if known else 0.0) + WEIGHT)
            if d < len(own.tried):
                rate = (own.kept[d] + SHRINK * rate) / (own.tried[d] + SHRINK)
            alive *= rate
            kept.append(alive)
            rows.append(mean.offered[d] / mean.asked[d] if known and mean.asked[d] > 0 else 1.0)
        return Expected(kept, rows)

    def drop(self, request: int) -> None:
        """A request has ended."""
        self.own.pop(request, None)


_NONE = Counts()
