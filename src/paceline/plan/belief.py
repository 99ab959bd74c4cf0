"""`Belief`: how often the nodes of a drafter are kept, by depth, and how well that is known.

The chance at depth d is that of d being kept *given that d - 1 was*: deep nodes are looked at only where the shallow
ones were kept, so kept / offered would be biased low (Liu et al. 2024, SmartSpec). Counts fade, so that a belief that
is not fed becomes wide again. A text's own counts are shrunk to its drafter's mean, the less the more they differ from
it.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any

OWN_MEMORY, HALF_LIFE = 0.92, 512.0
"""Weight of a text's past at each new round of it; and the half-life of all counts, in passes of the engine."""
SPREAD = 6.0
"""Rounds that a drafter's mean counts for in a text's own figures: how alike texts are."""
PRIOR_ROUNDS = 2.0
"""Rounds that a prior counts for."""
LOOKUP, MODEL = 0.3, 0.75
"""Prior chance of a first node: of a drafter that reads texts alone, and of a model's or a head's. What a user gives is
expected to be of use."""
Z = 0.5
"""Standard deviations from the mean of each depth to a bound: depths err independently, so not all are far from their
means at once."""
RECALLED = 24.0
"""Most rounds that what an earlier start has learned counts for."""
DEPTH = 16
"""Deepest place that is counted."""
MOST_BELIEFS = 1 << 12
"""Tenants and their beliefs, all together, that are kept (1 to 3 KB each); those of tenants with requests in flight
always are."""

Key = tuple[str, int]
"""(drafter, size): the size of a tree, 0 for chains, which are one distribution at every length."""


@dataclass(slots=True)
class Tally:
    """Fading counts by depth (index 0: depth 1), in units of the latest pass."""

    memory: float = 1.0
    """Weight of the past at each new round."""
    tries: list[float] = field(default_factory=lambda: [0.0] * DEPTH)
    hits: list[float] = field(default_factory=lambda: [0.0] * DEPTH)
    at: int = 0

    def fade(self, now: int) -> None:
        """Make the counts those of this pass."""
        if now > self.at:
            by = 0.5 ** ((now - self.at) / HALF_LIFE)
            self.tries, self.hits = [x * by for x in self.tries], [x * by for x in self.hits]
            self.at = now

    def add(self, asked: int, kept: Sequence[int], now: int) -> None:
        """A round that asked for `asked` depths; a draft that ended early was not kept there."""
        self.fade(now)
        if self.memory < 1.0:
            self.tries, self.hits = [x * self.memory for x in self.tries], [x * self.memory for x in self.hits]
        for d in range(asked):
            hit = d < len(kept) and kept[d] > 0
            self.tries[d] += 1.0
            if not hit:
                break
            self.hits[d] += 1.0


@dataclass(slots=True)
class Expected:
    """By depth: the chance that a node is kept once the one above is, that it is reached and kept, and its rows."""

    chance: list[float]
    kept: list[float]
    rows: list[float]

    def beside(self, part: "Expected") -> "Expected":
        """Figures of a draft that has this other one in it, which is at least as deep: it brings at least as much."""
        return Expected(self.chance, [max(mine, other) for mine, other in zip(self.kept, part.kept)], self.rows)


@dataclass(slots=True)
class Belief:
    """Acceptance of one drafter, or of one size of a tree, over all texts."""

    prior: float = MODEL
    ends: bool = False
    """Does it end a draft where it is not sure? Then a depth that was never asked for is expected to have a row only
    where the one above is kept."""
    mean: Tally = field(default_factory=Tally)
    own: dict[int, Tally] = field(default_factory=dict)
    """{request id: counts of that request alone}"""
    rows: Tally = field(default_factory=Tally)
    """Rounds that asked for a depth, and as hits the nodes that had a row there."""

    def observe(self, request: int, asked: int, offered: Sequence[int], kept: Sequence[int], now: int) -> None:
        """One round."""
        if request not in self.own:
            self.own[request] = Tally(OWN_MEMORY, at=now)
        own = self.own[request]
        own.add(asked, kept, now)
        self.mean.add(asked, kept, now)
        self.rows.fade(now)
        for d in range(asked):
            self.rows.tries[d] += 1.0
            self.rows.hits[d] += offered[d] if d < len(offered) else 0

    def known(self, now: int) -> float:
        """Rounds that the belief rests on now, faded."""
        self.mean.fade(now)
        return self.mean.tries[0]

    def expected(self, request: int | None, depth: int, now: int, bound: int = 0) -> Expected:
        """What a draft `depth` deep brings to a request, or to one that is not known yet: the mean, or a bound of it
        (-1: low, 1: high)."""
        self.mean.fade(now)
        own = None if request is None else self.own.get(request)
        if own is not None:
            own.fade(now)
        chances, wide, above = list[float](), list[float](), self.prior
        for d in range(depth):
            at = min(d, DEPTH - 1)
            tries = self.mean.tries[at]
            mean = (self.mean.hits[at] + PRIOR_ROUNDS * above) / (tries + PRIOR_ROUNDS)
            above = (mean + self.prior) / 2  # a depth that fails says little of those below it
            chance, worth = mean, min(SPREAD, tries + PRIOR_ROUNDS)
            if own is not None and (mine := own.tries[at]) > 0.0:
                rate = own.hits[at] / mine
                apart = (rate - mean) ** 2 / max(mean * (1 - mean), 0.01) / (1 / mine + 1 / SPREAD)
                shrink = SPREAD / (1.0 + apart / 2)
                chance, worth = (own.hits[at] + shrink * mean) / (mine + shrink), mine + min(worth, shrink)
            chances.append(chance)
            wide.append(sqrt((chance * (1 - chance) + 0.25 / (worth + 1)) / (worth + 1)))
        if bound:
            chances = [min(0.99, max(0.01, chance + bound * Z * width)) for chance, width in zip(chances, wide)]
        out, reached, row = Expected([], [], []), 1.0, 1.0
        for d, chance in enumerate(chances):
            at = min(d, DEPTH - 1)
            asked = self.rows.tries[at]
            few, row = max(0.0, PRIOR_ROUNDS - asked), min(row, reached) if self.ends else row
            row = (self.rows.hits[at] + few * row) / (asked + few)
            reached *= chance
            out.chance.append(chance)
            out.kept.append(reached)
            out.rows.append(max(row, reached))
        return out


@dataclass(slots=True)
class Beliefs:
    """Beliefs about all drafters. `now` counts passes. No tenant learns from the requests of another: each has beliefs
    of its own, which begin with what requests without a tenant have taught."""

    of: dict[Key, Belief] = field(default_factory=dict)
    priors: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """{drafter: `Belief.prior` and `Belief.ends`}"""
    now: int = 0
    apart: dict[str, "Beliefs"] = field(default_factory=dict)
    """{tenant: its beliefs}"""
    tenants: dict[int, str] = field(default_factory=dict)
    """{request: its tenant}, of those that have one."""

    def enrol(self, drafter: str, prior: float, ends: bool) -> None:
        """Make a drafter known, also to beliefs about it that were recalled before."""
        self.priors[drafter] = prior, ends
        for each in (self, *self.apart.values()):
            for (name, _), belief in each.of.items():
                if name == drafter:
                    belief.prior, belief.ends = prior, ends

    def enter(self, request: int, tenant: str) -> None:
        """Note whose request it is. Where too much is kept, what idle tenants have taught goes, the eldest first."""
        if not tenant or request in self.tenants:
            return
        self.tenants[request] = tenant
        if tenant not in self.apart:
            of = {key: deepcopy(replace(it, own={})) for key, it in self.of.items()}
            self.apart[tenant] = Beliefs(of, self.priors, self.now)
        count = sum(1 + len(each.of) for each in self.apart.values())
        if count > MOST_BELIEFS:
            busy = set(self.tenants.values())
            for idle in [each for each in self.apart if each not in busy]:
                if count > MOST_BELIEFS:
                    count -= 1 + len(self.apart.pop(idle).of)

    def known_to(self, request: int) -> "Beliefs":
        """The beliefs of a request's tenant, or of all who have none."""
        if request not in self.tenants:
            return self
        mine = self.apart[self.tenants[request]]
        mine.now = self.now
        return mine

    def belief(self, key: Key) -> Belief:
        if key not in self.of:
            self.of[key] = Belief(*self.priors.get(key[0], ()))
        return self.of[key]

    def observe(self, request: int, key: Key, asked: int, offered: Sequence[int], kept: Sequence[int]) -> None:
        """One round: a draft `asked` deep; nodes with a row and nodes kept at depth 1, 2, ..."""
        if asked >= 1:  # else there was no room for a token, and it says nothing
            self.belief(key).observe(request, min(asked, DEPTH), offered, kept, self.now)

    def expected(self, request: int | None, key: Key, depth: int, bound: int = 0) -> Expected:
        return self.belief(key).expected(request, depth, self.now, bound)

    def drop(self, request: int) -> None:
        """A request has ended."""
        for belief in self.known_to(request).of.values():
            belief.own.pop(request, None)
        self.tenants.pop(request, None)

    def dump(self) -> list[dict[str, Any]]:
        """The means, as JSON."""
        out = []
        for (drafter, size), it in self.of.items():
            it.mean.fade(self.now)
            it.rows.fade(self.now)
            out.append({"drafter": drafter, "size": size, "tries": [*it.mean.tries], "hits": [*it.mean.hits],
                        "asked": [*it.rows.tries], "offered": [*it.rows.hits]})  # fmt: skip
        return out

    def recall(self, kept: Any) -> None:
        """Begin with what `dump` gave, for RECALLED rounds at most. ValueError, KeyError or TypeError for what it can
        not have given."""
        found = dict[Key, Belief]()
        for each in kept:
            key = (str(each["drafter"]), int(each["size"]))
            counts = [[float(x) for x in each[name]] for name in ("tries", "hits", "asked", "offered")]
            tries, hits, asked, offered = counts
            if any(len(each) != DEPTH or not all(0 <= x < inf for x in each) for each in counts):
                raise ValueError(f"{each} are no counts")
            if any(few > many + 1e-9 for few, many in zip(hits, tries)):
                raise ValueError(f"{each} are no counts")
            belief = found[key] = Belief(*self.priors.get(key[0], ()))
            less = 1.0 if max(tries) <= 1.001 * RECALLED else RECALLED / max(tries)
            belief.mean = Tally(1.0, [x * less for x in tries], [x * less for x in hits], self.now)
            belief.rows = Tally(1.0, asked, offered, self.now)
        self.of |= found
