"""Who gets which rows. Pure decisions: no tensors, no clock (D8)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import Item, MinChance, Note, Panel, Work
from paceline.core.registry import Ahead, Registry, Runs
from paceline.core.request import Request

if TYPE_CHECKING:
    from paceline.plan.cost import Drafting, StepTimes, Times


class Share(NamedTuple):
    """Who drafts for one request in this step, and how much: see `Item`."""

    drafter: str
    nodes: int
    depth: int
    min_chance: MinChance | None = None
    chances: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """One drafter as decisions see it, without the drafter itself."""

    nodes: int
    """Drafted a step, unless a request or the policy says otherwise."""
    chain: bool
    group: str | None = None
    """Its own K/V group, if it has one."""
    limit: int | None = None
    """Longest text in tokens that it can draft for."""
    stops_early: bool = False
    """Does it end a draft where more does not pay?"""
    most: int | None = None
    """Most nodes that the policy may give it; None: as many as pay."""
    always_asked: str | None = None
    """The part of a merged one that drafts chains and is always asked."""
    runs: Runs = False
    """Can it draft in steps of several passes (`Offers.runs`)?"""
    taps: tuple[str, ...] = ()
    """Hidden states of the target that it reads."""
    ahead: Ahead = ""
    """What it drafts while the target's pass runs (`Offers.ahead`)."""

    def further(self, nodes: int, depth: int) -> int:
        """Rows that it drafts while a pass runs with so many nodes of it, of a text that goes on for `depth` more."""
        if not nodes or not self.ahead or depth < 2:
            return 0
        return min(nodes + 1, depth) if self.ahead == "path" else max(0, MAX_CANDIDATES - nodes)


class LengthPolicy:
    """Who drafts how much. May depend on anything known before the draft is drawn, and on nothing else (D2)."""

    times: "StepTimes | None"
    """What steps cost, in seconds, where the policy keeps a table of it."""
    step: int
    """Passes of the target so far, as far as the policy counts them."""
    patience: float
    """Seconds that a step of more than one pass may take."""

    @property
    def count(self) -> int:
        """Requests of the latest choices."""
        return 0

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        """Make a drafter known."""

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> Mapping[int, Share]:
        """{request id: share}, 0 .. MAX_CANDIDATES nodes each and at most `spare` together, for requests that draw a
        token in this step. `base`: the pass without any nodes. This one lets nobody draft."""
        return {r.id: Share("none", 0, 0) for r in requests}

    def panels(self, base: Work) -> tuple[Panel, ...]:
        """Where drafts may be cut in the step that was just shared out, fewest rows first."""
        return ()

    def passes(self, items: Sequence[Item], base: Work) -> int:
        """Of the target in one step of these items, who decode one token each, at most."""
        return 1

    def learn(self, notes: Sequence[Note], work: Work, parts: "Sequence[Drafting]", times: "Times") -> None:
        """What a step taught."""

    def failed(self, drafter: str) -> None:
        """A drafter raised."""

    def drop(self, request: Request) -> None:
        """A request has ended."""

    def seconds(self, work: Work) -> float:
        """Of a step whose pass is this work and that drafts as the latest did, for a policy with `times`."""
        return 0.0

    def attend(self, requests: Sequence[Request]) -> None:
        """Those who hold leases in the step that is planned next, before anything of it is asked."""

    def hopeless(self, drafter: str, request: Request, rows: int) -> bool:
        """Is it not expected to draft for this request while so many decode, or not to bring what reading the `rows`
        that its K/V lacks costs? Then that is not kept up, until it is."""
        return False

    def affords(self, group: str, rows: int) -> bool:
        """Of a K/V group whose drafters are hopeless: may so many rows be read, to see whether they are?"""
        return True

    def idle(self, drafter: str) -> bool:
        """Is this drafter of no use to anybody at present?"""
        return False


@dataclass(slots=True)
class Basis:
    """What a policy is made from. `cheap_rows`, `row_cost`: those of `FixedLength`; `limit(request, drafter)`: how deep
    a draft may be."""

    times: "StepTimes"
    limit: Callable[[Request, str], int]
    limits: dict[str, int] = field(default_factory=dict)
    """{drafter: longest text that it can draft for}"""
    defaults: dict[str, int] = field(default_factory=dict)
    """{drafter: nodes of a step}"""
    cheap_rows: int | None = None
    row_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Chooses:
    """A policy's card."""

    summary: str
    arms: bool
    """Does it choose between drafters (`auto`, `a|b`)?"""


POLICIES: Registry[Callable[[Basis], LengthPolicy]] = Registry("length policy", "paceline.plan")
