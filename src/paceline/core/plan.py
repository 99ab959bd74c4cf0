"""`Plan`: the only thing policies make. `Note`: the only thing estimators read."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.errors import IntegrityError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.request import Request

LAG = 64
"""Rows by which a drafter's K/V may lag the text while others draft."""
TOLD_ROWS = 512
"""Maximum rows of prompts in a step whose log-probabilities are wanted: each has logits over the vocabulary."""
PROMPT_RESERVE_ROWS = 16
"""Rows that decodes and nodes leave to waiting prompts, if the prompts need that many: prompts never starve."""


@dataclass(frozen=True, slots=True)
class MinChance:
    """The least chance of being kept that a drafted node must have. It is the node's price in tokens: what it costs,
    times the tokens that the engine makes in that time."""

    row: float
    """Price of one more row."""
    level: float = 0.0
    """Price of one more node of a chain apart from its row, such as a pass of a draft model."""
    target: float = 0.0
    """Price of a pass of the target, of which a drafter that runs some of its layers takes a share; 0: not known."""

    @property
    def node(self) -> float:
        """One more node of a chain."""
        return self.row + self.level


class Item(NamedTuple):
    """One request's share of a step: `given` of its pending tokens become rows, and at most `nodes` candidates, at most
    `depth` below one another, hang below the last of them (only when that completes the text)."""

    request: Request
    given: int
    nodes: int
    drafter: str
    verifier: str
    depth: int = MAX_CANDIDATES
    min_chance: MinChance | None = None
    """None: the drafter's own figures."""
    taps: tuple[str, ...] = ()
    """Hidden states of the target that are read for this request's rows (`Rows.taps`)."""
    further: int = 0
    """Rows that are reserved in addition to those of the pass, for what the drafter drafts while it runs; 0: it
    waits."""
    first: int = 0
    """Layer at which the given rows go on: they have run through those below it in earlier steps."""
    last: int | None = None
    """Layer before which they wait for the next step; None: they run through all."""
    share: float = 1.0
    """Share of the target's layers that this step runs them through."""

    @property
    def chain(self) -> int:
        """Length of the longest chain."""
        return min(self.nodes, self.depth)

    @property
    def rows(self) -> int:
        return self.given + self.nodes

    def reserved(self, passes: int) -> int:
        """Rows that are reserved for `passes` passes, in addition to the given ones."""
        if passes == 1:
            return self.nodes + self.further
        rows = min(passes * (1 + self.chain), self.request.left) - 1
        return min(rows, self.depth) if self.nodes else rows

    @property
    def completes(self) -> bool:
        """Will this step draw a new token?"""
        return self.given == self.request.pending and self.request.closing is None and not self.partial

    @property
    def partial(self) -> bool:
        """Will the rows wait inside the model, with nothing committed?"""
        return self.last is not None

    def behind(self, base: int, frontier: int) -> bool:
        """Is it time for a drafter that is not asked to draft to catch up with the text, of which `base` rows are
        committed and it has `frontier`? At a prompt's end, when a branch has ended, or when it lags too far."""
        return self.given > 1 or base - frontier > LAG or self.request.closing is not None


@dataclass(frozen=True, slots=True)
class Work:
    """What makes a pass cost time. `context` is the sum of the committed rows that its requests read, `pairs` of the
    rows that each of its rows reads, `logits` the rows whose logits are wanted."""

    rows: int
    requests: int
    context: int
    pairs: int
    logits: int
    passes: int = 1
    """Number of passes of this kind, one after the other."""

    @classmethod
    def of(cls, items: Iterable[tuple[int, int, int]]) -> "Work":
        """Work from (rows, committed length, wanted logits), one triple per request."""
        rows = requests = context = pairs = logits = 0
        for own, length, wanted in items:
            rows += own
            requests += 1
            context += length
            pairs += own * length
            logits += wanted
        return cls(rows, requests, context, pairs, logits)

    def more(self, nodes: int) -> "Work":
        """Work with `nodes` added nodes, which read what its requests' rows read."""
        pairs = self.pairs + round(nodes * self.pairs / max(self.requests, 1))
        return Work(max(1, self.rows + nodes), self.requests, self.context, pairs, self.logits + nodes)


@dataclass(frozen=True, slots=True)
class Plan:
    """A step: the rows of each request, and the requests that are pre-empted for it."""

    items: list[Item] = field(default_factory=list)
    preempt: list[Request] = field(default_factory=list)
    passes: int = 1
    """Passes of the target in one call. More than one only where every item's request is `judge_free`, and the one
    drafter, if there is any, can draft in a run."""
    why: tuple[str, ...] = ()
    """Reasons of the choice in words."""
    held: tuple[int, ...] = ()
    """Requests that sit out because their grammars' masks are not there yet."""

    @property
    def taps(self) -> tuple[str, ...]:
        """Hidden states of the target that are read."""
        return tuple(sorted({tap for item in self.items for tap in item.taps}))

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items)

    @property
    def drafter(self) -> str | None:
        """The first item with a draft: in a run the only one."""
        return next((item.drafter for item in self.items if item.nodes), None)

    def validate(self, row_budget: int) -> None:
        """Raise IntegrityError when a policy broke its contract."""
        seen: set[int] = set()
        for item in self.items:
            bad = (
                item.request.id in seen
                or not 1 <= item.given <= item.request.ready
                or not 0 <= item.nodes <= MAX_CANDIDATES
                or (item.nodes > 0 and not item.completes)
                or item.further < 0
                or (item.further > 0 and self.passes > 1)
                or item.first != item.request.layer
                or (item.first > 0 and item.given != item.request.held)
                or (item.partial and (item.last or 0) <= item.first)
                or ((item.partial or item.first > 0) and (item.rows > item.given or item.further > 0))
                or item.request in self.preempt
            )
            if bad:
                raise IntegrityError(f"Plan item {item} breaks the plan's invariants.")
            seen.add(item.request.id)
            deep = item.nodes > 0 and item.reserved(self.passes) > item.depth
            if self.passes > 1 and (deep or item.request.pending > 1 or not item.request.judge_free):
                raise IntegrityError(f"A plan of {self.passes} passes has {item}, which needs a pass of its own.")
        if self.passes > 1 and not straight(item.request for item in self.items):
            raise IntegrityError(f"A plan of {self.passes} passes has requests of unlike layers.")
        if self.rows > row_budget:
            raise IntegrityError(f"Plan has {self.rows} rows, the budget is {row_budget}.")


def straight(requests: Iterable[Request]) -> bool:
    """Can one call draw several tokens for all of these?"""
    every = list(requests)
    return all(each.judge_free for each in every) and len({each.layers for each in every}) <= 1


@dataclass(frozen=True, slots=True)
class Note:
    """One round of one request, as estimators see it: of at most `nodes` asked for, `depth` deep, those offered and
    kept per depth (1, 2, ...)."""

    request: int
    drafter: str
    nodes: int
    depth: int
    offered: list[int]
    kept: list[int]
    part: bool = False
    """Was the drafter part of a merged one? Then the figures are of what it proposed there."""
