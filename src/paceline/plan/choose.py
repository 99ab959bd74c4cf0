"""`Goodput`: who drafts how much, by expected committed tokens per second (Liu et al. 2024, SmartSpec: goodput, in its
per-request form). "Draft nothing" is always one of the choices.

All that it reads is known before anything is drawn in the step, so any verifier's rule stays exact (D2). Its own
inputs are the table of costs and the acceptance; equal inputs make equal choices, for it has no clock and no chance.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt

from paceline.core.plan import Item, MinChance, Note, Panel, Work
from paceline.core.registry import Ahead, Runs
from paceline.core.request import Request
from paceline.plan import DrafterFacts, LengthPolicy, Share
from paceline.plan.acceptance import Acceptance, Key
from paceline.plan.allocate import Choice, Pick, Point, Price, best, fitting, gain, prepared
from paceline.plan.cost import Drafting, StepTimes, Times
from paceline.plan.governor import Governor
from paceline.plan.keep import pays, plain, reading

PERIOD, FIRST = 16, 4
"""Steps that a choice holds, one of nobody twice as long; and one that gives work to a drafter who had none."""
TOLD = 5.0
"""Rounds that are known of a drafter before a choice of it holds so long."""
MANY, LONGER, RECENT = 4, 24, 64
"""From so many requests on a choice takes a tenth of a step: it holds longer, and who had work of late is not new."""
KNOWN, SELDOM = 300, 4
"""From so many steps on the table of costs learns from every fourth one: learning costs time, too."""
HEARING = 8
"""Steps after which acceptance hears of them, at the latest."""
PROBING = 0.01
"""Most of the time that may be lost to trying what is not chosen."""
EARLY, CREDIT = 8, 8
"""So many tries of a drafter that nobody knows yet come soon, and the time of so many plain steps may be lost
beforehand."""
FIRST_GAP, LAST_GAP = 4, 24
"""Steps from one try of a drafter to the next: the more it is expected to lose, the more."""
SURPRISE = 0.2
"""A try that pays, and brings so much as was expected of one in five, is repeated at once."""
USELESS = 3
"""Tries in a row that brought less than they cost; and, where they brought nothing, the next ones are of one node,
of a merged drafter (whose first part would take it) of its fewest."""
AGAIN = 32
"""Steps after which it is asked anew whether a drafter's K/V is worth keeping up."""
BANNED = 256
"""Steps that a drafter rests after it has failed; doubled each time."""
LOOKUP, MODEL = 0.3, 0.7
"""Chance of a first draft before anybody has tried: of one that only reads texts, and of a model's."""
CHAIN = (1, 2, 3, 4, 6, 8, 12)
DEPTH = 16
"""Deepest place of a tree that is counted."""
NONE = "none"


@dataclass(frozen=True, slots=True)
class Arm:
    """One drafter as the chooser sees it. `sizes`: numbers of nodes to choose from; a chain's acceptance is one
    distribution at every length, a tree's depends on its size."""

    drafter: str
    sizes: tuple[int, ...]
    chain: bool
    stops_early: bool = False
    """It ends a draft where more does not pay: alone, when rows are cheap, it needs no other size than its largest."""
    always_asked: str | None = None
    """A drafter whose chain is always in it."""
    runs: Runs = False
    """It can draft in steps of several passes, for all requests or for greedy ones."""
    ahead: Ahead = ""
    """What it drafts while the target's pass runs: a `path` has one length, that of the pass."""
    like: str | None = None
    """Whose chains a `path` drafts: those of the same K/V group. What is known of them holds for it, too."""

    @classmethod
    def of(
        cls, drafter: str, nodes: int, chain: bool, stops_early: bool = False, limit: int | None = None,
        always_asked: str | None = None, runs: Runs = False, ahead: Ahead = "", like: str | None = None,
    ) -> "Arm":  # fmt: skip
        """Sizes around a drafter's own number of nodes, none above `limit`."""
        most = max(8, nodes)
        small = [n for n in CHAIN if n < most] if chain else [nodes // 2] if nodes > 1 else []
        sizes = [*small, most if chain else nodes]
        if limit is not None:
            sizes = [*(n for n in sizes if n < limit), limit]
        return cls(drafter, tuple(sizes), chain, stops_early and not chain, always_asked, runs, ahead, like)

    def runs_for(self, requests: Iterable[Request]) -> bool:
        """Can it draft for all of them in steps of several passes?"""
        return self.runs is True or (self.runs == "greedy" and all(r.params.greedy for r in requests))

    def key(self, size: int) -> Key:
        """Where acceptance keeps it."""
        return (self.like or self.drafter, 0 if self.chain else size)


@dataclass(slots=True)
class CurrentChoice:
    """A choice that holds for some steps."""

    picks: dict[int, Pick | None] = field(default_factory=dict)
    """{request id: pick} of those that were there when it was made."""
    usual: Pick | None = None
    """What most of them were given, or its least size."""
    worth: dict[str, MinChance] = field(default_factory=dict)
    panels: tuple[Panel, ...] = ()
    goodput: float = 0.0
    count: int = 0
    """Requests that it was made for."""
    left: int = 0
    """Steps of its kind that it holds on."""

    def pick(self, request: Request) -> Pick | None:
        """Of one who is here; who came since gets what most have, as far as it may."""
        pick, wish = self.picks.get(request.id, self.usual), request.params.max_nodes
        fits = pick is not None and pick[0] in request.arms and (wish is None or pick[1].nodes <= wish)
        return pick if fits else None


@dataclass(slots=True)
class Probe:
    """When an arm that is not chosen is tried."""

    due: int = 0
    last: int = 0
    """Step of the latest try: who has waited longest comes first, so that nobody spends what another saves for."""
    count: int = 0
    """Tries so far: a tree's sizes take turns."""
    wasted: int = 0
    """The latest tries, all of which brought less than they cost."""
    missed: int = 0
    """The latest tries, all of which brought nothing."""
    again: bool = False
    """The latest one went far better than expected: the next comes at once, whatever was spent."""
    banned: int = 0
    """Length of its last rest, after a failure; 0: it has never failed."""
    chosen: int = -RECENT
    """Step up to which it was last in a choice."""


@dataclass(slots=True)
class Goodput(LengthPolicy):
    """`arms` {drafter: arm}; `limit(request, drafter)`: how deep its draft may be."""

    arms: dict[str, Arm]
    times: StepTimes
    limit: Callable[[Request, str], int]
    acceptance: Acceptance = field(default_factory=Acceptance)
    step: int = 0
    """Passes of the target so far."""
    patience: float = 0.0
    """Seconds that a step of more than one pass may take."""
    spent: float = 0.0
    """Seconds of all steps."""
    lost: float = 0.0
    """Seconds that tries were expected to cost: what one that went well has brought another drafter might have, too."""
    parts: Sequence[Drafting] = ()
    """Of the latest step."""
    trials: dict[str, Probe] = field(default_factory=dict)
    chains: dict[str, list[str]] = field(default_factory=dict)
    """{K/V group: who drafts chains with it}"""
    governor: Governor = field(init=False)
    _work: Work = field(default_factory=lambda: Work(1, 1, 0, 0, 1))
    """The latest step's pass without nodes."""
    _keys: dict[int, str] = field(default_factory=dict)
    """{request id: its key}, of those that draw a token in the latest step."""
    _straight: bool = False
    """May the latest step have several passes?"""
    _unheard: list[Note] = field(default_factory=list)
    """Of the latest steps."""
    _plain: CurrentChoice = field(default_factory=CurrentChoice)
    """For steps of decoding requests alone."""
    _filling: CurrentChoice = field(default_factory=CurrentChoice)
    """For steps that prompts share, when there is more than one in a row."""
    _now: CurrentChoice = field(default_factory=CurrentChoice)
    """Which of them is for the latest step."""
    _filled: int = -2
    """The latest step that prompts shared."""
    _asked: int = -1
    """The latest step that was decided. Requests whose prompts end in it are asked for after the others."""
    _saving: int = 0
    """Step before which nothing can be afforded."""
    company: int = 0
    _gains: dict[int, tuple[int, dict[str, float]]] = field(default_factory=dict)
    """{requests: step in which it was found, {drafter: speed at its best size, over plain decoding's, with so many}}"""
    _groups: dict[str, str] = field(default_factory=dict)
    """{drafter: its K/V group}"""
    _trying: tuple[int, str, float, Point, float] | None = None
    """The try of this step: request, drafter, seconds that a pass of it costs, what is expected of it, and goodput."""

    def __post_init__(self) -> None:
        self.governor = Governor(self.times)

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> dict[int, Share]:
        """The choice for this step, clipped to what each request has left."""
        if not requests:
            return {}
        self.governor.times, self.governor.patience = self.times, self.patience
        first, self._asked = self._asked < self.step, self.step
        if first:
            self._keys, self._work = {}, base
            self._straight = base.rows == len(requests) and all(r.judge_free for r in requests)
        self._keys.update((r.id, r.key) for r in requests)
        if self.governor.due() or self.governor.stops():
            return {r.id: Share(NONE, 0, 0) for r in requests}
        requests_of = requests
        requests = [r for r in requests_of if not self.governor.stops(r.key)]
        if not requests:
            return {r.id: Share(NONE, 0, 0) for r in requests_of}
        if first:
            filling, alone = base.rows > base.requests, self._filled < self.step - 1
            if filling:
                self._filled = self.step
            self._now = self._filling if filling else self._plain
            if filling and alone and self._fits(self._plain, requests, base):
                self._now = self._plain
            elif not self._fits(self._now, requests, base):
                self._decide(self._now, requests, spare, base)
            self._now.left -= 1
        now = self._now
        tried, worth, deep = self._probe(now, requests, base) or ({}, now.worth, 0)
        shares: dict[int, Share] = {}
        for request in requests:
            pick = tried.get(request.id) or now.pick(request)
            depth = self.limit(request, pick[0]) if pick else 0
            depth = min(depth, deep) if request.id in tried else depth
            if pick is None or not depth:
                shares[request.id] = Share(NONE, 0, depth)
                continue
            drafter, point = pick
            nodes = min(point.nodes, spare)
            spare -= nodes
            whole = not now.panels or request.id in tried  # who is tried is not cut
            chances = () if whole or point.law is None else point.law.per_row()
            shares[request.id] = Share(drafter if nodes else NONE, nodes, depth, worth.get(drafter), chances)
        return {r.id: Share(NONE, 0, 0) for r in requests_of} | shares

    def panels(self, base: Work) -> tuple[Panel, ...]:
        """Of the step that was just shared out."""
        return self._now.panels

    def passes(self, items: Sequence[Item], base: Work) -> int:
        """As many as `patience` allows, if who drafts can do so in a run: the rest of a step is then paid for once. Not
        where drafts may be cut."""
        drafting = [item for item in items if item.nodes]
        names, nodes = {item.drafter for item in drafting}, sum(item.nodes for item in drafting)
        whose = [item.request for item in drafting]
        runs = len(names) < 2 and all(name in self.arms and self.arms[name].runs_for(whose) for name in names)
        if not runs or any(panel.rows < base.rows + nodes for panel in self._now.panels):
            return 1
        points = [
            self._price(i.request, self.arms[i.drafter], [i.nodes], min(i.depth, DEPTH), len(drafting))[0]
            for i in drafting
        ]
        rows, deep = round(sum(point.rows for point in points)), max((point.depth for point in points), default=0)
        parts = [Drafting(name, len(drafting), deep, rows, 1) for name in names]
        return fitting(self.patience, self.times.of_target(base.more(rows)) + sum(map(self.times.of_draft, parts)))

    # -- the choice ------------------------------------------------------------------------------------------------

    def _fits(self, now: CurrentChoice, requests: Sequence[Request], base: Work) -> bool:
        """Does a choice still hold? Not when half of the requests came or went, or half are others: who has just come
        beside prompts, of whom nothing is known, may have what most have."""
        alike = now is self._filling
        new = sum(r.id not in now.picks and not (alike and r.id not in self.acceptance.own) for r in requests)
        return now.left > 0 and 2 * abs(base.requests - now.count) <= now.count and 2 * new <= len(requests)

    def best(self, requests: Sequence[Request], spare: int, base: Work) -> tuple[Choice, float]:
        """The choice of most goodput, and that goodput."""
        return best({r.id: self._points(r, base.requests) for r in requests}, spare, self._prices(requests, base))

    def _prices(self, requests: Sequence[Request], base: Work) -> Price:
        straight = base.rows == len(requests) and all(r.judge_free for r in requests)
        runs = {name for name, arm in self.arms.items() if arm.runs_for(requests)}
        return Price(self.times, base, self.patience if straight else 0.0, runs)

    def _decide(self, now: CurrentChoice, requests: Sequence[Request], spare: int, base: Work) -> None:
        """Choose anew."""
        self._hear()
        choice, now.goodput = self.best(requests, spare, base)
        price = self._prices(requests, base)
        now.worth, now.panels = price.worth(choice, now.goodput), price.panels(choice, now.goodput)
        now.picks = {r.id: choice.get(r.id) for r in requests}
        used = Counter(drafter for drafter, _ in choice.values())
        period, recent = (LONGER, RECENT) if base.requests >= MANY else (PERIOD, 1)
        fresh = any(self.step - self._trial(drafter).chosen >= recent for drafter in used)
        fresh |= any(self.acceptance.told(self.arms[name].key(at.nodes)) < TOLD for name, at in choice.values())
        now.count, now.left = base.requests, FIRST if fresh else period if used else 2 * period
        drafter, count = used.most_common(1)[0] if used else (NONE, 0)
        least = [pick for pick in choice.values() if pick[0] == drafter]
        now.usual = min(least, key=lambda pick: pick[1].nodes) if 2 * count > len(requests) else None
        for drafter in used:
            trial, end = self._trial(drafter), self.step + now.left
            self.trials[drafter] = Probe(end, trial.last, trial.count, banned=trial.banned, chosen=end)

    def _points(self, request: Request, count: int) -> dict[str, list[Point]]:
        """What each drafter could be given for a request, the fewest nodes first."""
        out: dict[str, list[Point]] = {}
        for drafter in request.arms:
            trial, depth = self._trial(drafter), self.limit(request, drafter)
            if not (trial.banned and trial.due > self.step) and (sizes := self._sizes(request, drafter, depth, count)):
                out[drafter] = self._price(request, self.arms[drafter], sizes, min(depth, DEPTH), count)
        return out

    def _sizes(self, request: Request, drafter: str, depth: int, count: int) -> list[int]:
        """Those that a request, one of `count`, could be given."""
        arm, wish = self.arms[drafter], request.params.max_nodes
        if arm.ahead == "path" and wish is None:
            most = min(depth, arm.sizes[-1], self.times.window(drafter, self._base(request, count)))
            return [most] if most else []
        most = min(depth if arm.chain else depth * 64, arm.sizes[-1] if wish is None else wish)
        fitting = [n for n in arm.sizes if n <= most] or ([most] if most else [])
        return fitting[-1:] if arm.stops_early and count == 1 else fitting

    @staticmethod
    def _base(request: Request, count: int) -> Work:
        """The pass of so many requests like this one."""
        return Work.of([(1, request.length, 1)] * count)

    def _price(self, request: Request, arm: Arm, sizes: Sequence[int], limit: int, count: int) -> list[Point]:
        """Expected depth, tokens and rows of each size, for one of `count` requests."""
        if arm.chain:
            more = arm.ahead == "path"  # the token behind the draft
            expected = self.acceptance.expected(request.id, arm.key(0), min(sizes[-1], limit) + more)
            points, done, deep, tokens, rows = list[Point](), 0, 0, 0.0, 0.0
            for n in sizes:
                for d in range(done, min(n, limit)):
                    tokens += expected.kept[d]
                    rows += expected.rows[d]
                    deep += expected.rows[d] * count >= 0.5  # of all, the deepest
                done = min(n, limit)
                if arm.ahead == "path":
                    tokens *= prepared(expected.kept, done)
                points.append(Point(n, n + 1 if arm.ahead else deep or 1, tokens, rows, expected))
            return points
        points, part = [], None
        if arm.always_asked in self.arms and (key := self.arms[arm.always_asked].key(0)) in self.acceptance.means:
            part = self.acceptance.expected(request.id, key, min(sizes[-1], limit))
        for n in sizes:
            tried = [size for size in arm.sizes if arm.key(size) in self.acceptance.means]
            near = arm.key(min(tried, key=lambda size: abs(size - n), default=n))
            expected = self.acceptance.expected(request.id, near, min(n, limit))
            if part is not None:
                expected = expected.beside(part)
            rows_of = min(float(n), sum(expected.rows)) if tried else float(n)
            points.append(Point(n, 0, sum(expected.kept), rows_of, expected))
        return points

    # -- trying what is not chosen ---------------------------------------------------------------------------------

    def _trial(self, drafter: str) -> Probe:
        trial = self.trials.get(drafter)
        if trial is None:
            trial = self.trials[drafter] = Probe()
        return trial

    def _probe(
        self, now: CurrentChoice, requests: Sequence[Request], base: Work
    ) -> tuple[Choice, dict[str, MinChance], int] | None:
        """One request's pick that has not been tried for long, if any is due; the worth of everybody's nodes; and how
        deep the try goes."""
        if self.step < self._saving:
            return None
        request = requests[self.step % len(requests)]
        due = [drafter for drafter in request.arms if self._trial(drafter).due <= self.step]
        held = {r.id: pick for r in requests if (pick := now.pick(r))} if due else {}
        used = {drafter for drafter, _ in held.values()}
        depths = {drafter: self.limit(request, drafter) for drafter in due if drafter not in used}
        idle = {
            drafter: sizes
            for drafter, depth in depths.items()
            if (sizes := self._sizes(request, drafter, depth, base.requests))
        }
        if not idle:
            return None
        drafter = min(idle, key=lambda name: self.trials[name].last)
        arm, sizes, trial = self.arms[drafter], idle[drafter], self.trials[drafter]
        place = min(3, len(sizes) - 1) if arm.chain else trial.count % len(sizes)
        nodes, deep = sizes[place], min(depths[drafter], DEPTH)
        if trial.missed >= USELESS:
            nodes, deep = sizes[0] if arm.always_asked in self.arms else 1, 1
        point = self._price(request, arm, [nodes], deep, base.requests)[0]
        choice, price = {**held, request.id: (drafter, point)}, self._prices(requests, base)
        given_up = held[request.id][1].tokens if request.id in held else 0.0
        usual = price.of(held)
        cost = price.of(choice) - usual + given_up / now.goodput
        loss = cost - point.tokens / now.goodput
        credit = CREDIT * price.rows(0) / sqrt(base.requests)  # of many it is one in so many who tries
        wait = ((self.lost + loss - credit) / PROBING - self.spent) / usual
        if wait > 0.0 and not trial.again:
            self._saving = self.step + min(2 * PERIOD, ceil(wait))
            return None
        self._trying = (request.id, drafter, cost, point, now.goodput)
        gap = min(LAST_GAP if trial.count >= EARLY else FIRST_GAP, loss / (PROBING * usual) * len(request.arms))
        trial.last, trial.due = self.step, self.step + round(max(FIRST_GAP, gap))
        trial.count += 1
        deep = depths[drafter] if arm.chain else deep  # a chain is as deep as it is long
        return {request.id: choice[request.id]}, price.worth(choice, now.goodput), deep

    def _longer(self, parts: Sequence[Drafting], times: Times) -> float:
        """Seconds that the drafter of this step's try took beyond those expected of it."""
        if self._trying is None:
            return 0.0
        part = next((part for part in parts if part.drafter == self._trying[1]), None)
        return 0.0 if part is None else max(0.0, times.drafts.get(part.drafter, 0.0) - self.times.of_draft(part))

    def _tried(self, notes: Sequence[Note], passes: int, longer: float) -> None:
        """Book what the step's try has cost, and repeat it at once when it went far better than expected."""
        if self._trying is None:
            return
        request, drafter, cost, point, goodput = self._trying
        each = [sum(n.kept) for n in notes if n.request == request and n.drafter == drafter]
        kept, best, cost = sum(each), max(each, default=0), passes * cost + longer
        trial = self._trial(drafter)
        surprise = point.law is None or min(point.law.kept[:best], default=1.0) < SURPRISE
        trial.again = surprise and kept >= cost * goodput
        if not trial.again:
            self.lost = max(0.0, self.lost + cost - passes * point.tokens / goodput)
        trial.wasted = trial.wasted + 1 if kept < cost * goodput else 0
        trial.missed = 0 if kept else trial.missed + 1
        if trial.again:
            trial.due = trial.last = self._saving = 0
        self._trying = None

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, notes: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times) -> None:
        """What a step taught."""
        before, self.step = self.step, self.step + work.passes
        self._now.left -= work.passes - 1
        self.spent += times.total
        self._account(notes, work, parts, times)
        self.parts, longer = parts, self._longer(parts, times)
        if self.times.seen < KNOWN or self.step // SELDOM > before // SELDOM or self._trying:
            self.times.observe(work, parts, times)
        self._tried(notes, work.passes, longer)
        self._unheard += notes
        if self.step // HEARING > before // HEARING:
            self._hear()

    def _account(self, notes: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times) -> None:
        """Book the step with the governor."""
        if self._asked != self.step - work.passes or self._work.rows > self._work.requests:
            n, nodes = self._work.requests, sum(part.nodes for part in parts)
            of_nodes = self.times.of_target(work) - self.times.of_target(replace(work, rows=max(1, work.rows - nodes)))
            more = sum(sum(note.kept) for note in notes if not note.part)
            price = self.governor.pass_seconds(max(n, 1), self._work.context) / max(n, 1)
            self.governor.shared(times.total, sum(times.drafts.values()) + max(0.0, of_nodes) - more * price)
        elif not parts:
            self.governor.rested(work, times)
        else:
            got: dict[str, tuple[int, int]] = {}
            seen = set[int]()
            for note in notes:
                if not note.part:
                    key = self._keys.get(note.request, "")
                    mine, tokens = got.get(key, (0, 0))
                    got[key] = mine + (note.request not in seen), tokens + 1 + sum(note.kept)
                    seen.add(note.request)
            self.governor.drafted(work, times.total, got, self._straight)

    def _hear(self) -> None:
        """What the latest steps say of acceptance: many at once take half of the time."""
        found = self.acceptance.changes + self.acceptance.unlike
        for note in self._unheard:
            arm, depth = self.arms.get(note.drafter), min(note.nodes, note.depth, DEPTH)
            if arm is not None and arm.ahead == "path":  # nothing prepared says nothing of the draft
                depth = min(depth, len(note.offered))
            if arm is not None and depth:
                self.acceptance.observe(note.request, arm.key(note.nodes), depth, note.offered, note.kept)
            if note.part and not (trial := self._trial(note.drafter)).banned:  # as good as tried
                trial.due = self.step + LAST_GAP
        self._unheard.clear()
        if self.acceptance.changes + self.acceptance.unlike > found:
            self._plain.left = self._filling.left = 0

    @property
    def count(self) -> int:
        return max(self._plain.count, self._filling.count)

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        f, like = facts, None
        if f.group is not None:
            self._groups[drafter] = f.group
        if f.ahead == "path" and f.group is not None:
            like = next(reversed(self.chains.get(f.group, [])), None)
        elif f.chain and f.group is not None and not f.ahead:
            self.chains.setdefault(f.group, []).append(drafter)
        self.arms[drafter] = Arm.of(
            drafter, f.nodes, f.chain, f.stops_early, f.most, f.always_asked, f.runs, f.ahead, like
        )
        if f.ahead:
            self.times.beside.setdefault(drafter, 0.0)
        if f.group is not None or not f.taps:
            self.acceptance.priors[drafter] = LOOKUP if f.group is None else MODEL

    def seconds(self, work: Work) -> float:
        """Of a step whose pass is this work and that drafts as the latest did."""
        return self.times.predict(work, self.parts)

    def idle(self, drafter: str) -> bool:
        """Nobody is given this drafter, and what was tried of it failed, again and again."""
        held = (pick for now in (self._plain, self._filling) for pick in now.picks.values())
        return self._trial(drafter).wasted >= USELESS and all(pick is None or pick[0] != drafter for pick in held)

    def attend(self, requests: Sequence[Request]) -> None:
        self.company = len(requests)
        if self.company < (1 if self.times.measured else MANY):  # of few only what was measured is believed
            return
        names = {name for arms in {r.arms for r in requests} for name in arms if name in self.arms}
        found = self._gains.get(self.company)
        if found is None or self.step - found[0] >= AGAIN or not names <= found[1].keys():
            like = {name: next(r for r in requests if name in r.arms) for name in sorted(names)}
            self._gains[self.company] = self.step, {name: self._gain(name, r) for name, r in like.items()}

    def hopeless(self, drafter: str, request: Request, rows: int) -> bool:
        _, gains = self._gains.get(self.company, (0, {}))
        chains = self.chains.get(self._groups.get(drafter, ""), ())
        return drafter in gains and not pays(self.times, chains, self.company, rows, request.left, gains[drafter])

    def affords(self, group: str, rows: int) -> bool:
        bound = plain(self.times, self.company, rows) + PROBING * self.spent
        return reading(self.times, self.chains.get(group, ()), rows) <= bound

    def _gain(self, drafter: str, request: Request) -> float:
        """Of so many at once who are like this one, at what is known of the drafter."""
        arm = self.arms[drafter]
        price = Price(self.times, Work.of([(1, len(request.tokens), 1)] * self.company))
        points = self._price(request, arm, arm.sizes, min(arm.sizes[-1], DEPTH), self.company)
        return gain(price, drafter, points, self.company)

    def failed(self, drafter: str) -> None:
        """A drafter raised: it rests, longer each time."""
        trial = self._trial(drafter)
        trial.banned = max(BANNED, 2 * trial.banned)
        trial.due = self.step + trial.banned
        self._plain.left = self._filling.left = 0

    def drop(self, request: Request) -> None:
        """A request has ended."""
        self._hear()
        self.acceptance.drop(request.id)
