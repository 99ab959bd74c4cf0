"""What drafting brings: conditional acceptance by (drafter, size, depth), per request, shrunk to the drafter's mean.

The chance at depth d is that of d being kept *given that d - 1 was*: deep places are looked at only when the shallow
ones were kept, so kept / offered would be biased low (Liu et al. 2024, SmartSpec, and its pitfalls). A draft that its
drafter ended early counts as not kept where it was asked for, and costs no row there.

The mean is one over requests, not over the rounds that were: a drafter is given to requests that it does well on, and
there again and again, so those rounds tell of those and not of the next one that comes. A request counts for the rounds
that so many tokens of it take, few where the drafter brings much, so that the mean is one of time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

OWN_MEMORY, TEXT_MEMORY, MEMORY, ROWS_MEMORY = 0.9, 0.98, 0.85, 0.95
"""Weight of the past: at each new round of a request, in its record and in what its whole text is like; at each new
request, in the drafter's mean; and at each round that the mean hears of, in its rows."""
VOTE, HALF, EVERY = 72.0, 4.0, 4
"""Tokens of text that a request's whole record counts for in the mean, and the rounds that count for half of them; the
mean hears of the first ones and of every so many."""
SHRINK = 6.0
"""Rounds that the drafter's mean counts for in a request's own figure: beside its last ten rounds 3 to 8 were best at
foretelling the next one, of three drafters and two sets of prompts."""
PRIOR, DEEP, WEIGHT = 0.55, 0.7, 4.0
"""Chance of a first draft that nobody has tried, and of whose kind nothing is said; the highest that a deeper one
starts at, which is else that of the one above; and the rounds that a prior counts for."""
LONG, TRUST, DOUBT = 0.95, 20.0, 0.2
"""What was promised is judged by what came: weight of the past at each EVERYth round, tokens that promises are trusted
with at first, and the most that they are corrected by."""
ALARM, SHARE = 10.0, 0.6
"""Log-likelihood ratio at which a change is certain, and the part of it that one request can bring."""
WORST, DOUBTED = 0.02, 8.0
"""Chance of a first draft of a broken drafter, and the rounds that what was found of one counts for when it starts
anew."""
SURE = 100.0
"""Rounds that a text's own record is worth once it is certain to be unlike others."""
RECALLED, HEARD = 24.0, 5.0
"""Most tries, and rounds, that what an earlier start has learned counts for."""
FAIR, GOOD = 0.5, 0.7
"""Chances of a first draft: below which no text is told from others, and one that cannot become so much better that all
it was known for would have to go."""


@dataclass(slots=True)
class Counts:
    """Decayed counts per depth (index 0: depth 1)."""

    tried: list[float] = field(default_factory=list)
    """Rounds in which the depth above was kept and this one asked for."""
    kept: list[float] = field(default_factory=list)

    def reach(self, depth: int) -> None:
        """Make both lists so long."""
        if more := depth - len(self.tried):
            self.tried += [0.0] * more
            self.kept += [0.0] * more

    def add(self, asked: int, kept: Sequence[int], memory: float) -> None:
        """One round."""
        self.reach(asked)
        for d in range(asked):
            hit = d < len(kept) and kept[d] > 0
            self.tried[d] = memory * self.tried[d] + 1.0
            self.kept[d] = memory * self.kept[d] + hit
            if not hit:
                break


@dataclass(slots=True)
class Expected:
    """Per depth: the chance that it is kept once the one above is, that it is reached and kept, and its rows."""

    chance: list[float]
    kept: list[float]
    rows: list[float]
    _per_row: tuple[float, ...] | None = None

    def beside(self, part: "Expected") -> "Expected":
        """Of a draft that has this other one, at least as deep, in it: it brings at least as much."""
        return Expected(self.chance, [max(mine, other) for mine, other in zip(self.kept, part.kept)], self.rows)

    def per_row(self) -> tuple[float, ...]:
        """The chance that a row is kept once there is one, of each in turn, never rising."""
        if self._per_row is None:
            out, least = list[float](), 1.0
            for kept, rows in zip(self.kept, self.rows):
                least = min(least, kept / max(rows, kept, 1e-9))
                out += [least] * max(1, round(rows))
            self._per_row = tuple(out)
        return self._per_row


@dataclass(slots=True)
class Record(Counts):
    """Of one request."""

    joined: int = 0
    """How many requests were in the mean when it joined."""
    voted: Counts = field(default_factory=Counts)
    """What it has put there."""
    tokens: float = 0.0
    """Kept in all rounds."""
    rounds: int = 0
    drafts: float = 0.0
    hits: float = 0.0
    """First drafts of the text, and those that were kept."""
    raised: float = 0.0
    sunk: float = 0.0
    """What it has added to the sums of its drafter's watch."""
    doubt: float = 0.0
    """Log-likelihood ratio of its first drafts being kept a quarter as often as those of others."""

    def judge(self, hit: bool, chance: float) -> bool:
        """Once it is certain that what is good for others is not for this text, or not any more, its last rounds alone
        count for long. Has it just become certain?"""
        if chance < FAIR or (hit and not self.doubt):
            return False
        self.doubt = max(0.0, self.doubt + (-log(4.0) if hit else log((1 - chance / 4) / (1 - chance))))
        if self.doubt >= ALARM * SHARE:
            self.drafts, self.hits = self.tried[0], self.kept[0]
            self.kept[0] *= SURE / self.tried[0]
            self.tried[0], self.doubt = SURE, 0.0
            return True
        return False

    def weight(self, usual: float) -> float:
        """Of its rounds in the mean. One at all depths: then the product of the mean's chances is the mean of the
        requests' products. Texts on which the drafter brings much, more than the `usual` tokens, need few rounds: each
        weighs by those that it takes, as the sum of times does."""
        rounds = self.tried[0]
        own = (self.tokens + HALF * usual) / (rounds + HALF)
        return VOTE / (1 + own) / (rounds + HALF)


@dataclass(slots=True)
class Mean(Counts):
    """Of a drafter, over requests; the latest count most."""

    asked: list[float] = field(default_factory=list)
    """Rounds that asked for this depth."""
    offered: list[float] = field(default_factory=list)
    """Nodes that had a row there."""
    requests: int = 0
    brought: float = TRUST
    """Tokens kept of late."""
    promised: float = TRUST
    """Those that were expected of the same rounds."""
    prior: float = PRIOR
    """Chance of a first draft before anybody has tried."""
    known: Expected | None = None
    """What it says, as deep as was asked for since it has changed."""

    @property
    def first(self) -> float:
        """Chance of a first draft."""
        return (self.kept[0] + WEIGHT * self.prior) / (self.tried[0] + WEIGHT) if self.tried else self.prior

    def expected(self, depth: int) -> Expected:
        """Of a draft `depth` deep or deeper. A depth that nobody has tried starts at the chance of the one above, and
        at its rows."""
        if self.known is None:
            self.known = Expected([], [], [])
        chance, kept, rows = self.known.chance, self.known.kept, self.known.rows
        deep, counted = len(self.tried), len(self.asked)
        for d in range(len(chance), depth):
            usual = self.prior if not d else chance[-1] if chance[-1] < DEEP else DEEP
            own = (self.kept[d] + WEIGHT * usual) / (self.tried[d] + WEIGHT) if d < deep else usual
            chance.append(own)
            kept.append(kept[-1] * own if d else own)
            above = rows[-1] if d else 1.0
            asked, had = (self.asked[d], self.offered[d]) if d < counted else (0.0, 0.0)
            few = max(0.0, WEIGHT - asked)
            rows.append((had + few * above) / (asked + few))
        return self.known

    def count(self, asked: int, offered: Sequence[int], memory: float) -> None:
        """The rows of a round."""
        if more := asked - len(self.asked):
            self.asked += [0.0] * more
            self.offered += [0.0] * more
        had = len(offered)
        for d in range(asked):
            self.asked[d] = memory * self.asked[d] + 1.0
            self.offered[d] = memory * self.offered[d] + (offered[d] if d < had else 0)

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
        self.tried = [MEMORY * x for x in self.tried]
        self.kept = [MEMORY * x for x in self.kept]
        self.requests += 1
        return Record(joined=self.requests)

    def take(self, record: Record) -> None:
        """The record as it is now, in the place of what it was."""
        depth = len(record.tried)
        age, weight = MEMORY ** (self.requests - record.joined), record.weight(sum(self.expected(depth).kept[:depth]))
        self.reach(depth)
        record.voted.reach(depth)
        for mine, own, was in (
            (self.tried, record.tried, record.voted.tried),
            (self.kept, record.kept, record.voted.kept),
        ):
            for d in range(depth):
                vote = weight * own[d]
                mine[d] += age * (vote - was[d])
                was[d] = vote
        self.known = None


@dataclass(slots=True)
class Watch:
    """Page's cumulative sums (1954) of log-likelihood ratios: is the first draft kept far more often than it was, or
    never any more? How deep a round went says less, for some texts repeat themselves."""

    up: float = 0.0
    down: float = 0.0

    def better(self, hit: bool, chance: float, record: Record) -> bool:
        """For more than one request: what misses is kept half of the time? Of what is good already nobody asks."""
        p = max(chance, WORST)
        if p > GOOD or not (hit or self.up):
            self.up = 0.0
            return False
        rise = log((1 + p) / (2 * p)) if hit else -log(2.0)
        if hit:
            rise = min(rise, ALARM * SHARE - record.raised)
            record.raised += rise
        self.up = max(0.0, self.up + rise)
        return self.up >= ALARM

    def broken(self, hit: bool, chance: float, record: Record) -> bool:
        """Is next to nothing kept, by more than one request?"""
        if hit and not self.down:
            return False
        p = max(chance, 2 * WORST)
        rise = log(WORST / p) if hit else log((1 - WORST) / (1 - p))
        if not hit:
            rise = min(rise, ALARM * SHARE - record.sunk)
            record.sunk += rise
        self.down = max(0.0, self.down + rise)
        return self.down >= ALARM


Key = tuple[str, int]
"""(drafter, size): the size of a tree, 0 for chains, which are one distribution at every length."""


COUNTS = ("tried", "kept", "asked", "offered")
"""What is kept of a mean."""


@dataclass(slots=True)
class Acceptance:
    means: dict[Key, Mean] = field(default_factory=dict)
    priors: dict[str, float] = field(default_factory=dict)
    """{drafter: chance of its first drafts before anybody has tried}, where its kind says more than PRIOR."""
    own: dict[int, dict[Key, Record]] = field(default_factory=dict)
    watches: dict[Key, Watch] = field(default_factory=dict)
    changes: int = 0
    """How often a drafter was found to have become better, or broken."""
    unlike: int = 0
    """How often a text was found to be unlike others."""

    def observe(self, request: int, key: Key, asked: int, offered: Sequence[int], kept: Sequence[int]) -> None:
        """One round: a draft `asked` deep; nodes with a row and nodes kept at depth 1, 2, ..."""
        if asked < 1:
            return  # there was no room for a token: it says nothing
        if key not in self.watches:
            self.means.setdefault(key, self.blank(key))
            self.watches[key] = Watch()
        mean, watch, brought = self.means[key], self.watches[key], sum(kept)
        records = self.own.setdefault(request, {})
        if key not in records:
            records[key] = mean.join()
        record, hit, chance = records[key], brought > 0, mean.first
        better, broken = watch.better(hit, chance, record), watch.broken(hit, chance, record)
        if better or broken:
            mean = self._forget(key, 0.0 if broken else (1 + chance) / 2)
            record = records[key] = mean.join()
        record.rounds += 1
        regular = record.rounds % EVERY == 0
        told = regular or record.rounds < EVERY
        if regular:
            mean.judge(brought, sum(self.expected(request, key, asked).kept) / mean.truth)
        record.add(asked, kept, OWN_MEMORY)
        self.unlike += record.judge(hit, chance)
        record.tokens = OWN_MEMORY * record.tokens + brought
        record.drafts, record.hits = TEXT_MEMORY * record.drafts + 1.0, TEXT_MEMORY * record.hits + hit
        if told:
            mean.count(asked, offered, ROWS_MEMORY)
            mean.take(record)

    def told(self, key: Key) -> float:
        """Rounds that the mean has heard of, of late: of each request its first ones and every EVERYth."""
        mean = self.means.get(key)
        return mean.asked[0] if mean is not None and mean.asked else 0.0

    def blank(self, key: Key) -> Mean:
        """Of a drafter that nobody has tried."""
        return Mean(prior=self.priors.get(key[0], PRIOR))

    def _forget(self, key: Key, chance: float) -> Mean:
        """What was learned is of no use now: a new mean."""
        self.changes += 1
        for own in self.own.values():
            own.pop(key, None)
        self.means[key], self.watches[key] = Mean([DOUBTED], [DOUBTED * chance]), Watch()
        return self.means[key]

    def expected(self, request: int | None, key: Key, depth: int) -> Expected:
        """What a draft `depth` deep would bring and cost; None: to a request that is not known yet."""
        mean = self.means.get(key) or self.blank(key)
        law = mean.expected(depth)
        own, chances = self.own.get(request, {}).get(key) if request is not None else None, law.chance[:depth]
        if own and chances:
            chances[0] = (own.hits + SHRINK * chances[0]) / (own.drafts + SHRINK)
            for d, (tried, hits) in enumerate(zip(own.tried[:depth], own.kept)):
                chances[d] = (hits + SHRINK * chances[d]) / (tried + SHRINK)
        reached, kept = mean.truth, list[float]()
        for chance in chances:
            reached *= chance
            kept.append(reached if reached < 1.0 else 1.0)
        return Expected(chances, kept, law.rows[:depth])

    def drop(self, request: int) -> None:
        """A request has ended."""
        self.own.pop(request, None)

    # -- from one start to the next ----------------------------------------------------------------------------------

    def dump(self) -> list[dict[str, Any]]:
        """The means, for a file."""
        return [
            {"drafter": key[0], "size": key[1], **{name: [*getattr(mean, name)] for name in COUNTS}}
            for key, mean in self.means.items()
        ]

    def recall(self, kept: Any, whole: bool = False) -> None:
        """Begin with what `dump` gave, for a few rounds' worth, or as the `whole` that it was. ValueError, KeyError or
        TypeError for what it cannot have given."""
        means = dict[Key, Mean]()
        for each in kept:
            key = (str(each["drafter"]), int(each["size"]))
            tried, hits, asked, offered = ([float(x) for x in each[name]] for name in COUNTS)
            if not all(0 <= few <= many < inf for few, many in zip(hits, tried)) or len(hits) != len(tried):
                raise ValueError(f"{each} are no counts")
            if not all(0 <= x < inf for x in (*asked, *offered)) or len(asked) != len(offered):
                raise ValueError(f"{each} are no counts")
            worth = [(RECALLED, tried), (HEARD, asked)]
            less, fewer = (1.0 if whole or not any(x) else min(1.0, most / max(x)) for most, x in worth)
            mean = means[key] = self.blank(key)
            mean.tried, mean.kept = [x * less for x in tried], [x * less for x in hits]
            mean.asked, mean.offered = [x * fewer for x in asked], [x * fewer for x in offered]
        self.means |= means
