"""`Goodput`: who drafts how much, by expected committed tokens per second (Liu et al. 2024, SmartSpec: goodput, in its
per-request form). "Draft nothing" is always one of the choices.

All that it reads is known before anything is drawn in the step, so any verifier's rule stays exact (D2). Its own
inputs are the table of costs and the acceptance; equal inputs make equal choices, for it has no clock and no chance.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from paceline.core.plan import Note, Work
from paceline.core.request import Request
from paceline.plan import Share
from paceline.plan.acceptance import Acceptance, Key
from paceline.plan.allocate import NOTHING, Choice, Pick, Point, Price, best
from paceline.plan.cost import Drafting, StepTimes, Times

PERIOD, MANY = 8, 5
"""Steps that a choice holds, and the number of requests from which on it holds twice as long."""
KNOWN, SELDOM = 300, 4
"""From so many steps on the table of costs learns from every fourth one: learning costs time, too."""
PROBING = 0.015
"""Most of the time that may be lost to trying what is not chosen."""
FIRST_GAP, LAST_GAP = 12, 32
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
    def of(cls, drafter: str, nodes: int, chain: bool, limit: int | None = None) -> "Arm":
        """Sizes around a drafter's own number of nodes, none above `limit`."""
        most = max(8, nodes)
        sizes = [*(n for n in CHAIN if n < most), most] if chain else [max(1, nodes // 2), nodes, 2 * nodes + 1]
        if limit is not None:
            sizes = [*(n for n in sizes if n < limit), limit]
        return cls(drafter, tuple(sizes), chain)

    def key(self, size: int) -> Key:
        """Where acceptance keeps it."""
        return (self.drafter, 0 if self.chain else size)


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
    """Seconds that tries have cost, less those that they have saved."""
    parts: Sequence[Drafting] = ()
    """Of the latest step."""
    trials: dict[str, Trial] = field(default_factory=dict)
    _held: dict[int, Pick | None] = field(default_factory=dict)
    """{request id: pick} of those that were there when it was made."""
    _usual: Pick | None = None
    """What most of them were given, or its least size."""
    _worth: dict[str, float] = field(default_factory=dict)
    _goodput: float = 0.0
    _count: int = 0
    """Requests that it was made for."""
    _filling: bool = False
    """Did prompts share the step?"""
    _until: int = 0
    _trying: tuple[int, str, float, float] | None = None
    """The try of this step: request, drafter, seconds that it costs, and the tokens it was expected to bring."""

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> dict[int, Share]:
        """The choice for this step, clipped to what each request has left."""
        if self._stale(base):
            self._decide(requests, spare, base)
        held = self._present(requests)
        choice, worth = self._probe(requests, held, base) or (held, self._worth)
        shares: dict[int, Share] = {}
        for request in requests:
            drafter, point = choice.get(request.id, (NONE, NOTHING))
            depth = self.limit(request, drafter)
            nodes = min(point.nodes, spare) if depth else 0
            spare -= nodes
            shares[request.id] = Share(drafter if nodes else NONE, nodes, depth, worth.get(drafter, 0.0))
        return shares

    # -- the choice ------------------------------------------------------------------------------------------------

    def best(self, requests: Sequence[Request], spare: int, base: Work) -> tuple[Choice, float]:
        """The choice of most goodput, and that goodput."""
        return best({r.id: self._points(r) for r in requests}, spare, Price(self.times, base))

    def _stale(self, base: Work) -> bool:
        """Was the choice held long enough, did a quarter of the requests come or go, or prompts come or end?"""
        changed = 4 * abs(base.requests - self._count) > self._count or self._filling != (base.rows > base.requests)
        return changed or self.step >= self._until

    def _decide(self, requests: Sequence[Request], spare: int, base: Work) -> None:
        choice, self._goodput = self.best(requests, spare, base)
        self._worth = Price(self.times, base).worth(choice, self._goodput)
        self._held = {r.id: choice.get(r.id) for r in requests}
        self._count = base.requests
        self._until = self.step + (PERIOD if base.requests < MANY else 2 * PERIOD)
        self._filling = base.rows > base.requests
        used = Counter(drafter for drafter, _ in choice.values())
        drafter, count = used.most_common(1)[0] if used else (NONE, 0)
        least = [pick for pick in choice.values() if pick[0] == drafter]
        self._usual = min(least, key=lambda pick: pick[1].nodes) if 2 * count > len(requests) else None
        for drafter in used:
            self.trials[drafter] = Trial(due=self.step + FIRST_GAP, banned=self._trial(drafter).banned)

    def _present(self, requests: Sequence[Request]) -> Choice:
        """The held choice of those who are here; who came since gets what most have, as far as it may."""
        out: Choice = {}
        for request in requests:
            pick = self._held.get(request.id) if request.id in self._held else self._usual
            wish = request.params.max_nodes
            if pick and pick[0] in request.arms and (wish is None or pick[1].nodes <= wish):
                out[request.id] = pick
        return out

    def _points(self, request: Request) -> dict[str, list[Point]]:
        """What each drafter could be given for a request, the fewest nodes first."""
        out: dict[str, list[Point]] = {}
        for drafter in request.arms:
            trial, depth = self._trial(drafter), self.limit(request, drafter)
            if not (trial.banned and trial.due > self.step) and (sizes := self._sizes(request, drafter, depth)):
                out[drafter] = self._price(request, self.arms[drafter], sizes, min(depth, DEPTH))
        return out

    def _sizes(self, request: Request, drafter: str, depth: int) -> list[int]:
        arm, wish = self.arms[drafter], request.params.max_nodes
        most = min(depth if arm.chain else depth * 64, arm.sizes[-1] if wish is None else wish)
        fitting = [n for n in arm.sizes if n <= most]
        return fitting or ([most] if most else [])

    def _price(self, request: Request, arm: Arm, sizes: Sequence[int], limit: int) -> list[Point]:
        """Expected depth, tokens and rows of each size."""
        if arm.chain:
            expected = self.acceptance.expected(request.id, arm.key(0), min(sizes[-1], limit))
            tokens, rows = list(accumulate(expected.kept)), list(accumulate(expected.rows))
            deep = list(accumulate(float(r * max(self._count, 1) >= 0.5) for r in expected.rows))  # of all, the deepest
            reach = [min(n, limit) - 1 for n in sizes]
            return [Point(n, max(1, round(deep[i])), tokens[i], rows[i]) for n, i in zip(sizes, reach)]
        points = []
        for n in sizes:
            expected = self.acceptance.expected(request.id, arm.key(n), min(n, limit))
            known = arm.key(n) in self.acceptance.means
            rows_of = min(float(n), sum(expected.rows)) if known else float(n)
            depth = max(1, round(sum(min(r, 1.0) for r in expected.rows)))
            points.append(Point(n, depth, sum(expected.kept), rows_of))
        return points

    # -- trying what is not chosen ---------------------------------------------------------------------------------

    def _trial(self, drafter: str) -> Trial:
        return self.trials.setdefault(drafter, Trial())

    def _probe(self, requests: Sequence[Request], held: Choice, base: Work) -> tuple[Choice, dict[str, float]] | None:
        """`held` with one request's drafter replaced by one that has not been tried for long, if any is due; and the
        worth of its nodes."""
        if not requests:
            return None
        request = requests[self.step % len(requests)]
        used = {drafter for drafter, _ in held.values()}
        for drafter in request.arms:
            depth = self.limit(request, drafter)
            if drafter in used or self._trial(drafter).due > self.step or depth < 1:
                continue
            arm, sizes = self.arms[drafter], self._sizes(request, drafter, depth)
            if not sizes:
                continue
            size = sizes[min(3, len(sizes) - 1)] if arm.chain else sizes[0]
            point = self._price(request, arm, [size], min(depth, DEPTH))[0]
            choice, price = {**held, request.id: (drafter, point)}, Price(self.times, base)
            given_up = held[request.id][1].tokens if request.id in held else 0.0
            cost = price.of(choice) - price.of(held) + given_up / self._goodput
            if self.lost + cost - point.tokens / self._goodput <= PROBING * self.spent:
                trial = self._trial(drafter)
                self._trying = (request.id, drafter, cost, point.tokens)
                trial.due, trial.gap = self.step + trial.gap, min(2 * trial.gap, LAST_GAP)
                return choice, price.worth(choice, self._goodput)
        return None

    def _tried(self, notes: Sequence[Note]) -> None:
        """Book what the step's try has cost, and repeat it at once when it went better than expected."""
        if self._trying is None:
            return
        request, drafter, cost, tokens = self._trying
        kept = sum(sum(n.kept) for n in notes if n.request == request and n.drafter == drafter)
        self.lost = max(0.0, self.lost + cost - kept / self._goodput)
        if kept > 2 * tokens + 1:
            self.trials[drafter] = Trial(due=self.step, banned=self._trial(drafter).banned)
        self._trying = None

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, notes: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times) -> None:
        """What a step taught."""
        self.step += 1
        self.spent += times.total
        self.parts = parts
        if self.times.seen < KNOWN or self.step % SELDOM == 0 or self._trying:
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
