"""`Arm`: one drafter as the chooser sees it, and the numbers of nodes that it may be given."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.core.request import Request
from paceline.plan import DrafterFacts
from paceline.plan.allocate import Point, prepared
from paceline.plan.belief import DEPTH, Beliefs, Key

CHAIN = (1, 2, 3, 4, 6, 8, 12)
"""Lengths of chains to choose from, in nodes."""


@dataclass(frozen=True, slots=True)
class Arm:
    """`sizes`: numbers of nodes to choose from, fewest first. A chain's acceptance is one distribution at every length;
    that of a tree depends on its size. `like`: the chain whose acceptance holds for a `path`, too."""

    drafter: str
    facts: DrafterFacts
    sizes: tuple[int, ...]
    like: str | None = None

    @classmethod
    def of(cls, drafter: str, facts: DrafterFacts, like: str | None = None) -> "Arm":
        """Sizes around a drafter's own number of nodes, none above its `most`."""
        f, most = facts, max(8, facts.nodes)
        small = [n for n in CHAIN if n < most] if f.chain else [f.nodes // 2] if f.nodes > 1 else []
        sizes = [*small, most if f.chain else f.nodes]
        if f.most is not None:
            sizes = [*(n for n in sizes if n < f.most), f.most]
        return cls(drafter, facts, tuple(sizes), like)

    @property
    def path(self) -> bool:
        """Does it draft how the text goes on while the pass runs? Then a draft is as long as the pass."""
        return self.facts.ahead == "path"

    def runs_for(self, requests: Iterable[Request]) -> bool:
        """Can it draft for all of them in steps of several passes?"""
        runs = self.facts.runs
        return runs is True or (runs == "greedy" and all(r.params.greedy for r in requests))

    def key(self, size: int) -> Key:
        """Key under which the drafter's acceptance is counted, for a tree of `size` nodes."""
        return (self.like or self.drafter, 0 if self.facts.chain else size)

    def sizes_for(self, request: Request, depth: int, count: int, window: int) -> list[int]:
        """Sizes that one of `count` requests could be given; `window`: nodes of a path that a pass has time for."""
        wish = request.params.max_nodes
        if self.path and wish is None:
            most = min(depth, self.sizes[-1], window)
            return [most] if most else []
        most = min(depth if self.facts.chain else depth * 64, self.sizes[-1] if wish is None else wish)
        fitting = [n for n in self.sizes if n <= most] or ([most] if most else [])
        whole = self.facts.stops_early and (self.facts.chain or count == 1)  # it stops at the price of its nodes
        return fitting[-1:] if whole else fitting

    def points(
        self, beliefs: Beliefs, request: int | None, sizes: Sequence[int], limit: int, count: int, *,
        bound: int = 0, part: Key | None = None,
    ) -> list[Point]:  # fmt: skip
        """Expected depth, tokens and rows of each size, for one of `count` requests. `part`: the chain that is
        always in it."""
        if self.facts.chain:
            return self._chains(beliefs, request, sizes, limit, count, bound)
        points = []
        known = [size for size in self.sizes if self.key(size) in beliefs.of]
        for n in sizes:
            near = self.key(min(known, key=lambda size: abs(size - n), default=n))
            expected = beliefs.expected(request, near, min(n, limit, DEPTH), bound)
            if part is not None and part in beliefs.of:
                expected = expected.beside(beliefs.expected(request, part, min(n, limit, DEPTH), bound))
            rows = min(float(n), sum(expected.rows)) if known else float(n)
            points.append(Point(n, 0, sum(expected.kept), rows))
        return points

    def _chains(
        self, beliefs: Beliefs, request: int | None, sizes: Sequence[int], limit: int, count: int, bound: int
    ) -> list[Point]:
        limit = min(limit, DEPTH)
        expected = beliefs.expected(request, self.key(0), min(sizes[-1], limit) + self.path, bound)
        points, done, deep, tokens, rows = list[Point](), 0, 0.0, 0.0, 0.0
        for n in sizes:
            for d in range(done, min(n, limit)):
                tokens += expected.kept[d]
                rows += expected.rows[d]
                deep += 1.0 - (1.0 - min(1.0, expected.rows[d])) ** count  # of all, the deepest
            done = min(n, limit)
            whole = tokens * prepared(expected.kept, done) if self.path else tokens
            points.append(Point(n, n + 1 if self.facts.ahead else max(1.0, deep), whole, rows))
        return points
