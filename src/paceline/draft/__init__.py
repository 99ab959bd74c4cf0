"""Drafters: one file per method. The protocol, what it is asked, and what it may see.

A drafter's memory of a request lives in a slot that the engine owns and may drop at any step: losing it may cost
time, never correctness.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from paceline.cache.txn import Txn
from paceline.core.forest import Forest, Law
from paceline.core.plan import Item, Note
from paceline.core.registry import Registry
from paceline.core.request import Request
from paceline.core.rows import Chains, Lookups, Model
from paceline.core.verdict import Verdict
from paceline.sample.sampler import Sampler

S = TypeVar("S")
Proposal = Sequence[int] | Sequence[tuple[int, int]]
UserFn = Callable[[list[int], int], Proposal]
LAG = 64
"""Rows by which a drafter's K/V may lag the text while others draft: blocks are shared once it has caught up."""


def behind(item: Item, txn: Txn, group: str) -> bool:
    """Is it time to catch up with the text, though nothing may be drafted? At a prompt's end, or now and then."""
    return item.given > 1 or txn.base - txn.lease.frontier[group] > LAG


class Ask(NamedTuple):
    """One request to draft for: its place in the plan, its share of rows, and the law to draw by.

    `txn` holds the reserved slots: the root's, then one per node. `item.nodes` may be 0 (a chunk of prompt): a
    drafter with a cache of its own may use the step to catch up.
    """

    place: int
    item: Item
    law: Law
    txn: Txn

    @property
    def request(self) -> Request:
        return self.item.request

    def behind(self, group: str) -> bool:
        """As the function, for this request."""
        return behind(self.item, self.txn, group)

    def key(self, depth: int, rank: int = 0) -> int:
        """Noise row for a candidate at `depth` (1, 2, ...): the target's own under `exact`, else a private one, one for
        each `rank`."""
        request = self.request
        index = request.index(depth - 1)
        if self.law is Law.SHARED_NOISE:
            return request.target_noise.key(index)
        return request.draft_noise.key(index, request.round, rank)


@dataclass(slots=True)
class Host:
    """What the engine hands to a drafter's constructor."""

    sampler: Sampler
    vocab_size: int
    draft: Model | None = None
    callable: UserFn | None = None
    chunk: int = 512
    """Most rows of text in one pass of a draft model, all requests together: those that lag share them."""
    remember: int = 1 << 28
    """Bytes for what drafters remember of all requests together, shared out evenly to those that do."""


@dataclass(slots=True)
class View:
    """Read-only window on a step, and the slots of one drafter."""

    slots: dict[int, Any] = field(default_factory=dict)
    asks: Sequence[Ask] = ()
    advance: Callable[[Ask, str, int], None] = lambda ask, group, length: None
    """Tell the cache, after the step is committed, how many rows of the drafter's own group are complete."""
    probes: Mapping[int, Tensor] = field(default_factory=dict)
    """In `learn`: {place: raw logits [P, V] of the request's probes, in the order they were drafted; those beyond the
    budget of rows have none}."""
    rows: Sequence[int] = ()
    """In `learn`, by place: candidates that had a row."""
    reach: Mapping[int, int] = field(default_factory=dict)
    """In `learn`, after a run: {place: rows of the drafter's own K/V that are complete}."""
    found: list[Note] = field(default_factory=list)
    """What `learn` has to say of others: of the parts of a merged drafter."""

    def slot(self, request: Request, make: Callable[[], S]) -> S:
        """This drafter's memory of `request`; made anew when the engine dropped it."""
        if request.id not in self.slots:
            self.slots[request.id] = make()
        state: S = self.slots[request.id]
        return state


class Drafter(Protocol):
    """One drafting method. `draft` returns candidates for the asked requests only (fewer than asked, or none,
    is fine); `learn` is called after the step is committed, with the same asks in `view`."""

    def __init__(self, host: Host) -> None: ...

    def draft(self, asks: Sequence[Ask], view: View) -> Forest: ...

    def learn(self, view: View, verdict: Verdict) -> None: ...


class Running(Drafter, Protocol):
    """One whose card says `runs`: it may be asked for `chains` in place of drafts. Its `learn` finds `view.reach`, of a
    draft model."""

    def chains(self, asks: Sequence[Ask], view: View) -> Chains | Lookups | None:
        """How a run is to draft for these requests, one text each; None: it has to be asked for drafts."""


class Drafters(Registry[Callable[[Host], Drafter]]):
    """The drafters by name; `a+b` is a merged one, `a|b` a choice."""

    def _entry(self, name: str) -> tuple[Callable[[Host], Drafter], Any]:
        if "|" in name:
            from paceline.draft import auto

            return auto.Auto, auto.card(name)
        if "+" not in name:
            return super()._entry(name)
        from paceline.draft.merge import Merged, card

        return partial(Merged, name=name), card(name)


DRAFTERS = Drafters("drafter", "paceline.draft")
