"""The argmax: of what could be drafted for each request, what commits the most tokens a second (goodput, Liu et al.
2024, SmartSpec, in its per-request form). Pure arithmetic over expected tokens and seconds."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paceline.core.plan import MinChance, Work
from paceline.plan.cost import Drafting, StepTimes
from paceline.plan.governor import LOSS, fitting

MARGIN = 1.0 + LOSS
"""How much better drafting has to be than not drafting: of many estimates the best is too good."""


class Point(NamedTuple):
    """A number of nodes for one request: how deep a chain is expected to go (a tree: 0), and its expected tokens and
    rows."""

    nodes: int
    depth: float
    tokens: float
    rows: float


NOTHING = Point(0, 0, 0.0, 0.0)

Pick = tuple[str, Point]
"""(drafter, point)"""
Choice = dict[int, Pick]
"""{request id: pick} of those that draft."""
Points = Mapping[int, Mapping[str, Sequence[Point]]]
"""{request id: {drafter: what it could be given, the fewest nodes first}}"""


class Price:
    """Seconds of a step that is `base` and some more rows, less what the rows of prompts cost in any case: those bring
    no tokens, and drafts would seem cheap next to them. If one of `runs` drafts for all requests that draft, a step may
    have as many passes as `patience` allows, and the price is that of one pass. `hopeful`: prices of drafts are the
    lowest that can be true (`StepTimes.hope`). An object serves one decision: it remembers prices."""

    def __init__(
        self, times: StepTimes, base: Work, patience: float = 0.0, runs: Collection[str] = (), hopeful: bool = False
    ) -> None:
        self.times, self.base, self.patience, self.runs, self.hopeful = times, base, patience, runs, hopeful
        alone = Work(base.requests, base.requests, base.context, base.context, base.requests)
        self.sunk = times.of_target(base) - times.of_target(alone) if base.rows > base.requests else 0.0
        self.known: dict[int, float] = {}

    def rows(self, more: float) -> float:
        """Seconds of a step in which nothing is drafted, with `more` expected rows."""
        low = int(more)
        part = more - low
        return self._rows(low) if not part else (1.0 - part) * self._rows(low) + part * self._rows(low + 1)

    def _rows(self, nodes: int) -> float:
        seconds = self.known.get(nodes)
        if seconds is None:
            rest = self.times.of_rest(self.base.requests, nodes)
            seconds = self.times.of_target(self.base.more(nodes)) + rest - self.sunk
            self.known[nodes] = seconds
        return seconds

    def draft(self, part: Drafting) -> float:
        """Seconds of one drafter's part."""
        return self.times.of_draft(part) * (self.times.hope(part.drafter) if self.hopeful else 1.0)

    def of(self, choice: Choice) -> float:
        """Seconds of a step with this choice."""
        return self.drafted(*self.parts(choice))

    @staticmethod
    def parts(choice: Choice) -> tuple[float, list[Drafting]]:
        """Rows of a choice, and each drafter's part."""
        return sum(point.rows for _, point in choice.values()), parts_of(choice)

    def passes(self, rows: float, parts: Sequence[Drafting]) -> int:
        """Passes of a step with `rows` that these draft."""
        runs = self.patience and len(parts) < 2 and all(part.drafter in self.runs for part in parts)
        return fitting(self.patience, self._alone(rows, parts)) if runs else 1

    def _alone(self, rows: float, parts: Sequence[Drafting]) -> float:
        """Seconds of one pass of a run."""
        alone = self.rows(rows) - self.times.of_rest(self.base.requests, rows)
        return alone + sum(self.draft(replace(part, passes=1)) for part in parts)

    def drafted(self, rows: float, parts: Sequence[Drafting]) -> float:
        """Seconds with `rows` that these draft."""
        if (passes := self.passes(rows, parts)) > 1:
            return self._alone(rows, parts) + self.times.of_rest(self.base.requests, 0, passes) / passes
        saved = self.times.of_saved(self.base.more(round(rows)), parts) if self.times.beside else 0.0
        return self.rows(rows) + sum(map(self.draft, parts)) - saved

    def worth(self, choice: Choice, goodput: float, mates: Mapping[str, Sequence[str]]) -> dict[str, MinChance]:
        """What nodes have to bring: their price in tokens (Huang et al. 2024, SpecDec++, theorem 1, at measured cost).
        A row's is its average where there is a draft: of a staircase the last step says little. `mates`: for each
        drafter of trees those whose node is a pass of the same model."""
        out, every = {}, max(1, round(sum(point.rows for _, point in choice.values())))
        average = (self.rows(every) - self.rows(0)) / every
        n = self.base.requests
        pass_ = goodput * self.times.of_target(Work(n, n, self.base.context, self.base.context, n)) / n
        for part in parts_of(choice):
            row = average
            level = self.times.of_level(mates.get(part.drafter, ()))
            if part.depth:
                fewer = replace(part, nodes=max(0, part.nodes - part.requests))
                row += (self.draft(part) - self.draft(fewer)) / part.requests
                level = self.draft(part) - self.draft(replace(part, depth=max(0, part.depth - 1)))
            out[part.drafter] = MinChance(goodput * row, goodput * level / part.requests, pass_)
        return out


def parts_of(choice: Choice) -> list[Drafting]:
    """A choice as the drafters see it."""
    by: dict[str, list[Point]] = {}
    for drafter, point in choice.values():
        by.setdefault(drafter, []).append(point)
    return [
        Drafting(drafter, len(points), max(p.depth for p in points), round(sum(p.rows for p in points)))
        for drafter, points in by.items()
    ]


def best(points: Points, spare: int, price: Price) -> tuple[Choice, float]:
    """The choice of most goodput among: nothing; one drafter for all, with nodes where they bring most. At most `spare`
    nodes. And its goodput."""
    nothing = len(points) / price.of({})
    found, most = Choice(), nothing * MARGIN
    for drafter in dict.fromkeys(drafter for each in points.values() for drafter in each):
        choice, goodput = uniform(drafter, points, spare, price, most)
        if goodput > most:
            found, most = choice, goodput
    return (found, most) if found else (found, nothing)


def uniform(drafter: str, points: Points, spare: int, price: Price, least: float = 0.0) -> tuple[Choice, float]:
    """One drafter: the next nodes go where they bring most for a row. Moves are priced as long as all tokens together
    could be better than what was found and `least`, not only up to the first that loses: the step from nothing to
    something may lose where the next ones gain."""
    own = {who: each[drafter] for who, each in points.items() if drafter in each}
    heap = [(-slope(NOTHING, mine[0]), who, 0) for who, mine in own.items()]
    heapq.heapify(heap)
    moves: list[tuple[int, int]] = []
    at, most, good = dict[int, int](), 0.0, 0
    ceiling = len(points) + sum(max(point.tokens for point in mine) for mine in own.values())
    used, tokens, rows, depth = 0, float(len(points)), 0.0, 0.0
    while heap:
        _, who, i = heapq.heappop(heap)
        mine = own[who]
        before, point = mine[at[who]] if who in at else NOTHING, mine[i]
        used += point.nodes - before.nodes
        if used > spare:
            break
        at[who] = i
        moves.append((who, i))
        tokens += point.tokens - before.tokens
        rows += point.rows - before.rows
        depth = max(depth, point.depth)
        if i + 1 < len(mine):
            heapq.heappush(heap, (-slope(point, mine[i + 1]), who, i + 1))
        seconds = price.drafted(rows, [Drafting(drafter, len(at), depth, round(rows))])
        if tokens / seconds > most:
            most, good = tokens / seconds, len(moves)
        if ceiling / seconds < max(most, least):
            break
    return {who: (drafter, own[who][i]) for who, i in moves[:good]}, most


def slope(a: Point, b: Point) -> float:
    """Tokens for a row, from one point to the next."""
    return (b.tokens - a.tokens) / max(b.rows - a.rows, 0.1)


def prepared(kept: Sequence[float], nodes: int) -> float:
    """Share of passes that find a draft of `nodes` prepared, which a `path` was during the pass before. Of two
    states (PEARL, arXiv 2408.11850): with a draft, all of it and the token behind it must be kept for the next one;
    without, one token."""
    first, whole = kept[0], kept[min(nodes, len(kept) - 1)]
    return first / (1.0 - whole + first) if first else 0.0
