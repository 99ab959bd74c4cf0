"""The argmax: of what could be drafted for each request, what commits the most tokens a second (goodput, Liu et al.
2024, SmartSpec, in its per-request form). Pure arithmetic over expected tokens and seconds."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from paceline.core.plan import MinChance, Work
from paceline.plan.belief import Expected
from paceline.plan.cost import Drafting, StepTimes
from paceline.plan.governor import fitting

STAGES = 2
"""Stages that are priced of each round of nodes, one to everybody, at least."""
LEAST, MOST = 0.01, 0.6
"""Bounds of what a row, or a level, has to bring."""
RARELY = 0.01
"""Least share of the steps that is taken to have a draft."""
MARGIN = 1.01
"""How much better drafting has to be than not drafting, and a drafter for each request than one for all: of many
estimates the best is too good."""


class Point(NamedTuple):
    """A number of nodes for one request: how deep a chain is expected to go (a tree: 0), and its expected tokens and
    rows."""

    nodes: int
    depth: float
    tokens: float
    rows: float
    law: Expected | None = None
    """Expected figures of a draft at least as deep."""


NOTHING = Point(0, 0, 0.0, 0.0)

Pick = tuple[str, Point]
"""(drafter, point)"""
Choice = dict[int, Pick]
"""{request id: pick} of those that draft."""
Points = Mapping[int, Mapping[str, Sequence[Point]]]
"""{request id: {drafter: what it could be given, the fewest nodes first}}"""


class Price:
    """Seconds of a step that is `base` and some rows more, less what the rows of prompts cost in any case: next to
    them, who bring no tokens, drafts would seem cheap. Where one of `runs` drafts for all who draft, a step may have
    as many passes as `patience` allows, and each its part is counted. Made for one decision: it remembers."""

    def __init__(self, times: StepTimes, base: Work, patience: float = 0.0, runs: Collection[str] = ()) -> None:
        self.times, self.base, self.patience, self.runs = times, base, patience, runs
        alone = Work(base.requests, base.requests, base.context, base.context, base.requests)
        self.sunk = times.of_target(base) - times.of_target(alone) if base.rows > base.requests else 0.0
        self.known: dict[int, float] = {}

    def rows(self, more: float, share: float = 1.0) -> float:
        """Without drafting, with `more` expected rows. Where only a `share` of the steps has any, those have more: two
        rows in one step of twenty cost another time than a tenth of a row in each."""
        low = int(more / share)
        part, none = more / share - low, self._rows(0)
        many = self._rows(low) if not part else (1.0 - part) * self._rows(low) + part * self._rows(low + 1)
        return none + share * (many - none)

    def _rows(self, nodes: int) -> float:
        seconds = self.known.get(nodes)
        if seconds is None:
            rest = self.times.of_rest(self.base.requests, nodes)
            seconds = self.times.of_target(self.base.more(nodes)) + rest - self.sunk
            self.known[nodes] = seconds
        return seconds

    def share(self, point: Point) -> float:
        """Share of the steps in which the only request is drafted for at all. Of several some request nearly always
        is, so that it is 1."""
        if self.base.requests > 1 or point.law is None or not point.nodes:
            return 1.0
        return min(1.0, max(point.law.rows[0], point.rows / point.nodes, RARELY))

    def of(self, choice: Choice) -> float:
        """With it."""
        points = [point for _, point in choice.values()]
        share = min(map(self.share, points), default=1.0)
        return self.drafted(sum(point.rows for point in points), parts_of(choice), share)

    def drafted(self, rows: float, parts: Sequence[Drafting], share: float = 1.0) -> float:
        """Seconds with `rows` that these draft, in a share of the steps."""
        of_draft, of_rest, requests = self.times.of_draft, self.times.of_rest, self.base.requests
        if self.patience and len(parts) < 2 and all(part.drafter in self.runs for part in parts):
            alone = self.rows(rows, share) - of_rest(requests, rows)
            alone += sum(of_draft(part.within(1)) for part in parts)
            if (passes := fitting(self.patience, alone)) > 1:
                return alone + of_rest(requests, 0, passes) / passes
        saved = self.times.of_saved(self.base.more(round(rows)), parts) if self.times.beside else 0.0
        return self.rows(rows, share) + sum(map(of_draft, parts)) - saved

    def worth(self, choice: Choice, goodput: float) -> dict[str, MinChance]:
        """What nodes have to bring: their price in tokens (Huang et al. 2024, SpecDec++, theorem 1, at measured cost).
        A row's is its average where there is a draft: of a staircase the last step says little."""
        out, every = {}, max(1, round(sum(point.rows / self.share(point) for _, point in choice.values())))
        average = (self.rows(every) - self.rows(0)) / every
        n = self.base.requests
        pass_ = goodput * self.times.of_target(Work(n, n, self.base.context, self.base.context, n)) / n
        for part in parts_of(choice):
            row = average
            if part.depth:  # a tree pays by passes, which it weighs itself
                fewer = replace(part, nodes=max(0, part.nodes - part.requests))
                row += (self.times.of_draft(part) - self.times.of_draft(fewer)) / part.requests
            level = self.times.of_draft(part) - self.times.of_draft(replace(part, depth=max(0, part.depth - 1)))
            level *= goodput / part.requests
            out[part.drafter] = MinChance(min(MOST, max(LEAST, goodput * row)), min(MOST, level), pass_)
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
    """The choice of most goodput among: nothing; one drafter for all, with nodes where they bring most; to each request
    what is best for it at the price so found. At most `spare` nodes. And its goodput."""
    nothing = len(points) / price.of({})
    found, most = Choice(), nothing * MARGIN
    for drafter in dict.fromkeys(drafter for each in points.values() for drafter in each):
        choice, goodput = uniform(drafter, points, spare, price, most)
        if goodput > most:
            found, most = choice, goodput
    if len(points) > 1:
        choice = apart(points, spare, price, most)
        goodput = (len(points) + sum(point.tokens for _, point in choice.values())) / price.of(choice)
        if goodput > most * MARGIN:
            found, most = choice, goodput
    return (found, most) if found else (found, nothing)


def uniform(drafter: str, points: Points, spare: int, price: Price, least: float = 0.0) -> tuple[Choice, float]:
    """One drafter: the next nodes go where they bring most for a row. Stages are priced as long as all tokens together
    could be better than what was found and `least`, not only up to the first that loses: the step from nothing to
    something may lose where the next ones gain."""
    stride = max(1, len(points) // STAGES)
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
        if len(moves) % stride and heap:
            continue
        seconds = price.drafted(rows, [Drafting(drafter, len(at), depth, round(rows))], price.share(point))
        if tokens / seconds > most:
            most, good = tokens / seconds, len(moves)
        if ceiling / seconds < max(most, least):
            break
    return {who: (drafter, own[who][i]) for who, i in moves[:good]}, most


def apart(points: Points, spare: int, price: Price, goodput: float) -> Choice:
    """To each request what gains most at `goodput` (a step of Dinkelbach's method), a drafter's costs shared by all and
    a row at its average price."""
    n, choice = len(points), Choice()
    more = max(1, min(spare, 8 * n))
    row = (price.rows(more) - price.rows(0)) / more
    fixed: dict[tuple[str, float, int], float] = {}
    for who, each in points.items():
        gain, pick = 0.0, None
        for drafter, mine in each.items():
            for point in mine:
                kind = (drafter, point.depth, round(point.rows))
                if kind not in fixed:
                    fixed[kind] = price.times.of_draft(Drafting(drafter, n, point.depth, n * kind[2])) / n
                net = point.tokens - goodput * (fixed[kind] + row * point.rows)
                if net > gain:
                    gain, pick = net, (drafter, point)
        if pick and pick[1].nodes <= spare:
            choice[who] = pick
            spare -= pick[1].nodes
    return choice


def slope(a: Point, b: Point) -> float:
    """Tokens for a row, from one point to the next."""
    return (b.tokens - a.tokens) / max(b.rows - a.rows, 0.1)


def prepared(kept: Sequence[float], nodes: int) -> float:
    """Share of passes that find a draft of `nodes` prepared, which a `path` was during the pass before. Of two
    states (PEARL, arXiv 2408.11850): with a draft, all of it and the token behind it must be kept for the next one;
    without, one token."""
    first, whole = kept[0], kept[min(nodes, len(kept) - 1)]
    return first / (1.0 - whole + first) if first else 0.0
