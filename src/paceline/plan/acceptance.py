"""What drafting brings: conditional acceptance by (drafter, size, depth), per request, shrunk to the drafter's mean.

The chance at depth d is that of d being kept *given that d - 1 was*: deep places are looked at only when the shallow
ones were kept, so kept / offered would be biased low (Liu et al. 2024, SmartSpec, and its pitfalls). A draft that its
drafter ended early counts as not kept where it was asked for, and costs no row there.

The mean is one over requests, not over rounds: a drafter is given to requests that it does well on, and there again and
again, so the rounds tell of those and not of the next one that comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from math import sqrt
from operator import mul

OWN_MEMORY, MEMORY = 0.97, 0.95
"""Weight of the past: at each new round of a request, in its record; at each new request, in the drafter's mean."""
VOTE, HALF, EVERY = 12.0, 4.0, 4
"""Rounds that a request's whole record counts for in the mean, and the number that counts for half of them; the mean
hears of the first ones and of every so many."""
SHRINK = 24.0
"""Rounds that the drafter's mean counts for in a request's own figure: 20 to 40 were best at foretelling the rest of a
text from its first rounds."""
PRIOR, DEEP, WEIGHT = 0.4, 0.7, 4.0
"""Chance of a first draft that nobody has tried; the highest that a deeper one starts at, which is else that of the one
above; and the rounds that a prior counts for."""
LONG, TRUST, DOUBT = 0.98, 40.0, 0.2
"""What was promised is judged by what came: weight of the past at each round, tokens that promises are trusted with at
first, and the most that they are corrected by."""
EASIEST = 0.98
"""Highest chance that is expected of what was not tried on a request."""
DOWN, UP, ALARM, MOST = 0.5, 1.5, 12.0, 4.0
"""Cumulative sum test, in standard deviations: what is forgiven a round in either direction (some texts repeat
themselves), when it rings, what one round adds at most."""
LAG = 64
"""Rounds after which what is expected becomes what rounds are compared with; at first sooner."""


@dataclass(slots=True)
class Counts:
    """Decayed counts per depth (index 0: depth 1)."""

    tried: list[float] = field(default_factory=list)
    """Rounds in which the depth above was kept and this one asked for."""
    kept: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    """Nodes that had a row there."""

    @property
    def lists(self) -> tuple[list[float], list[float], list[float], list[float]]:
        return self.tried, self.kept, self.asked, self.offered

    def reach(self, depth: int) -> None:
        """Make all lists so long."""
        for mine in self.lists:
            mine.extend([0.0] * (depth - len(mine)))

    def add(self, asked: int, offered: Sequence[int], kept: Sequence[int], memory: float) -> None:
        """One round."""
        self.reach(asked)
        tried, hits, wanted, rows = self.lists
        for d in range(asked):
            wanted[d] = memory * wanted[d] + 1
            rows[d] *= memory
        for d, nodes in enumerate(offered[:asked]):
            rows[d] += nodes
        for d in range(asked):
            hit = d < len(kept) and kept[d] > 0
            tried[d] = memory * tried[d] + 1
            hits[d] = memory * hits[d] + hit
            if not hit:
                break


@dataclass(frozen=True, slots=True)
class Expected:
    """Per depth: the chance that it is kept once the one above is, that it is reached and kept, and its rows."""

    chance: list[float]
    kept: list[float]
    rows: list[float]


Vote = tuple[float, float, float, float]


@dataclass(slots=True)
class Record(Counts):
    """Of one request."""

    joined: int = 0
    """How many requests were in the mean when it joined."""
    voted: list[Vote] = field(default_factory=list)
    """What it has put there, per depth."""
    tokens: float = 0.0
    """Kept in all rounds."""
    promised: float = 0.0
    """By the drafter's mean."""
    rounds: int = 0

    def vote(self) -> list[Vote]:
        """One weight at all depths: then the product of the mean's chances is the mean of the requests' products."""
        x, y = VOTE / (self.tried[0] + HALF), VOTE / (self.asked[0] + HALF)
        return [(x * t, x * kept, y * asked, y * rows) for t, kept, asked, rows in zip(*self.lists)]


@dataclass(slots=True)
class Mean(Counts):
    """Of a drafter, over requests; the latest count most."""

    requests: int = 0
    brought: float = TRUST
    """Tokens kept of late."""
    promised: float = TRUST
    """Those that were expected of the same rounds."""
    known: Expected | None = None
    """What it says, as deep as was asked for since it has changed."""

    def expected(self, depth: int) -> Expected:
        """Of a draft `depth` deep or deeper. A depth that nobody has tried starts at the chance of the one above."""
        if self.known is None:
            self.known = Expected([], [], [])
        chance, kept, rows = self.known.chance, self.known.kept, self.known.rows
        for d in range(len(chance), depth):
            hits, tried, wanted, offered = 0.0, 0.0, 0.0, 0.0
            if d < len(self.tried):
                hits, tried, wanted, offered = self.kept[d], self.tried[d], self.asked[d], self.offered[d]
            chance.append((hits + WEIGHT * (min(DEEP, chance[-1]) if d else PRIOR)) / (tried + WEIGHT))
            kept.append((kept[-1] if d else 1.0) * chance[-1])
            rows.append(offered / wanted if wanted > 0 else 1.0)
        return self.known

    def add(self, asked: int, offered: Sequence[int], kept: Sequence[int], memory: float) -> None:
        Counts.add(self, asked, offered, kept, memory)
        self.known = None

    @property
    def truth(self) -> float:
        """Of what is expected of the drafter so much comes true: the best of many figures is too good, and texts change
        from their beginning to their end."""
        return min(1 + DOUBT, max(1 - DOUBT, self.brought / self.promised))

    def judge(self, brought: float, promised: float) -> None:
        """A round, and what was expected of it, for the request that it was for."""
        self.brought += (1 - LONG) * (TRUST - self.brought) + brought
        self.promised += (1 - LONG) * (TRUST - self.promised) + promised

    def join(self) -> Record:
        """The record of one more request."""
        for mine in self.lists:
            mine[:] = [MEMORY * x for x in mine]
        self.requests += 1
        return Record(joined=self.requests)

    def take(self, record: Record) -> None:
        """The record as it is now, in the place of what it was."""
        age, vote = MEMORY ** (self.requests - record.joined), record.vote()
        self.reach(len(vote))
        for d, (new, old) in enumerate(zip_longest(vote, record.voted, fillvalue=(0.0,) * 4)):
            for mine, x, y in zip(self.lists, new, old):
                mine[d] += age * (x - y)
        record.voted = vote
        self.known = None


@dataclass(slots=True)
class Watch:
    """Cumulative sums of (kept - expected) in standard deviations, up and down."""

    up: float = 0.0
    down: float = 0.0
    rounds: int = 0
    before: list[float] = field(default_factory=list)
    """What was expected some time ago: what is expected now follows a change."""

    def look(self, now: list[float]) -> list[float]:
        """What to compare a round with, whose drafter promises `now`."""
        if self.rounds % LAG == 0 or (self.rounds < LAG and self.rounds & (self.rounds - 1) == 0):
            self.before = now.copy()
        self.rounds += 1
        return self.before[: len(now)] + now[len(self.before) :]

    def rings(self, kept: int, expected: Sequence[float]) -> bool:
        """Has acceptance changed?"""
        mean = sum(expected)
        variance = sum((2 * d + 1) * p for d, p in enumerate(expected)) - mean**2
        z = max(-MOST, min(MOST, (kept - mean) / sqrt(max(variance, 0.05))))
        self.up, self.down = max(0.0, self.up + z - UP), max(0.0, self.down - z - DOWN)
        return max(self.up, self.down) >= ALARM


Key = tuple[str, int]
"""(drafter, size): the size of a tree, 0 for chains, which are one law at every length."""


@dataclass(slots=True)
class Acceptance:
    means: dict[Key, Mean] = field(default_factory=dict)
    own: dict[int, dict[Key, Record]] = field(default_factory=dict)
    watches: dict[Key, Watch] = field(default_factory=dict)
    changes: int = 0
    """How often acceptance was found changed."""

    def observe(self, request: int, key: Key, asked: int, offered: Sequence[int], kept: Sequence[int]) -> None:
        """One round: a draft `asked` deep; nodes with a row and nodes kept at depth 1, 2, ..."""
        mean, brought = self.means.setdefault(key, Mean()), sum(kept)
        promised = mean.expected(asked).kept[:asked]
        if mean.tried and mean.tried[0] > WEIGHT:
            watch = self.watches.setdefault(key, Watch())
            if watch.rings(brought, watch.look(promised)):
                mean = self._forget(key)
        records = self.own.setdefault(request, {})
        if key not in records:
            records[key] = mean.join()
        record = records[key]
        record.rounds += 1
        mean.judge(brought, sum(self.expected(request, key, asked).kept) / mean.truth)
        record.add(asked, offered, kept, OWN_MEMORY)
        record.tokens = OWN_MEMORY * record.tokens + brought
        record.promised = OWN_MEMORY * record.promised + sum(promised)
        if record.rounds < EVERY or record.rounds % EVERY == 0:
            mean.take(record)

    def _forget(self, key: Key) -> Mean:
        """What was learned is of no use now: a new mean."""
        self.changes += 1
        for own in self.own.values():
            own.pop(key, None)
        self.means[key], self.watches[key] = Mean(), Watch()
        return self.means[key]

    def expected(self, request: int | None, key: Key, depth: int) -> Expected:
        """What a draft `depth` deep would bring and cost; None: to a request that is not known yet."""
        mean = self.means.get(key) or Mean()
        law, records = mean.expected(depth), self.own.get(request, {}) if request is not None else {}
        own, ease = records.get(key), self._ease(records, key) if records else 1.0
        chances = [min(EASIEST, chance * ease) for chance in law.chance[:depth]]
        if own:
            for d, (tried, hits) in enumerate(zip(own.tried[:depth], own.kept)):
                chances[d] = (hits + SHRINK * chances[d]) / (tried + SHRINK)
        truth = mean.truth
        return Expected(chances, [truth * x for x in accumulate(chances, mul)], law.rows[:depth])

    @staticmethod
    def _ease(records: Mapping[Key, Record], key: Key) -> float:
        """Where one drafter does badly the others do: the factor of each chance that their records tell. (The tokens of
        a draft go about with its square.)"""
        others = [record for one, record in records.items() if one != key]
        tokens, promised = sum(record.tokens for record in others), sum(record.promised for record in others)
        return sqrt((tokens + SHRINK) / (promised + SHRINK))

    def drop(self, request: int) -> None:
        """A request has ended."""
        self.own.pop(request, None)
