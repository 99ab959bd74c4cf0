"""`Governor`: the account of promise two, "never slower". It compares the time that steps took with the time that plain
decoding would have taken for the same tokens, and stops speculation while too much is lost.

A conservative bandit (Wu et al. 2016; Kazerouni et al. 2017): whatever the planner believes, the loss stays within a
share of the time and a fixed credit. The account is as good as the table's price of a plain step. Every plain step
measures that, and while drafts run a plain step is made for each of them that LOSS of the time has room for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from paceline.core.plan import Work
from paceline.plan import HORIZON, Account
from paceline.plan.cost import OFF, StepTimes, Times

LOSS = 0.01
"""Share of the time that may be lost to speculation in the long run."""
CREDIT_STEPS = 5
"""What may be lost beyond that, in plain steps of one request."""
SURE = 4.0
"""Mean errors by which a step differs from what was expected for a reason of its own."""
MOST_KEYS = 256
"""Keys with an account of their own, those that have lost most: clients choose names, and each costs time in a step."""
PASSES = 8
"""Most passes of the target in one step."""


def fitting(patience: float, seconds: float) -> int:
    """Passes of `seconds` each that a step may have within `patience` seconds."""
    return max(1, min(PASSES, int(patience / seconds)))


@dataclass(slots=True)
class Unchecked:
    """Drafted steps between two plain ones. They are booked at the price of a plain step that was known, and once more
    when the next plain step says what the price is, at the mean of both."""

    lost: float
    """Seconds lost according to the account before these steps."""
    seconds: float = 0.0
    worth: float = 0.0
    """Seconds of plain decoding for their tokens, at the price that was known."""
    steps: float = 0.0
    """Plain steps of one request that take as long: what they are worth when the price has been corrected."""


@dataclass(slots=True)
class Governor:
    times: StepTimes
    patience: float = 0.0
    """Seconds that a step of several passes may take."""
    saved: float = 0.0
    """Seconds that speculation has saved since the start; below 0: lost."""
    seconds: float = 0.0
    """Seconds of all steps."""
    lost: dict[str, float] = field(default_factory=dict)
    """Seconds lost of late, by key of the requests; "" is all together. They leak by LOSS of the time, so that the loss
    of every stretch of time is bounded, and what was saved long ago pays for nothing now."""
    owed: float = 0.0
    """Seconds of reading with drafters that are not in `lost` yet: a text is read once, for all of its answer."""
    open: dict[str, "Unchecked"] = field(default_factory=dict)
    """By key: the drafted steps since the latest plain one."""

    mixed: float = 0.0
    """Seconds of steps since the latest plain one in which some drafters were named and others could be chosen."""

    def pass_seconds(self, requests: int, context: float, straight: bool = False) -> float:
        """A plain pass with its part of the step. `straight`: steps may have several passes."""
        times, rows = self.times, round(context)
        target = times.of_target(Work(requests, requests, rows, rows, requests))
        passes = fitting(self.patience, target) if straight else 1
        return target + times.of_rest(requests, 0, passes) / passes

    @property
    def credit(self) -> float:
        return CREDIT_STEPS * self.pass_seconds(1, 0)

    @property
    def account(self) -> Account:
        """The account in all."""
        credit = self.credit
        keys = sum(lost > credit for key, lost in self.lost.items() if key)
        return Account(self.saved, self.seconds, self.lost.get("", 0.0) > credit, keys)

    def stops(self, key: str = "") -> bool:
        """Does this account, or that of all, forbid drafts for now?"""
        return max(self.lost.get("", 0.0), self.lost.get(key, 0.0)) > self.credit

    def room(self, reads: bool = False) -> float:
        """Seconds that a bet may lose. `reads`: on reading a text; what was read before may be lost as well."""
        return self.credit - self.lost.get("", 0.0) - (self.owed if reads else 0.0)

    def due(self) -> bool:
        """Is it time for a plain step, to see what one takes?"""
        drafted = self.mixed + (self.open[""].seconds if "" in self.open else 0.0)
        return self.blind or LOSS * drafted > self.pass_seconds(1, 0)

    @property
    def blind(self) -> bool:
        """Have only steps with prompts or drafts set prices so far? What plain decoding takes is then unknown."""
        return self.times.seen > 0 and not (self.times.measured or self.times.plains)

    def _repaid(self, tokens: float) -> float:
        """The part of what is owed that falls due with `tokens` more of each answer."""
        due = self.owed * min(1.0, tokens / HORIZON)
        self.owed -= due
        return due

    def _book(self, key: str, lost: float, seconds: float) -> None:
        self.lost[key] = max(-self.credit, self.lost.get(key, 0.0) + lost - LOSS * seconds)

    def rested(self, work: Work, times: Times) -> None:
        """A step in which nobody was drafted for. Keeping a drafter's K/V up in it is lost."""
        expected = self.times.of_target(work) + self.times.of_rest(work.requests, 0, work.passes)
        if self.times.seen:  # else the table's scale is not known yet
            ratio = (times.target + times.rest) / expected
            changed = 0.5 * (min(OFF, max(1.0 / OFF, ratio)) - 1.0)
            for key, each in self.open.items():
                worth = (1.0 + changed) * each.steps * self.pass_seconds(1, 0)
                self.lost[key] = each.lost
                self._book(key, each.seconds - worth, each.seconds)
                if key == "":
                    self.saved += worth - each.worth
        self.open.clear()
        self.mixed = 0.0
        self.seconds += times.total
        self.saved -= sum(times.drafts.values())
        if len(self.lost) > MOST_KEYS:
            worst = sorted(self.lost, key=lambda key: -self.lost[key] if key else -inf)
            self.lost = {key: self.lost[key] for key in worst[:MOST_KEYS]}
        self.owed += sum(times.drafts.values())
        due = self._repaid(work.passes)
        for key in {"", *self.lost}:
            self._book(key, due if key == "" else 0.0, times.total)

    def waited(self, seconds: float, expected: float) -> float:
        """Seconds of a step for which its rows are no reason: beyond what was expected by more than a plain step and
        the usual error. The machine was interrupted, or the price is too low; `StepTimes.observe` then corrects it."""
        doubt = max(SURE * self.times.error * expected, self.pass_seconds(1, 0))
        return max(0.0, seconds - expected - doubt) if self.times.seen else 0.0

    def drafted(
        self, work: Work, seconds: float, tokens: Mapping[str, tuple[int, int]], total: int, straight: bool,
        waited: float = 0.0,
    ) -> None:  # fmt: skip
        """A step in which somebody was drafted for. `tokens` {key: (requests, tokens that they got)} of those whose
        drafter was chosen for them; `total`: tokens of all. What a user's own choice loses binds nobody. `waited`:
        seconds more, in which the machine was interrupted; plain decoding would have waited as long."""
        n, price = work.requests, self.pass_seconds(work.requests, work.context, straight)
        self.seconds += seconds + waited
        self.saved += total * price / n - seconds
        due, one = self._repaid(total / n), self.pass_seconds(1, 0)
        chosen = sum(mine for mine, _ in tokens.values()), sum(got for _, got in tokens.values())
        for key, (mine, got) in {**tokens, "": chosen}.items():
            took, worth = seconds * mine / n + (due if key == "" else 0.0), got * price / n
            each = self.open.setdefault(key, Unchecked(self.lost.get(key, 0.0)))
            each.seconds += took
            each.worth += worth
            each.steps += worth / one
            self._book(key, took - worth, took)

    def shared(self, seconds: float, lost: float, chosen: Mapping[str, float], prompts: bool = True) -> None:
        """A step that `prompts` or drafts by name share, whose rows are not the planner's choice: `lost` is what it is
        expected to have lost, and `chosen` what those have of it, by key, whose drafter was chosen for them."""
        self.seconds += seconds
        self.saved -= lost
        if prompts:
            self.owed += max(0.0, chosen[""])
        else:
            self.mixed += seconds
        self._book("", min(0.0, chosen[""]) if prompts else chosen[""], seconds)
        for key in sorted({*self.lost, *chosen} - {""}) if not prompts else ():
            self._book(key, chosen.get(key, 0.0), seconds)
