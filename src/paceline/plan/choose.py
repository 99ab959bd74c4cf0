"""`Goodput`: who drafts how much, by expected committed tokens per second (Liu et al. 2024, SmartSpec: goodput, in its
per-request form). "Draft nothing" is always one of the choices.

All that it reads is known before anything is drawn in the step, so any verifier's rule stays exact (D2). Its own
inputs are the table of costs and the acceptance; equal inputs make equal choices, for it has no clock and no chance.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.plan import Note, Work
from paceline.core.request import Request
from paceline.plan import Share
from paceline.plan.acceptance import Acceptance, Key
from paceline.plan.cost import Drafting, StepTimes, Times

PERIOD = 8
"""Steps that a choice holds while the same requests run."""
MARGIN = 1.01
"""Drafting has to be better than not drafting by so much."""
PROBING = 0.015
"""Most of the time that may be lost to trying what is not chosen."""
FIRST_GAP, LAST_GAP = 8, 32
"""Steps from one try to the next: doubled while it fails. One that goes well is repeated at once."""
BANNED = 256
"""Steps that a drafter rests after it has failed; doubled each time."""
CHAIN = (1, 2, 3, 4, 5, 6, 8, 10, 12)
DEPTH = 16
"""Deepest place of a tree that is counted."""
NONE = "none"


@dataclass(frozen=True, slots=True)
class Arm:
    """One drafter as the chooser sees it. `sizes`: numbers of nodes to choose from; a chain's acceptance is one law at
    every length, a tree's depends on its size."""

    drafter: str
    sizes: tuple[int, ...]
    chain: bool

    @classmethod
    def of(cls, drafter: str, nodes: int, chain: bool) -> "Arm":
        """Sizes around a drafter's own number of nodes."""
        most = max(8, nodes)
        sizes = [*(n for n in CHAIN if n < most), most] if chain else [max(1, nodes // 2), nodes, 2 * nodes + 1]
        return cls(drafter, tuple(sizes), chain)

    def key(self, size: int) -> Key:
        """Where acceptance keeps it."""
        return (self.drafter, 0 if self.chain else size)


@dataclass(frozen=True, slots=True)
class Point:
    """A number of nodes for one request: tokens and rows expected of it."""

    nodes: int
    depth: int
    tokens: float
    rows: float


Choice = dict[int, tuple[str, Point]]
"""{request id: (drafter, point)} of those that draft."""


@dataclass(slots=True)
class Trial:
    """When an arm that is not chosen is tried."""

    gap: int = FIRST_GAP
    due: int = 0
    banned: int = 0
    """Length of its last rest, after a failure; 0: it has never failed."""


@dataclass(slots=True)
class Goodput:
    """`arms` {drafter: arm}; `limit(request, drafter)`: how deep its draft may be."""

    arms: dict[str, Arm]
    times: StepTimes
    limit: Callable[[Request, str], int]
    acceptance: Acceptance = field(default_factory=Acceptance)
    step: int = 0
    spent: float = 0.0
    """Seconds of all steps."""
    lost: float = 0.0
    """Seconds that tries have cost."""
    parts: Sequence[Drafting] = ()
    """Of the latest step."""
    trials: dict[str, Trial] = field(default_factory=dict)
    _held: Choice = field(default_factory=dict)
    _for: tuple[tuple[int, ...], int] = ((), 0)
    _until: int = 0
    _goodput: float = 0.0
    _trying: tuple[int, str, float, float] | None = None
    """The try of this step: request, drafter, seconds that it costs, and the tokens it was expected to bring."""

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> dict[int, Share]:
        """The choice for this step, clipped to what each request has left."""
        situation = (tuple(r.id for r in requests), (base.rows - len(requests)).bit_length())
        if situation != self._for or self.step >= self._until:
            self._held, self._goodput = self.best(requests, spare, base)
            self._for, self._until = situation, self.step + PERIOD
            for drafter in dict.fromkeys(drafter for drafter, _ in self._held.values()):
                self.trials[drafter] = Trial(due=self.step + FIRST_GAP, banned=self._trial(drafter).banned)
        choice = self._probe(requests, base)
        worth = self._worth(choice, base)
        shares: dict[int, Share] = {}
        for request in requests:
            drafter, point = choice.get(request.id, (NONE, _NOTHING))
            depth = self.limit(request, drafter)
            nodes = min(point.nodes, spare) if depth else 0
            spare -= nodes
            shares[request.id] = Share(drafter if nodes else NONE, nodes, depth, worth.get(drafter, 0.0))
        return shares

    # -- the best choice -----------------------------------------------------------------------------------------

    def best(self, requests: Sequence[Request], spare: int, base: Work) -> tuple[Choice, float]:
        """The choice of most goodput, and that goodput: nothing; one drafter for all, with nodes where they bring
        most; or to each request what is best for it at the price so found."""
        points = {r.id: self._points(r) for r in requests}
        nothing = len(requests) / self._seconds({}, base)
        best, most = {}, nothing * MARGIN
        for drafter in dict.fromkeys(d for each in points.values() for d in each):
            choice, goodput = self._uniform(drafter, requests, points, spare, base)
            if goodput > most:
                best, most = choice, goodput
        if len(requests) > 1:
            choice = self._each(requests, points, spare, base, most)
            goodput = self._goodput_of(choice, requests, base)
            if goodput > most:
                best, most = choice, goodput
        return best, most if best else nothing

    def _points(self, request: Request) -> dict[str, list[Point]]:
        """What each drafter could be given for a request, the fewest nodes first."""
        out: dict[str, list[Point]] = {}
        wish = request.params.max_nodes
        for drafter in request.arms:
            if self._trial(drafter).banned and self._trial(drafter).due > self.step:
                continue
            depth = self.limit(request, drafter)
            points = [self._point(request, self.arms[drafter], n, depth) for n in self._sizes(drafter, wish, depth)]
            if points:
                out[drafter] = points
        return out

    def _sizes(self, drafter: str, wish: int | None, depth: int) -> list[int]:
        arm = self.arms[drafter]
        most = min(depth if arm.chain else depth * 64, arm.sizes[-1] if wish is None else wish)
        fitting = [n for n in arm.sizes if n <= most]
        return fitting or ([most] if most else [])

    def _point(self, request: Request, arm: Arm, nodes: int, limit: int) -> Point:
        depth = min(nodes, limit, DEPTH)
        expected = self.acceptance.expected(request.id, arm.key(nodes), depth)
        rows = sum(expected.rows) if arm.key(nodes) in self.acceptance.means or arm.chain else nodes
        deepest = sum(min(r, 1.0) for r in expected.rows)
        return Point(nodes, max(1, round(deepest)), sum(expected.kept), min(rows, nodes))

    def _uniform(
        self, drafter: str, requests: Sequence[Request], points: Mapping[int, Mapping[str, list[Point]]],
        spare: int, base: Work,
    ) -> tuple[Choice, float]:  # fmt: skip
        """One drafter: the next nodes go where they bring most for a row. Every stage is priced, not only up to the
        first that loses: the step from nothing to something may lose where the next ones gain."""
        heap: list[tuple[float, int, int]] = []
        for request in requests:
            mine = points[request.id].get(drafter)
            if mine:
                heapq.heappush(heap, (-_slope(_NOTHING, mine[0]), request.id, 0))
        choice: Choice = {}
        best, most = dict[int, tuple[str, Point]](), 0.0
        used, tokens, rows, depth, nodes = 0, float(len(requests)), 0.0, 0, 0.0
        price = _Price(self.times, base)
        while heap:
            _, who, i = heapq.heappop(heap)
            mine = points[who][drafter]
            before, point = choice.get(who, (drafter, _NOTHING))[1], mine[i]
            used += point.nodes - before.nodes
            if used > spare:
                break
            choice[who] = (drafter, point)
            tokens += point.tokens - before.tokens
            rows += point.rows - before.rows
            depth = max(depth, point.depth)
            nodes += point.rows - before.rows
            goodput = tokens / price.of(rows, [Drafting(drafter, len(choice), depth, round(nodes))])
            if goodput > most:
                best, most = dict(choice), goodput
            if i + 1 < len(mine):
                heapq.heappush(heap, (-_slope(point, mine[i + 1]), who, i + 1))
        return best, most

    def _each(
        self, requests: Sequence[Request], points: Mapping[int, Mapping[str, list[Point]]], spare: int, base: Work,
        goodput: float,
    ) -> Choice:  # fmt: skip
        """To each request what gains most at `goodput` (one step of Dinkelbach's method), a drafter's fixed costs
        shared by all requests."""
        row = self._row_price(base, spare)
        n, choice = len(requests), Choice()
        for request in requests:
            gain, pick = 0.0, None
            for drafter, mine in points[request.id].items():
                for point in mine:
                    drafting = self.times.of_draft(Drafting(drafter, n, point.depth, n * round(point.rows))) / n
                    net = point.tokens - goodput * (drafting + row * point.rows)
                    if net > gain:
                        gain, pick = net, (drafter, point)
            if pick and pick[1].nodes <= spare:
                choice[request.id] = pick
                spare -= pick[1].nodes
        return choice

    def _row_price(self, base: Work, spare: int) -> float:
        """Seconds of one more row, on average over those that may be added."""
        more = max(1, min(spare, 8 * max(base.requests, 1)))
        price = _Price(self.times, base)
        return (price.of(more, ()) - price.of(0, ())) / more

    def _goodput_of(self, choice: Choice, requests: Sequence[Request], base: Work) -> float:
        tokens = len(requests) + sum(point.tokens for _, point in choice.values())
        return tokens / self._seconds(choice, base)

    def _seconds(self, choice: Choice, base: Work) -> float:
        return _Price(self.times, base).of(sum(p.rows for _, p in choice.values()), _parts(choice))

    def _worth(self, choice: Choice, base: Work) -> dict[str, float]:
        """The chance below which one more node of a draft costs more than it brings: its price in tokens at the
        current goodput (Huang et al. 2024, SpecDec++, theorem 1, with measured costs)."""
        price, out = _Price(self.times, base), {}
        for part in _parts(choice):
            more = Drafting(part.drafter, part.requests, part.depth + 1, part.nodes + part.requests)
            rows = price.of(part.nodes + part.requests, [more]) - price.of(part.nodes, [part])
            out[part.drafter] = min(0.6, max(0.02, self._goodput * rows / part.requests))
        return out

    # -- trying what is not chosen ---------------------------------------------------------------------------------

    def _trial(self, drafter: str) -> Trial:
        return self.trials.setdefault(drafter, Trial())

    def _probe(self, requests: Sequence[Request], base: Work) -> Choice:
        """The held choice, or it with one request's drafter replaced by one that has not been tried for long."""
        used = {drafter for drafter, _ in self._held.values()}
        for request in requests[self.step % len(requests) :][:1] if requests else ():
            for drafter in request.arms:
                trial = self._trial(drafter)
                depth = self.limit(request, drafter)
                if drafter in used or trial.due > self.step or depth < 1:
                    continue
                sizes = self._sizes(drafter, request.params.max_nodes, depth)
                if not sizes:
                    continue
                arm = self.arms[drafter]
                point = self._point(request, arm, sizes[min(3, len(sizes) - 1)] if arm.chain else sizes[0], depth)
                choice = {**self._held, request.id: (drafter, point)}
                given_up = self._held[request.id][1].tokens if request.id in self._held else 0.0
                cost = self._seconds(choice, base) - self._seconds(self._held, base) + given_up / self._goodput
                if self.lost + cost - point.tokens / self._goodput > PROBING * self.spent:
                    continue
                self._trying = (request.id, drafter, cost, point.tokens)
                trial.due, trial.gap = self.step + trial.gap, min(2 * trial.gap, LAST_GAP)
                return choice
        return self._held

    def _tried(self, notes: Sequence[Note]) -> None:
        """Book what the step's try has cost, and repeat it at once when it went better than expected."""
        if self._trying is None:
            return
        request, drafter, cost, tokens = self._trying
        kept = sum(sum(n.kept) for n in notes if n.request == request and n.drafter == drafter)
        self.lost += max(0.0, cost - kept / self._goodput)
        if kept > tokens + 1:
            self.trials[drafter] = Trial(due=self.step, banned=self._trial(drafter).banned)
        self._trying = None

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, notes: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times) -> None:
        """What a step taught."""
        self.step += 1
        self.spent += times.total
        self.parts = parts
        self.times.observe(work, parts, times)
        self._tried(notes)
        changes = self.acceptance.changes
        for note in notes:
            arm = self.arms.get(note.drafter)
            if arm is not None and note.nodes:
                depth = min(note.nodes, note.depth, DEPTH)
                self.acceptance.observe(note.request, arm.key(note.nodes), depth, note.offered, note.kept)
        if self.acceptance.changes > changes:
            self._until = self.step
            for trial in self.trials.values():
                trial.gap = FIRST_GAP

    def seconds(self, work: Work) -> float:
        """Of a step whose pass is this work and that drafts as the latest did."""
        return self.times.predict(work, self.parts)

    def failed(self, drafter: str) -> None:
        """A drafter raised: it rests, longer each time."""
        trial = self._trial(drafter)
        trial.banned = max(BANNED, 2 * trial.banned)
        trial.due, self._until = self.step + trial.banned, self.step

    def drop(self, request: Request) -> None:
        """A request has ended."""
        self.acceptance.drop(request.id)


_NOTHING = Point(0, 0, 0.0, 0.0)


def _slope(a: Point, b: Point) -> float:
    """Tokens for a row, from one point to the next."""
    return (b.tokens - a.tokens) / max(b.rows - a.rows, 0.1)


def _parts(choice: Choice) -> list[Drafting]:
    """A choice as the drafters see it."""
    by: dict[str, list[Point]] = {}
    for drafter, point in choice.values():
        by.setdefault(drafter, []).append(point)
    return [
        Drafting(drafter, len(ps), max(p.depth for p in ps), round(sum(p.rows for p in ps)))
        for drafter, ps in by.items()
    ]


class _Price:
    """Seconds of a step that is `base` and so many rows more."""

    def __init__(self, times: StepTimes, base: Work) -> None:
        self.times, self.base = times, base
        self.reach = base.pairs / max(base.requests, 1)
        self.known: dict[int, float] = {}

    def of(self, rows: float, parts: Sequence[Drafting]) -> float:
        nodes = round(rows)
        if nodes not in self.known:
            base = self.base
            pairs = base.pairs + round(nodes * self.reach)
            work = Work(max(1, base.rows + nodes), base.requests, base.context, pairs, base.logits + nodes)
            self.known[nodes] = self.times.of_target(work) + self.times.of_rest(base.requests, nodes)
        return self.known[nodes] + sum(map(self.times.of_draft, parts))
