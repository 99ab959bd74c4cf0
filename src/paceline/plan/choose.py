"""`Goodput`: who drafts how much, by expected committed tokens per second (Liu et al. 2024, SmartSpec: goodput, in its
per-request form). To draft nothing is always one of the choices.

All that it reads is known before anything is drawn in the step, so any verifier's rule stays exact (D2). It has no
clock and no chance: equal inputs make equal decisions.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.plan import MinChance, Note, Work, straight
from paceline.core.request import Request
from paceline.plan import NONE, POLICIES, Account, Basis, Chooses, DrafterFacts, LengthPolicy, Share, StepDecision
from paceline.plan.allocate import MARGIN, Choice, Pick, Point, Price, best
from paceline.plan.arm import Arm
from paceline.plan.belief import DEPTH, HALF_LIFE, LOOKUP, MODEL, Beliefs
from paceline.plan.cost import FLOOR, YOUNG, Drafting, StepTimes, Times
from paceline.plan.fixed import FixedLength, chains
from paceline.plan.governor import Governor

HOLD = 16
"""Passes of the target that a choice holds, and the answer to what keeping K/V up is worth."""


@dataclass(slots=True)
class HeldChoice:
    """A choice that holds for some steps."""

    picks: dict[int, Pick | None] = field(default_factory=dict)
    """{request id: pick} of the requests that were there when the choice was made."""
    usual: Pick | None = None
    """The drafter that most of these requests got, with the fewest nodes among them."""
    worth: dict[str, MinChance] = field(default_factory=dict)
    goodput: float = 0.0
    count: int = 0
    """Number of requests when the choice was made."""
    left: int = 0
    """Steps for which the choice still holds."""
    why: tuple[str, ...] = ()

    def pick(self, request: Request) -> Pick | None:
        """The pick of a request. One that came since gets what most have, as far as it may."""
        pick, wish = self.picks.get(request.id, self.usual), request.params.max_nodes
        fits = pick is not None and pick[0] in request.arms and (wish is None or pick[1].nodes <= wish)
        return pick if fits else None

    def fits(self, requests: Sequence[Request]) -> bool:
        """Does it still hold? Not when half of the requests came or went, or half are others."""
        new = sum(r.id not in self.picks for r in requests)
        return self.left > 0 and 2 * abs(len(requests) - self.count) <= self.count and 2 * new <= len(requests)


MOST_ASKED = 0.6
"""Most tokens that a row, or a pass of the draft model, has to bring where a user named the drafter: a user who names
one wants drafts."""


@dataclass(slots=True)
class Goodput(LengthPolicy):
    """`limit(request, drafter)`: how deep its draft may be. `fixed` serves requests that name their drafter."""

    times: StepTimes
    limit: Callable[[Request, str], int]
    fixed: FixedLength = field(default_factory=lambda: FixedLength(lambda request, drafter: request.left - 1))
    patience: float = 0.0
    """Seconds that a step of more than one pass may take."""
    live: Callable[[], int] = lambda: 0
    """Requests that decode or whose prompts are being read (`Basis.live`)."""
    arms: dict[str, Arm] = field(default_factory=dict)
    beliefs: Beliefs = field(default_factory=Beliefs)
    governor: Governor = field(init=False)
    held: dict[bool, HeldChoice] = field(default_factory=lambda: {True: HeldChoice(), False: HeldChoice()})
    """The choice for steps that prompts share, and that for others."""
    step: int = 0
    """Passes of the target so far."""
    resting: dict[str, int] = field(default_factory=dict)
    """{drafter that has failed: step at which its rest ends}"""
    trying: bool = False
    """Does a request of this step try a drafter that is not chosen?"""
    _gains: dict[int, tuple[int, dict[str, tuple[float, float]]]] = field(default_factory=dict)
    """{requests: (step, `StepDecision.gain`)}"""
    _look: int = YOUNG
    """The step from which a try is looked for."""
    _decided: int = -1
    """The step that was decided last."""
    _base: Work = field(default_factory=lambda: Work(1, 1, 0, 0, 1))
    _keys: dict[int, str] = field(default_factory=dict)
    """{request: its key}, of the step that was decided last, but for those that named their drafter."""
    _straight: bool = False
    _asked: HeldChoice = field(default_factory=HeldChoice)
    """What users named."""

    def __post_init__(self) -> None:
        self.governor = Governor(self.times)

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        self.fixed.enrol(drafter, facts)
        if facts.failures:
            self.resting[drafter] = self.step + round(HALF_LIFE) * facts.failures
            self._reconsider()
            return
        like = chains(self.fixed.facts, facts.group) if facts.chain and facts.ahead == "path" else []
        self.arms[drafter] = Arm.of(drafter, facts, like[-1] if like else None)
        if facts.ahead:
            self.times.beside.setdefault(drafter, 0.0)
        prior = LOOKUP if facts.group is None and not facts.taps else MODEL
        self.beliefs.enrol(drafter, prior, facts.stops_early and facts.chain)

    # -- a step --------------------------------------------------------------------------------------------------------

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        self.governor.patience = self.patience
        for request in requests:
            self.beliefs.enter(request.id, request.extra_key)
        free = [r for r in requests if r.arms]
        explorer = min((r.id for r in free), default=-1)
        decision = StepDecision(gain=self._gain(free), room=self.governor.room(reads=True), explorer=explorer)
        if self.governor.stops():  # nor is K/V kept up
            decision.gain = dict.fromkeys(decision.gain, (0.0, 0.0))
        decision.shares = {r.id: Share(NONE if r.arms else r.drafter, 0, 0) for r in requests}  # nobody drafts
        if not requests or room <= 0:
            decision.passes = self._passes(requests, decision, base) if requests else 1
            if not requests:
                self._decided = -1  # a step of prompts alone teaches nothing about plain decoding
                return decision
        first, self._decided = self._decided < self.step, self.step
        self._keys, self._base, self.trying = {r.id: r.key for r in free}, base, False
        self._straight = base.rows == len(requests) and straight(requests)
        if room <= 0:
            return decision
        if free and (self.governor.blind or (base.rows == base.requests and self.governor.due())):
            decision.passes = self._passes(requests, decision, base)
            decision.why = ("a plain step, to measure what one takes",)
            return decision
        named = [r for r in requests if not r.arms]
        shares = self.fixed.shares(named, room, base) if named else {}
        if free:
            used = sum(share.nodes for share in shares.values())
            whole = replace(base, rows=base.rows + used) if used else base
            shares.update(self._choose(free, room - used, whole, first, decision))
        decision.shares = shares
        if named:
            decision.why = (*decision.why, *self._obeyed(named, shares, base, first))
        decision.passes = self._passes(requests, decision, base)
        return decision

    def _obeyed(
        self, requests: Sequence[Request], shares: dict[int, Share], base: Work, first: bool
    ) -> tuple[str, ...]:
        """Set what the nodes of drafters that users named have to bring, if that was measured. Why: what they cost."""
        now, choice = self._asked, self._given(requests, shares, base.requests)
        asked = [r for r in requests if r.id in choice]
        if not now.fits(asked):
            price = self._price(requests, base)
            tokens = base.requests + sum(point.tokens for _, point in choice.values())
            goodput = max(base.requests / max(price.of({}), FLOOR), tokens / max(price.of(choice), FLOOR))
            worth = price.worth(choice, goodput, self._mates) if self.times.measured else {}
            now.worth = {
                name: replace(it, row=min(MOST_ASKED, it.row), level=min(MOST_ASKED, it.level))
                for name, it in worth.items()
            }
            names = sorted({drafter for drafter, _ in choice.values()})
            now.why = tuple(f"asked for: {self._reason(name, choice, requests, price, True)}" for name in names)
            now.picks, now.count, now.left = dict(choice), len(choice), HOLD
        now.left -= first
        for r in requests:
            if r.params.max_nodes is None:
                shares[r.id] = shares[r.id]._replace(min_chance=now.worth.get(r.drafter))
        return now.why

    def _given(self, requests: Sequence[Request], shares: Mapping[int, Share], count: int) -> Choice:
        """Shares as a choice, for `count` requests."""
        return {
            r.id: (it.drafter, self._points(r, it.drafter, [it.nodes], min(it.depth, DEPTH), count)[0])
            for r in requests
            if (it := shares[r.id]).nodes and it.depth and it.drafter in self.arms
        }

    def _choose(
        self, requests: Sequence[Request], room: int, base: Work, first: bool, decision: StepDecision
    ) -> dict[int, Share]:
        """The choice for this step, clipped to what each request has left."""
        none = {r.id: Share(NONE, 0, 0) for r in requests}
        open_ = [r for r in requests if not self.governor.stops(r.key)]
        if not open_:
            decision.why = ("plain: speculation has lost more time than it may",)
            self._reconsider()
            return none
        now = self.held[base.rows > base.requests]
        if not now.fits(open_):
            self._decide(now, open_, room, base)
        now.left -= first
        tried = self._try(now, open_, base) if first else None
        decision.why = now.why
        worth = now.worth
        if tried is not None:
            picks, worth, why = tried
            decision.why = (*now.why, why)
        shares: dict[int, Share] = {}
        for request in open_:
            trying = tried is not None and request.id in picks
            pick = picks[request.id] if trying else now.pick(request)
            depth = self.limit(request, pick[0]) if pick else 0
            if pick is None or not depth:
                shares[request.id] = Share(NONE, 0, depth)
                continue
            drafter, point = pick
            nodes = min(point.nodes, room)
            room -= nodes
            shares[request.id] = Share(drafter if nodes else NONE, nodes, depth, worth.get(drafter))
        return none | shares

    def _passes(self, requests: Sequence[Request], decision: StepDecision, base: Work) -> int:
        """As many as `patience` allows, if who drafts can do so in a run: the rest of a step is then paid for once. Few
        where a plain step is measured while drafts run; one where a drafter was never timed."""
        drafting = [r for r in requests if decision.shares[r.id].nodes]
        choice = self._given(drafting, decision.shares, len(drafting))
        if not self._straight or len(choice) < len(drafting):
            return 1
        timed = {name for name in self.times.drafts if self._runs(name, drafting)}
        price = Price(self.times, base, self.patience, timed)
        passes = price.passes(*price.parts(choice))
        return min(2, passes) if self.governor.due() and not drafting else passes

    def _runs(self, drafter: str, requests: Sequence[Request]) -> bool:
        return drafter in self.arms and self.arms[drafter].runs_for(requests)

    # -- the choice ----------------------------------------------------------------------------------------------------

    def best(self, requests: Sequence[Request], room: int, base: Work, alike: bool = False) -> tuple[Choice, float]:
        """The choice of most goodput, and that goodput. `alike`: all requests are like the first."""
        same = self._all(requests[0], base) if alike else {}
        points = {r.id: same if alike else self._all(r, base) for r in requests}
        return best(points, room, self._price(requests, base))

    def _price(self, requests: Sequence[Request], base: Work, hopeful: bool = False) -> Price:
        patience = self.patience if base.rows == len(requests) and straight(requests) else 0.0
        runs = {name for name in self.arms if self._runs(name, requests)}
        return Price(self.times, base, patience, runs, hopeful)

    @property
    def _mates(self) -> dict[str, list[str]]:
        facts = self.fixed.facts
        return {name: chains(facts, it.facts.group) for name, it in self.arms.items() if not it.facts.chain}

    def _decide(self, now: HeldChoice, requests: Sequence[Request], room: int, base: Work) -> None:
        """Choose again."""
        choice, now.goodput = self.best(requests, room, base)
        price = self._price(requests, base)
        now.worth = price.worth(choice, now.goodput, self._mates)
        now.picks = {r.id: choice.get(r.id) for r in requests}
        used = Counter(drafter for drafter, _ in choice.values())
        young = any(
            self.beliefs.known_to(i).belief(self.arms[name].key(at.nodes)).known(self.step) < YOUNG
            for i, (name, at) in choice.items()
        )
        now.count, now.left = base.requests, YOUNG if young else HOLD
        drafter, count = used.most_common(1)[0] if used else (NONE, 0)
        least = [pick for pick in choice.values() if pick[0] == drafter]
        now.usual = min(least, key=lambda pick: pick[1].nodes) if 2 * count > len(requests) else None
        now.why = tuple(self._reason(name, choice, requests, price) for name in used)

    def _reason(
        self, drafter: str, choice: Choice, requests: Sequence[Request], price: Price, named: bool = False
    ) -> str:
        """What this drafter's part of a choice costs and brings."""
        mine = [(r, choice[r.id][1]) for r in requests if r.id in choice and choice[r.id][0] == drafter]
        nodes = round(sum(point.nodes for _, point in mine) / len(mine))
        low, high = (
            sum(self._points(r, drafter, [p.nodes], DEPTH, len(requests), bound)[0].tokens for r, p in mine)
            for bound in (-1, 1)
        )
        tokens = [x / len(mine) for x in (low, sum(p.tokens for _, p in mine), high)]
        seconds, plain = price.of(choice), max(price.of({}), FLOOR)
        words = reason("draft", drafter, nodes, len(mine), tokens, seconds, plain)
        if not self.times.seen:
            words += " (nothing is timed yet)"
        more = seconds / (1.0 + tokens[1]) / plain - 1.0
        return f"{words}; it takes {more:.0%} more time for each token" if named and more > 0.0 else words

    def _all(self, request: Request, base: Work, bound: int = 0, names: Sequence[str] = ()) -> dict[str, list[Point]]:
        """What each drafter could be given for a request, the fewest nodes first."""
        out: dict[str, list[Point]] = {}
        for drafter in names or request.arms:
            depth = self.limit(request, drafter)
            if depth and self.resting.get(drafter, 0) <= self.step and drafter in self.arms:
                arm = self.arms[drafter]
                window = (
                    self.times.window(drafter, Work.of([(1, request.length, 1)] * base.requests)) if arm.path else 0
                )
                if sizes := arm.sizes_for(request, depth, base.requests, window):
                    out[drafter] = self._points(request, drafter, sizes, min(depth, DEPTH), base.requests, bound)
        return out

    def _points(
        self, request: Request, drafter: str, sizes: Sequence[int], limit: int, count: int, bound: int = 0
    ) -> list[Point]:
        arm = self.arms[drafter]
        part = self.arms.get(arm.facts.always_asked or "")
        key = None if part is None else part.key(0)
        return arm.points(self.beliefs.known_to(request.id), request.id, sizes, limit, count, bound=bound, part=key)

    # -- bets on what is not chosen ------------------------------------------------------------------------------------

    def _try(
        self, now: HeldChoice, requests: Sequence[Request], base: Work
    ) -> tuple[Choice, dict[str, MinChance], str] | None:
        """One request's bet on a drafter that is not in the choice: the one that would be best for all at its upper
        bound, if that is better than the choice and the governor pays for what the try is expected to lose."""
        if self.step < self._look:
            return None
        self._look = self.step + YOUNG
        request = requests[self.step // YOUNG % len(requests)]
        held = {r.id: pick for r in requests if (pick := now.pick(r))}
        used = {drafter for drafter, _ in held.values()}
        others = [name for name in request.arms if name not in used]
        if not others:
            return None
        price, given_up = self._price(requests, base, True), held[request.id][1].tokens if request.id in held else 0.0
        most, found = now.goodput, None
        for drafter, points in self._all(request, base, 1, others).items():
            for point in points:
                all_ = price.of({r.id: (drafter, point) for r in requests})
                if len(requests) * (1.0 + point.tokens) / all_ > most:
                    most, found = len(requests) * (1.0 + point.tokens) / all_, (drafter, point)
        if found is None:
            return None
        drafter, hoped = found
        usual, seconds = price.of(held), price.of({**held, request.id: (drafter, hoped)})
        point = self._points(request, drafter, [hoped.nodes], DEPTH, base.requests)[0]
        usual -= given_up / now.goodput
        loss = seconds - usual - point.tokens / now.goodput
        if max(0.0, loss) > self.governor.room():
            return None
        choice: Choice = {**held, request.id: (drafter, point)}
        self.trying = True
        words = reason("try", drafter, point.nodes, 1, (0.0, point.tokens, hoped.tokens), seconds, price.of({}))
        return {request.id: choice[request.id]}, price.worth(choice, now.goodput, self._mates), words

    def _gain(self, requests: Sequence[Request]) -> dict[str, tuple[float, float]]:
        """For each K/V group, the seconds that its best drafter saves for each token of one of these requests, as
        expected and at its upper bound. They are priced together with those whose prompts are still being read."""
        n = max(len(requests), self.live())
        found = self._gains.get(n)
        requests = [*requests, *list(requests[:1]) * (n - len(requests))]
        if not requests or (found is not None and self.step - found[0] < HOLD):
            return found[1] if found else {}
        out: dict[str, tuple[float, float]] = {}
        base = Work.of([(1, len(requests[0].tokens), 1)] * n)
        prices = self._price(requests, base), self._price(requests, base, True)
        for drafter in sorted({name for arms in {r.arms for r in requests} for name in arms if name in self.arms}):
            arm = self.arms[drafter]
            if arm.facts.group is None:
                continue
            like = next(r for r in requests if drafter in r.arms)
            saved = []
            for bound, price in enumerate(prices):
                points = self._points(like, drafter, arm.sizes, DEPTH, n, bound)
                took = [price.of(dict.fromkeys(range(n), (drafter, point))) for point in points]
                each = min(seconds / (1.0 + point.tokens) for seconds, point in zip(took, points))
                saved.append((price.of({}) / (1.0 if bound else MARGIN) - each) / n)
            if drafter not in self.times.drafts:  # what it costs is not known: one request finds out
                saved[0] = 0.0
            best_of = out.get(arm.facts.group, (0.0, 0.0))
            out[arm.facts.group] = max(best_of[0], saved[0]), max(best_of[1], saved[1])
        self._gains[n] = self.step, out
        return out

    def _reconsider(self) -> None:
        """Drop the choices that hold, so that the next step chooses again."""
        for now in self.held.values():
            now.left = 0
        self._gains.clear()

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn(self, notes: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times) -> Account:
        before, self.step = self.step, self.step + work.passes
        self.beliefs.now = self.step
        self.held[self._base.rows > self._base.requests].left -= work.passes - 1
        waited = self.governor.waited(times.total, self.times.predict(work, parts)) if parts else 0.0
        self._account(before, notes, work, parts, times, waited)
        if self.trying:
            self._look = self.step + YOUNG * work.passes
        self.times.observe(work, parts, times)
        for note in notes:
            arm, depth = self.arms.get(note.drafter), min(note.nodes, note.depth, DEPTH)
            if arm is not None and arm.path:  # nothing prepared says nothing of the draft
                depth = min(depth, len(note.offered))
            if arm is not None and depth:
                mine = self.beliefs.known_to(note.request)
                mine.observe(note.request, arm.key(note.nodes), depth, note.offered, note.kept)
        return self.governor.account

    def _account(
        self, before: int, notes: Sequence[Note], work: Work, parts: Sequence[Drafting], times: Times, waited: float
    ) -> None:
        """Book the step with the governor. `waited`: seconds of it in which the machine was interrupted."""
        base, price = self._base, self.governor.pass_seconds
        tokens = {n.request: 0 for n in notes if not n.part}
        for note in notes:
            if not note.part:
                tokens[note.request] += 1 + sum(note.kept)
        named = any(n.nodes and n.request not in self._keys for n in notes if not n.part)
        if (prompts := self._decided != before or base.rows > base.requests) or (named and self._keys):
            nodes = sum(part.nodes for part in parts)
            fewer = replace(work, rows=max(1, work.rows - round(nodes / work.passes)))
            rows = max(0.0, self.times.of_target(work) - self.times.of_target(fewer)) if nodes else 0.0
            plain = price(base.requests, base.context) / max(1, base.requests)
            saved = {request: (count - work.passes) * plain for request, count in tokens.items()}
            lost = sum(times.drafts.values()) + rows - sum(saved.values())
            chosen = self._charged(notes, parts, times, rows / max(1, nodes), saved)
            self.governor.shared(times.total, lost, chosen, prompts)
        elif not parts:
            self.governor.rested(work, times)
        else:
            got: dict[str, tuple[int, int]] = {}
            for request, count in tokens.items():
                if (key := self._keys.get(request)) is not None:
                    requests, all_ = got.get(key, (0, 0))
                    got[key] = requests + 1, all_ + count
            self.governor.drafted(work, times.total - waited, got, sum(tokens.values()), self._straight, waited)

    def _charged(
        self, notes: Sequence[Note], parts: Sequence[Drafting], times: Times, row: float, saved: Mapping[int, float]
    ) -> dict[str, float]:
        """{key: seconds lost by requests whose drafter was chosen for them}; "" is all together, and reads texts. What
        users named is charged to nobody."""
        whole = [note for note in notes if not note.part]
        asked = Counter(note.drafter for note in whole)
        each = {part.drafter: times.drafts.get(part.drafter, 0.0) + row * part.nodes for part in parts}
        out = defaultdict[str, float](float)
        out[""] = sum(seconds for name, seconds in times.drafts.items() if name not in asked)
        for note in whole:
            for key in {"", self._keys[note.request]} if note.request in self._keys else ():
                out[key] += each.get(note.drafter, 0.0) / asked[note.drafter]
        for request in saved.keys() & self._keys.keys():
            for key in {"", self._keys[request]}:
                out[key] -= saved[request]
        return out

    def drop(self, request: Request) -> None:
        self.beliefs.drop(request.id)

    def state(self) -> dict[str, Any] | None:
        return {"beliefs": self.beliefs.dump()}


def reason(
    what: str, drafter: str, nodes: int, requests: int, tokens: Sequence[float], seconds: float, plain: float
) -> str:
    """A bet in words, as `generate --explain` prints it. `tokens` of a request's nodes: low, mean, high."""
    many = f" for {requests}" if requests > 1 else ""
    low, mean, high = tokens
    brings = f"{what} {drafter} x{nodes}{many}: +{mean:.1f} tokens ({low:.1f} to {high:.1f})"
    return f"{brings} in {1e3 * seconds:.1f} ms; plain {1e3 * plain:.1f} ms"


@POLICIES.register("goodput", Chooses("most expected tokens a second; a fixed number where a drafter is named", True))
def goodput(basis: Basis) -> LengthPolicy:
    """The default."""
    fixed = FixedLength(basis.limit, basis.cheap_rows, basis.times)
    made = Goodput(basis.times, basis.limit, fixed, basis.patience, basis.live)
    if basis.known is not None:
        made.beliefs.recall(basis.known["beliefs"])
    return made
