"""Shares of rows. Pure decisions: no tensors, no clock (D8)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import MinChance, Note, Work
from paceline.core.registry import Ahead, Registry, Runs
from paceline.core.request import Request

if TYPE_CHECKING:
    from paceline.plan.cost import Drafting, StepTimes, Times

NONE = "none"
"""Drafter of a request that nobody drafts for."""
HORIZON = 256
"""Tokens of an answer within which reading its text with a draft model has to pay."""


class Share(NamedTuple):
    """Drafter and nodes of one request in this step: see `Item`."""

    drafter: str
    nodes: int
    depth: int
    min_chance: MinChance | None = None


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """One drafter as decisions see it, without the drafter itself."""

    nodes: int
    """Drafted a step, unless a request or the policy says otherwise."""
    chain: bool
    group: str | None = None
    """K/V group of the drafter's own, if it has one."""
    limit: int | None = None
    """Longest text in tokens that it can draft for."""
    stops_early: bool = False
    """Does it end a draft where more does not pay?"""
    most: int | None = None
    """Most nodes that the policy may give it; None: as many as pay."""
    always_asked: str | None = None
    """Part of a merged drafter that drafts chains and is asked in every step."""
    runs: Runs = False
    """Can it draft in steps of several passes (`Offers.runs`)?"""
    taps: tuple[str, ...] = ()
    """Hidden states of the target that it reads."""
    ahead: Ahead = ""
    """What it drafts while the target's pass runs (`Offers.ahead`)."""
    failures: int = 0
    """How often the drafter has raised an error."""

    def further(self, nodes: int, depth: int) -> int:
        """Rows that it drafts while a pass runs with `nodes` of it, of a text that goes on for `depth` more."""
        if not nodes or not self.ahead or depth < 2:
            return 0
        return min(nodes + 1, depth) if self.ahead == "path" else max(0, MAX_CANDIDATES - nodes)


class Account(NamedTuple):
    """What a policy knows of its gain against plain decoding, since the start."""

    saved: float = 0.0
    """Seconds; below 0: lost."""
    seconds: float = 0.0
    """Seconds of all steps."""
    stopped: bool = False
    """Has speculation lost more than it may, so that the policy lets nobody draft for now?"""
    stopped_keys: int = 0
    """Keys for whose requests alone that is so."""


@dataclass(slots=True)
class StepDecision:
    """What a policy decides about a step."""

    shares: Mapping[int, Share] = field(default_factory=dict)
    """{request id: share}"""
    passes: int = 1
    """Most passes of the target in the step."""
    why: tuple[str, ...] = ()
    """Reasons in words, one for each bet that was taken."""
    gain: dict[str, tuple[float, float]] = field(default_factory=dict)
    """{K/V group: seconds that drafting with it is expected to save for each token of a request, and may save at best}.
    A group that is missing is always kept up."""
    room: float = inf
    """Seconds that reading for groups of uncertain use may still cost in this step."""
    explorer: int = -1
    """The request that may read for such a group: one shows what it is good for."""
    answers: dict[tuple[int, str], bool] = field(default_factory=dict)

    def reads(self, request: int, group: str, seconds: float, left: int, hope: float = 1.0) -> bool:
        """Is reading a text with this group for `seconds` worth the time, if `left` tokens may still come? Yes if the
        expected gain pays for it. If only the best possible gain pays for the share `hope` of the seconds, one request
        reads, as far as `room` allows; where `hope` is below 1 the room must be twice that, for the tries that follow
        the reading. The first token comes with the prompt, whatever drafts. The same question has the same answer
        throughout a step."""
        if group not in self.gain:
            return True
        if (answer := self.answers.get((request, group))) is None:
            expected, best = (each * min(left - 1, HORIZON) for each in self.gain[group])
            answer = expected >= seconds and expected > 0.0
            least = hope * seconds
            need = least if hope == 1.0 else 2 * least
            if not answer and request == self.explorer and best >= least and self.room >= need:
                self.room -= need
                answer = True
            self.answers[request, group] = answer
        return answer


class LengthPolicy:
    """Policy that decides which drafter drafts how many nodes. It may depend on anything known before the draft is
    drawn, and on nothing else (D2). This one lets nobody draft."""

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        """Make a drafter known, or what has changed of it."""

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        """Decide a step. `requests` draw a token in it, and get 0 .. MAX_CANDIDATES nodes each, at most `room` in all.
        `base`: the pass without any nodes. Without room the answer is about K/V groups alone."""
        return StepDecision({r.id: Share("none", 0, 0) for r in requests})

    def learn(self, notes: Sequence[Note], work: Work, parts: "Sequence[Drafting]", times: "Times") -> Account | None:
        """Learn from the step that was decided last. The account after it; None for a policy that keeps none."""
        return None

    def drop(self, request: Request) -> None:
        """A request has ended."""

    def state(self) -> dict[str, Any] | None:
        """What it has learned, as JSON for `Basis.known`; None for a policy that does not learn."""
        return None


@dataclass(slots=True)
class Basis:
    """What a policy is made from. `cheap_rows`: that of `FixedLength`; `limit(request, drafter)`: how deep a draft may
    be; `patience`: seconds that a step of several passes may take."""

    times: "StepTimes"
    limit: Callable[[Request, str], int]
    cheap_rows: int | None = None
    patience: float = 0.0
    known: dict[str, Any] | None = None
    """`LengthPolicy.state` of an earlier policy."""
    live: Callable[[], int] = lambda: 0
    """Requests that decode or whose prompts are being read."""


@dataclass(frozen=True, slots=True)
class Chooses:
    """A policy's card."""

    summary: str
    arms: bool
    """Does it choose between drafters (`auto`, `a|b`)?"""


POLICIES: Registry[Callable[[Basis], LengthPolicy]] = Registry("length policy", "paceline.plan")
