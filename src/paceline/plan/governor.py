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
CREDIT_S, CREDIT_STEPS = 1.0, 5
"""What may be lost beyond that: the lesser of this many seconds and this many plain steps of one request."""
CHECK_PASSES = 96
"""Passes without a plain step after which one measures what that takes; a third as many while nothing is saved."""
KNOWN_STEPS, MOST_STEPS = 4, 24
"""Plain steps that the table's price of one counts for, and most that earlier ones count for."""
PASSES = 8
"""Most passes of the target in one step."""


def fitting(patience: float, seconds: float) -> int:
    """Passes of `seconds` each that a step may have within `patience` seconds."""
    return max(1, min(PASSES, int(patience / seconds)))


@dataclass(slots=True)
class Unchecked:
    """Drafted steps between two plain ones. They are booked at the price of a plain step that was known, and once more,
    at the mean of both prices, when the next plain step says what the price is."""

    lost: float
    """The account before them."""
    seconds: float = 0.0
    worth: float = 0.0
    """Seconds of plain decoding for their tokens, at the price that was known."""


@dataclass(slots=True)
class Governor:
    times: StepTimes
    patience: float = 0.0
    """Seconds that a step of several passes may take."""
    saved: float = 0.0
    """Seconds that speculation has saved since the start; below 0: lost."""
    seconds: float = 0.0
    """Seconds of all steps."""
    plain: dict[int, tuple[float, int]] = field(default_factory=dict)
    """{requests: how many times as long as the table says a plain step of that many takes, and from how many steps that
    is known}. The table follows the machine's speed in all steps, so that a plain step is known between two of them."""
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
        times, rows = self.times, round(context)
        target = times.of_target(Work(requests, requests, rows, rows, requests))
        passes = fitting(self.patience, target) if straight else 1
        return self._ratio(requests)[0] * (target + times.of_rest(requests, 0, passes) / passes)

    def _ratio(self, requests: int) -> tuple[float, int]:
        """As measured with as many requests; else with the nearest number."""
        if requests in self.plain or not self.plain:
            return self.plain.get(requests, (1.0, KNOWN_STEPS))
        return self.plain[min(self.plain, key=lambda n: abs(n - requests))][0], KNOWN_STEPS

    def _measured(self, work: Work, times: Times) -> None:
        """A plain step: one that was interrupted says little, at most a factor of two."""
        expected = self.times.of_target(work) + self.times.of_rest(work.requests, 0, work.passes)
        ratio, count = self._ratio(work.requests)
        new = (times.target + times.rest) / expected
        rate = 1.0 / min(count + 1, MOST_STEPS)
        self.plain[work.requests] = ratio + rate * (min(max(new, 0.5 * ratio), 2.0 * ratio) - ratio), count + 1

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
        drafted = self.open.get("")
        return drafted is not None and LOSS * drafted.seconds > self.pass_seconds(1, 0)

    def _book(self, key: str, lost: float, seconds: float) -> None:
        self.lost[key] = max(-self.credit, self.lost.get(key, 0.0) + lost - LOSS * seconds)

    def rested(self, work: Work, times: Times) -> None:
        """A step in which nobody was drafted for. Keeping a drafter's K/V up in it is lost."""
        before = self._ratio(work.requests)[0]
        if self.times.seen:  # else the table's scale is not known yet
            self._measured(work, times)
        changed = 0.5 * (self._ratio(work.requests)[0] / before - 1.0)
        for key, each in self.open.items():
            self.lost[key] = each.lost
            self._book(key, each.seconds - (1.0 + changed) * each.worth, each.seconds)
            if key == "":
                self.saved += changed * each.worth
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
            took, worth = seconds * mine / n, got * price / n
            each = self.open.setdefault(key, Unchecked(self.lost.get(key, 0.0)))
            each.seconds += took
            each.worth += worth
            self._book(key, took - worth, took)

    def shared(self, seconds: float, lost: float, chosen: float) -> None:
        """A step that prompts share, whose rows are not speculation's: `lost` is what it is expected to have lost, and
        `chosen` what those have of it whose drafter was chosen for them."""
        self.seconds += seconds
        self.saved -= lost
        self._book("", chosen, seconds)

    def tries(self, loss: float = 0.0) -> bool:
        """May a try that is expected to lose `loss` seconds against the choice be made?"""
        return self.betting + max(0.0, loss) <= self.credit and max(0.0, loss) <= self.room()

    def tried(self, lost: float) -> None:
        """A try has lost `lost` seconds; below 0: it has won."""
        self.betting = max(-self.credit, self.betting + lost)
