"""Drafters: one file per method. The protocol, what it is asked, and what it may see.

A drafter's memory of a request lives in a slot that the engine owns and may drop at any step: losing it may cost
time, never correctness.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from torch import Tensor

from paceline.cache.txn import Txn
from paceline.core.component import DRAFT, TARGET, Component, Embeds, Lends, Model
from paceline.core.forest import Forest, Law
from paceline.core.joined import stretch_at
from paceline.core.plan import Item, Note
from paceline.core.proposer import Proposer
from paceline.core.registry import Need, Registry
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.core.user import UserFn
from paceline.sample.sampler import Sampler

S = TypeVar("S")
NEED_DRAFT = Need(DRAFT, "a draft model (give draft=PATH)")
NEED_PROGRAM = Need(f"{TARGET}:program", "a target that can run some of its layers (by Paceline's own decoder)")
NEED_EXIT = Need(f"{TARGET}:exit", "a target that was trained to end early")
SCRATCH = 32
NEED_FUNCTION = Need("callable", "a function (give drafter=FUNCTION)")


class Ask(NamedTuple):
    """One request to draft for: its place in the plan, its share of rows, and the distribution to draw by.

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

    @property
    def known(self) -> int:
        """Tokens of the text whose slots this step has."""
        return self.txn.base + self.item.given

    def shift(self, place: int) -> int:
        """Place less position of rows from `place` on, as far as nothing was joined behind it; never above `place`."""
        return stretch_at(self.request.layout, place).shift

    def behind(self, group: str) -> bool:
        """Whether to catch up with the text although nothing may be drafted (`Item.behind`)."""
        return self.item.behind(self.txn.base, self.txn.lease.frontier[group])

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
    """What the engine hands to the constructor of a drafter or a verifier."""

    sampler: Sampler
    vocab_size: int
    components: Mapping[str, Component] = field(default_factory=dict)
    """The target, the draft model and every head and judge, by name."""
    callable: UserFn | None = None
    chunk: int = 512
    """Most rows of text in one pass of a draft model, all requests together: those that lag share them."""
    scratch: Sequence[int] = ()
    """Blocks of the target's pool that no request holds, for SCRATCH rows that begin anywhere in a block: what one pass
    writes there is read by no other component."""
    remember: int = 1 << 28
    """Bytes for what drafters remember of all requests together, shared out evenly to those that do."""
    share: float = 1.0
    """Part of the engine's memory and time for learning that is this host's: less where each tenant has its own."""
    settings: Mapping[str, float | str] = field(default_factory=dict)
    """What the user set of drafters: {DRAFTER.NAME: value}."""

    @property
    def lent(self) -> int:
        """Ids beyond the vocabulary that the target takes for probes."""
        target = self.components.get(TARGET)
        return cast(Lends, target).lent if target is not None and "lend" in target.abilities else 0

    def setting(self, drafter: str, name: str) -> float | str:
        """What the user set, else what the drafter's card says."""
        usual = {it.name: it.usual for it in DRAFTERS.card(drafter).settings}[name]
        return self.settings.get(f"{drafter}.{name}", usual)

    def model(self, name: str) -> Model:
        """The component of this name, which computes tokens."""
        return cast(Model, self.components[name])

    def embeds(self, name: str) -> Embeds:
        """The component of this name, which has the ability `embed`."""
        return cast(Embeds, self.components[name])


@dataclass(slots=True)
class View:
    """Read-only window on a step, and the slots of one drafter."""

    slots: dict[int, Any] = field(default_factory=dict)
    asks: Sequence[Ask] = ()
    name: str = ""
    """The drafter's, in `Result.accepted`."""
    advance: Callable[[Ask, str, int], None] = lambda ask, group, length: None
    """Tell the cache, after the step is committed, how many rows of the drafter's own group are complete."""
    results: Sequence[Result] = ()
    """In `learn`, by place: what the step brought."""
    probes: Mapping[int, Tensor] = field(default_factory=dict)
    """In `learn`: {place: raw logits [P, V] of the request's probes, in the order they were drafted; those beyond the
    budget of rows have none}."""
    scores: Callable[[int], Tensor] | None = None
    """In `learn`, by place: processed log-probabilities [N, V] that the N tokens of the result were judged by. A
    run has none."""
    hidden: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """In `learn`: {place: {tap: hidden states [N, H] of the N rows that the step committed}}, in text order: the given
    rows, then the accepted ones. Of the taps on the drafter's card and of its components."""
    held: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """In `draft` and `propose`: {place: {tap: hidden states [N, H] of the committed rows that the drafter's group
    lacks}}. A drafter without a group of its own has those of the last committed row."""
    rows: Sequence[int] = ()
    """In `learn`, by place: candidates that had a row."""
    drafted: Forest = field(default_factory=Forest)
    """In `ahead`: the drafter's forest of this step, with what earlier steps had prepared of it."""
    laid: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """In `ahead`: {place: nodes of `drafted` that have a row in the pass, parents first}."""
    exits: Mapping[int, Tensor] = field(default_factory=dict)
    """In `ahead`, of a drafter whose card names an `exit`: {place: raw logits [1 + N, V] that the target's lower layers
    make of the root and of each of the N nodes of `laid`}."""
    found: list[Note] = field(default_factory=list)
    """What `learn` has to say of others: of the parts of a merged drafter."""

    def accepted(self, ask: Ask) -> list[int]:
        """In `learn`: the accepted nodes, from depth 1 down, as indices into the forest that this drafter made."""
        return self.results[ask.place].accepted.get(self.name, [])

    def slot(self, request: Request, make: Callable[[], S]) -> S:
        """This drafter's state of `request`; created again after the engine dropped it."""
        if request.id not in self.slots:
            self.slots[request.id] = make()
        state: S = self.slots[request.id]
        return state


class Drafter(Protocol):
    """One drafting method. `draft` returns candidates for the asked requests only (fewer than asked, or none,
    is fine); `learn` is called after the step is committed, with the same asks in `view`."""

    def __init__(self, host: Host) -> None: ...

    def draft(self, asks: Sequence[Ask], view: View) -> Forest: ...

    def learn(self, view: View) -> None: ...


class Overlapping(Drafter, Protocol):
    """One whose card says `ahead`: it drafts while the target's pass runs."""

    def ahead(self, asks: Sequence[Ask], view: View) -> None:
        """Add candidates below the nodes of `view.drafted`, or below its root: how the text may go on. A request's
        `item.further` rows are reserved behind those of its nodes. Of the first level one may turn out to be the
        target's own next token: what hangs below it is the request's next draft, and the rest is dropped. A request for
        which nothing is prepared is asked for a draft as usual."""


class Running(Drafter, Protocol):
    """One whose card says `runs`: it may be asked for a proposer in place of drafts."""

    def propose(self, asks: Sequence[Ask], view: View) -> Proposer | None:
        """What drafts for these requests within a run, a text each; None: it has to be asked for drafts."""


class Drafters(Registry[Callable[[Host], Drafter]]):
    """The drafters by name; `a+b` is a merged one, `a|b` a choice."""

    def arms(self) -> tuple[str, ...]:
        """Names that `auto` chooses from, by the drafters' cards: those that need least first."""
        names = dict.fromkeys(arm for _, offers in self._load().values() for arm in offers.auto)
        return tuple(sorted(names, key=lambda arm: (arm.count("+"), len(self.card(arm).needs), arm)))

    def _entry(self, name: str) -> tuple[Callable[[Host], Drafter], Any]:
        if name == "auto":
            plugin, card = super()._entry(name)
            return plugin, replace(card, arms=self.arms())
        if "|" in name:
            from paceline.draft import auto

            return auto.Auto, auto.card(name)
        if "+" not in name:
            return super()._entry(name)
        from paceline.draft.merge import Merged
        from paceline.draft.merge import card as merged

        return partial(Merged, name=name), merged(name)


DRAFTERS = Drafters("drafter", "paceline.draft")
