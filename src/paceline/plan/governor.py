"""`Governor`: the account of promise two, "never slower". It compares the time that steps took with the time that plain
decoding would have taken for the same tokens, and stops speculation while too much is lost.

A conservative bandit (Wu et al. 2016; Kazerouni et al. 2017): whatever the planner believes, the loss stays within a
share of the time and a fixed credit. The account is as good as its price of a plain step. Every plain step measures
that, and while drafts run one step in some is plain for this reason alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.plan import Work
from paceline.plan.cost import StepTimes, Times

LOSS = 0.01
"""Share of the time that may be lost to speculation in the long run."""
CREDIT_S, CREDIT_STEPS = 1.0, 8
"""What may be lost beyond that: the lesser of this many seconds and this many plain steps of one request."""
CHECK_PASSES = 96
"""Passes without a plain step after which one measures what that takes; a third as many while nothing is saved."""
PLAIN_RATE = 0.1
"""Weight of a new measurement of a plain step, once there are many."""
PASSES = 8
"""Most passes of the target in one step."""


def fitting(patience: float, seconds: float) -> int:
    """Passes of `seconds` each that a step may have within `patience` seconds."""
    return max(1, min(PASSES, int(patience / seconds)))


@dataclass(slots=True)
class PlainStep:
    """A plain step of some requests, in seconds: a pass of the target, everything else in a step of one pass, and that
    in a step of several."""

    target: float
    context: float
    """Committed rows that the pass read."""
    rest: float
    several: float
    count: int = 0

    def learn(self, work: Work, times: Times) -> None:
        self.count += 1
        rate = max(PLAIN_RATE, 1.0 / self.count)
        self.target += rate * (_near(times.target / work.passes, self.target, self.count) - self.target)
        self.context += rate * (work.context - self.context)
        if work.passes == 1:
            self.rest += rate * (_near(times.rest, self.rest, self.count) - self.rest)
        else:
            self.several += rate * (_near(times.rest, self.several, self.count) - self.several)


def _near(seconds: float, expected: float, count: int) -> float:
    """One interrupted step says little: at most a factor of two, but for the first."""
    return seconds if count == 1 else min(max(seconds, 0.5 * expected), 2.0 * expected)


@dataclass(slots=True)
class Unchecked:
    """Drafted steps between two plain ones. They are booked at the price of a plain step that was known, and once more,
    at the mean of both prices, when the next plain step says what the price is."""

    lost: float
    """The account before them."""
    seconds: float = 0.0
    passes: dict[tuple[int, bool], float] = field(default_factory=dict)
    """{(requests, straight): plain passes that their tokens are worth}"""


@dataclass(slots=True)
class Governor:
    times: StepTimes
    patience: float = 0.0
    """Seconds that a step of several passes may take."""
    saved: float = 0.0
    """Seconds that speculation has saved since the start; below 0: lost."""
    seconds: float = 0.0
    """Seconds of all steps."""
    plain: dict[int, PlainStep] = field(default_factory=dict)
    """{requests: what a plain step of that many takes}"""
    lost: dict[str, float] = field(default_factory=dict)
    """Seconds lost of late, by key of the requests; "" is all together. They leak by LOSS of the time, so that the loss
    of every stretch of time is bounded, and what was saved long ago pays for nothing now."""
    betting: float = 0.0
    """Seconds that tries have lost of late against what was chosen; they leak, too."""
    unchecked: int = 0
    """Passes since the latest plain one."""
    open: dict[str, "Unchecked"] = field(default_factory=dict)
    """By key: the drafted steps since then."""

    def pass_seconds(self, requests: int, context: float, straight: bool = False) -> float:
        """A plain pass with its part of the step. `straight`: steps may have several passes."""
        plain = self._plain(requests)
        slope = self.times.target.weights["context"] * self.times.speed
        target = max(0.5 * plain.target, plain.target + slope * (context - plain.context))
        passes = fitting(self.patience, target) if straight else 1
        return target + (plain.rest if passes == 1 else plain.several / passes)

    def _plain(self, requests: int) -> PlainStep:
        """As measured with as many requests; else as the table says, corrected by what was measured with the nearest
        number."""
        if (known := self.plain.get(requests)) is not None:
            return known
        times, work = self.times, Work(requests, requests, 0, 0, requests)
        made = PlainStep(times.of_target(work), 0, times.of_rest(requests, 0), times.of_rest(requests, 0, 2))
        if self.plain:
            near = min(self.plain, key=lambda n: abs(n - requests))
            other = self.plain[near]
            like = Work(near, near, round(other.context), round(other.context), near)
            made.target *= other.target / times.of_target(like)
        return made

    @property
    def credit(self) -> float:
        return min(CREDIT_S, CREDIT_STEPS * self.pass_seconds(1, 0))

    def stops(self, key: str = "") -> bool:
        """Does this account, or that of all, forbid drafts for now?"""
        return max(self.lost.get("", 0.0), self.lost.get(key, 0.0)) > self.credit

    def room(self) -> float:
        """Seconds that a bet may lose."""
        return self.credit - self.lost.get("", 0.0)

    def due(self) -> bool:
        """Is it time for a plain step, to see what one takes?"""
        return self.unchecked >= (CHECK_PASSES if self.lost.get("", 0.0) < 0.0 else CHECK_PASSES // 3)

    def _book(self, key: str, lost: float, seconds: float) -> None:
        self.lost[key] = max(-self.credit, self.lost.get(key, 0.0) + lost - LOSS * seconds)

    def rested(self, work: Work, times: Times) -> None:
        """A step in which nobody was drafted for. Keeping a drafter's K/V up in it is lost."""
        kinds = {at for each in self.open.values() for at in each.passes}
        before = {at: self.pass_seconds(at[0], work.context, at[1]) for at in kinds}
        self.plain.setdefault(work.requests, self._plain(work.requests)).learn(work, times)
        price = {at: 0.5 * (before[at] + self.pass_seconds(at[0], work.context, at[1])) for at in kinds}
        for key, each in self.open.items():
            worth = sum(passes * price[at] for at, passes in each.passes.items())
            self.lost[key] = each.lost
            self._book(key, each.seconds - worth, each.seconds)
            if key == "":
                self.saved += worth - sum(passes * before[at] for at, passes in each.passes.items())
        self.open.clear()
        self.seconds += times.total
        self.unchecked = 0
        self.saved -= sum(times.drafts.values())
        self.betting = max(-self.credit, self.betting - LOSS * times.total)
        for key in {"", *self.lost}:
            self._book(key, sum(times.drafts.values()) if key == "" else 0.0, times.total)

    def drafted(
        self, work: Work, seconds: float, tokens: Mapping[str, tuple[int, int]], total: int, straight: bool
    ) -> None:
        """A step in which somebody was drafted for. `tokens` {key: (requests, tokens that they got)} of those whose
        drafter was chosen for them; `total`: tokens of all. What a user's own choice loses binds nobody."""
        n, price = work.requests, self.pass_seconds(work.requests, work.context, straight)
        self.seconds += seconds
        self.unchecked += work.passes
        self.saved += total * price / n - seconds
        self.betting = max(-self.credit, self.betting - LOSS * seconds)
        chosen = sum(mine for mine, _ in tokens.values()), sum(got for _, got in tokens.values())
        for key, (mine, got) in {**tokens, "": chosen}.items():
            took, at = seconds * mine / n, (n, straight)
            each = self.open.setdefault(key, Unchecked(self.lost.get(key, 0.0)))
            each.seconds += took
            each.passes[at] = each.passes.get(at, 0.0) + got / n
            self._book(key, took - got * price / n, took)

    def shared(self, seconds: float, lost: float) -> None:
        """A step that prompts share, whose rows are not speculation's: `lost` is what it is expected to have lost."""
        self.seconds += seconds
        self.saved -= lost
        self._book("", lost, seconds)

    def tries(self, loss: float = 0.0) -> bool:
        """May a try that is expected to lose `loss` seconds against the choice be made?"""
        return self.betting + max(0.0, loss) <= self.credit and max(0.0, loss) <= self.room()

    def tried(self, lost: float) -> None:
        """A try has lost `lost` seconds; below 0: it has won."""
        self.betting = max(-self.credit, self.betting + lost)
