"""`DrafterPool`: the drafters of an engine: which can draft, what each is asked for, and what each learns."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

from torch import Tensor

from paceline.cache.cache import Cache
from paceline.cache.txn import Txn
from paceline.core.component import TARGET, Model, keeps_rows
from paceline.core.errors import InputError, RefusalError
from paceline.core.forest import NO_ROW, Forest, join
from paceline.core.plan import Item, Note, Plan
from paceline.core.program import Entry, exits, inputs, under
from paceline.core.proposer import Proposer
from paceline.core.registry import Offers, law_for, refusal
from paceline.core.request import Request
from paceline.draft import DRAFTERS, Ask, Drafter, Host, Overlapping, Running, View
from paceline.draft.apart import MOST_TENANTS
from paceline.engine.adapters import ADAPTER_KEY
from paceline.engine.ahead import Windows, plant, with_rows
from paceline.engine.compute import Computed
from paceline.engine.config import EngineConfig
from paceline.engine.draft_turns import DraftTurns
from paceline.engine.drafter_table import DrafterTable
from paceline.engine.hidden import HiddenStates
from paceline.engine.own_drafts import OwnHead
from paceline.engine.placement import NO_PLACEMENT as SERIAL
from paceline.engine.prune import prune
from paceline.engine.recorder import Recorder
from paceline.plan import DrafterFacts
from paceline.verify import VERIFIERS

log = logging.getLogger("paceline")
AUTO, PLAIN_DRAFTER = "auto", "none"
TENANT = "\n"
"""Between a drafter's name and the tenant that it is kept for."""
MOST_DRAFTERS = 256
"""Maximum number of drafters and combinations that an engine keeps; clients name the combinations."""


@dataclass(slots=True)
class Drafts:
    """What the drafters made for a step: the given tokens and the candidates below them; in a run, what will draft in
    it."""

    asks: dict[str, list[Ask]]
    forest: Forest
    names: list[str] = field(default_factory=list)
    """Drafters whose forests were joined, in their order."""
    run: bool = False
    proposer: Proposer | None = None
    drafter: str | None = None
    """Drafter that `proposer` belongs to."""
    entries: list[Entry | None] = field(default_factory=list)
    """Rows of each item that have run through lower layers of the target while they were drafted."""
    forests: dict[str, Forest] = field(default_factory=dict)
    """{drafter: what it has drafted, in its own indices}"""
    grown: dict[str, int] = field(default_factory=dict)
    """Drafter -> nodes that its forest had before it drafted while the pass ran."""
    beside: float = 0.0
    """Seconds that drafters took while the pass ran."""
    exit: float = 0.0
    """Share of the target's layers after which one of them reads what these layers make of the text."""


class DrafterPool:
    """The drafters of an engine, with their cards and what they remember of requests. One thread owns the pool."""

    def __init__(
        self, host: Host, config: EngineConfig, table: DrafterTable, cache: Cache, clock: Callable[[], float]
    ) -> None:
        self.host, self.config, self.table, self.cache, self.clock = host, config, table, cache, clock
        given = ("callable",) if host.callable is not None else ()
        able = (f"{name}:{ability}" for name, it in host.components.items() for ability in it.abilities)
        self.have: Collection[str] = {*(name for name in host.components if name != TARGET), *able, *given}
        self.cards: dict[str, Offers] = {}
        self.drafters: dict[str, Drafter] = {}
        self.slots: dict[str, dict[int, Any]] = {}
        self.heads: Mapping[str, OwnHead] = {}
        """By the digests of adapters: heads that draft for them alone."""
        self.windows, self.turns = Windows(), DraftTurns(config.drafter)
        self.errors: list[Exception] = []
        """The latest; how many there were is in `Totals`."""
        self.failed: dict[str, int] = {}
        """Failures of each drafter in this step, which `Totals` has not counted yet."""
        self.seconds: dict[str, float] = {}
        """Seconds of each drafter in this step."""
        self.reads: dict[str, int] = {}
        """`Times.reads` of this step."""
        self.overlaps = config.overlap != SERIAL
        self.recorder = Recorder()
        self.hidden = HiddenStates(host.components, config.remember)
        for name, card in [*DRAFTERS.items(), *((arm, DRAFTERS.card(arm)) for arm in DRAFTERS.card(AUTO).arms)]:
            self.enrol(name, card)

    # -- which can draft ---------------------------------------------------------------------------------------------

    def lacks(self, card: Offers) -> bool:
        return any(need.name not in self.have for need in card.needs)

    def enrol(self, name: str, card: Offers | None = None) -> None:
        """Register a drafter whose needs the engine meets: a merged one or a choice, on first use."""
        card = card or DRAFTERS.card(name)
        if name in self.cards or self.lacks(card):
            return
        if len(self.cards) >= MOST_DRAFTERS:
            raise InputError(f"Drafter {name[:80]!r} would be one of too many combinations; use one used before.")
        components = self.host.components
        if card.group is not None and not keeps_rows(components[card.group]):
            card = replace(card, group=None)  # a head of this format that keeps nothing
        self.cards[name] = card
        mine = [components[need.name] for need in card.needs if need.name in components]
        places = cast(Model, components[TARGET]).places
        shadows = tuple(f"input:{layer}" for layer in exits(inputs(places), card.exits)) if card.exits else ()
        most = self.config.nodes.get(name)
        facts = DrafterFacts(
            nodes=card.nodes if most is None else most,
            chain=card.shape == "chain",
            group=card.group,
            limit=min((it.max_len for it in mine), default=None),
            stops_early=card.stops_early,
            most=most,
            always_asked=card.always_asked,
            runs=card.runs if all("run" in it.abilities for it in (components[TARGET], *mine)) else False,
            taps=tuple(sorted({*card.taps, *shadows, *(tap for it in mine for tap in it.taps)})),
            ahead=card.ahead,
        )
        self.table.enrol(name, facts)
        self.recorder.enrolled(name, facts)

    def arms(self, drafter: str, verifier: str) -> tuple[str, ...]:
        """Drafters of a choice: for `auto` those that can serve, for a user's own choice all; () for a drafter that is
        no choice. RefusalError when it cannot serve under this verifier."""
        accepts = VERIFIERS.card(verifier)

        def reason(name: str) -> str | None:
            card = DRAFTERS.card(name)
            if card.ahead and drafter == AUTO and not self.overlaps:
                return f"Drafter {name!r} drafts while the target's pass runs; choose an overlap for that."
            return refusal(name, card, verifier, accepts, self.have)

        if why := reason(drafter):
            raise RefusalError(why)
        reasons = {arm: reason(arm) for arm in DRAFTERS.card(drafter).arms}
        if drafter != AUTO and (refused := next(filter(None, reasons.values()), None)):
            raise RefusalError(refused)
        shy = {arm for arm in reasons if any(need.name not in self.have for need in DRAFTERS.card(arm).auto_needs)}
        arms = tuple(arm for arm, why in reasons.items() if not why and not (drafter == AUTO and arm in shy))
        for name in (drafter, *arms):
            self.enrol(name)
        return arms

    def drafter(self, name: str) -> Drafter:
        """Made when it is first asked."""
        if name not in self.drafters:
            own, host, most = kind(name), self.host, MOST_TENANTS
            if own != name:
                if (head := self.heads.get(name.rpartition(ADAPTER_KEY)[2])) is not None:
                    host = replace(host, components={**host.components, head.method: head.component})
                    most = max(most, len(self.heads))
                host = replace(host, remember=host.remember // MOST_TENANTS, share=1 / MOST_TENANTS)
                like = [known for known in self.drafters if known != own and kind(known) == own]
                for known in like[: max(0, len(like) + 1 - most)]:
                    del self.drafters[known]
                    self.slots.pop(known, None)
            self.drafters[name] = DRAFTERS.get(own)(host)
        elif TENANT in name:
            self.drafters[name] = self.drafters.pop(name)  # the latest stands last
        return self.drafters[name]

    def whose(self, name: str, request: Request) -> str:
        """The name under which this drafter is kept for the request's tenant, or for an adapter with a head."""
        tenant, card, head = request.extra_key, self.cards[name], self.heads.get(request.adapter)
        apart = card.learns or (head is not None and any(need.name == head.method for need in card.needs))
        return f"{name}{TENANT}{tenant}" if tenant and apart else name

    def take_heads(self, heads: Mapping[str, OwnHead]) -> None:
        """These are the heads of adapters from now on, by their digests."""
        other = {digest for digest in {*self.heads, *heads} if self.heads.get(digest) is not heads.get(digest)}
        self.heads = heads
        for name in [it for it in self.drafters if it.rpartition(ADAPTER_KEY)[2] in other]:
            del self.drafters[name]
            self.slots.pop(name, None)

    def restart(self) -> None:
        """Forget everything that the drafters have learned."""
        self.drafters.clear()
        self.slots.clear()
        self.windows.held.clear()

    # -- a step ------------------------------------------------------------------------------------------------------

    def draft(self, plan: Plan, txns: Sequence[Txn]) -> Drafts:
        """The drafts of a step; in a run, of those alone that only catch up, and the proposer of the others."""
        self.seconds, self.reads = {}, {}
        items, asks = plan.items, self._asks(plan.items, txns)
        run, runner, proposer = self._proposer(plan, asks)
        self.turns.begin(plan.items)
        if not run:  # one pass, and no more rows than are reserved for a run's chains, or than there is time for
            items = [self._within(it, it.nodes if plan.passes == 1 else it.reserved(plan.passes)) for it in plan.items]
            if any(mine is not planned for mine, planned in zip(items, plan.items)):
                asks = self._asks(items, txns)
        parts, forests = dict[str, Forest](), dict[str, Forest]()
        for name, each in list(asks.items()):
            mine = [ask for ask in each if not (run and ask.item.nodes)]
            if not mine:
                continue
            self._count_reads(name, mine)
            started = self.clock()
            try:
                with self.host.sampler.turns.guessing():
                    forests[name] = forest = self._drafted_by(name, mine)
                    forest.check({ask.place for ask in mine}, self.host.vocab_size, self.host.lent)
                    parts[name] = prune(forest, plan.items, self.host.sampler)
            except Exception as error:
                del asks[name]  # a drafter that failed has nothing to learn
                self._disown(name, each, error)
            self.book(name, self.clock() - started)
        given = [item.request.tokens[item.request.length :][: item.given] for item in plan.items]
        rows = self._drafted(items, parts.values())
        forest = join(given, [*parts.values()], rows, [item.depth for item in plan.items])
        entries = entered(plan, forest, [*parts.values()])
        drafts = Drafts(asks, forest, [*parts], run, proposer, runner, entries, forests)
        drafts.exit = max((self.cards[kind(name)].exit for name in self._ahead(drafts)), default=0.0)
        return drafts

    def _within(self, item: Item, most: int) -> Item:
        """The item with at most `most` nodes; without a draft where that, or its masks, would take too long."""
        nodes = min(item.nodes, most)
        if nodes and self.turns.affords(item) and self.host.sampler.affords(item.request, 1 + nodes):
            return item if nodes == item.nodes else item._replace(nodes=nodes)
        return item._replace(nodes=0, further=0) if item.nodes or item.further else item

    def _drafted_by(self, name: str, asks: Sequence[Ask]) -> Forest:
        """A drafter's forest: what it had prepared, and of the other requests what it drafts now."""
        ready = {ask.place: w for ask in asks if ask.item.nodes and (w := self.windows.take(name, ask.request))}
        rest = [ask for ask in asks if ask.place not in ready]
        forest = self.drafter(name).draft(rest, self._view(name, rest)) if rest else Forest()
        for place, window in ready.items():
            plant(forest, place, window)
        return forest

    def _ahead(self, drafts: Drafts) -> dict[str, list[Ask]]:
        """Drafters that draft while the pass runs -> the requests that they draft for."""
        able = [name for name in drafts.asks if name in drafts.forests and self.cards[kind(name)].ahead]
        found = {name: [ask for ask in drafts.asks[name] if ask.item.further] for name in able}
        return {name: asks for name, asks in found.items() if asks}

    def ahead(self, drafts: Drafts, exits: Mapping[int, Tensor]) -> None:
        """Let the drafters work while the target's pass runs."""
        for name, mine in self._ahead(drafts).items():
            view, forest, started = self._view(name, mine), drafts.forests[name], self.clock()
            view.drafted, view.exits = forest, exits
            view.laid = with_rows(drafts.forest, drafts.names.index(name))
            before = len(forest)
            try:
                with self.host.sampler.turns.guessing():
                    cast(Overlapping, self.drafter(name)).ahead(mine, view)
                forest.check({ask.place for ask in drafts.asks[name]}, self.host.vocab_size, self.host.lent)
                drafts.grown[name] = before
            except Exception as error:
                self._disown(name, drafts.asks.pop(name), error)
            drafts.beside += self.clock() - started
            self.book(name, self.clock() - started)

    def learn(self, drafts: Drafts, computed: Computed) -> list[Note]:
        """Report to the drafters which drafts were accepted. Returns what they found in addition."""
        found: list[Note] = []
        if computed.error is not None and drafts.drafter is not None:
            self._disown(drafts.drafter, drafts.asks.pop(drafts.drafter), computed.error)
        for name, mine in drafts.asks.items():
            view = self._view(name, mine)
            view.results, view.rows = computed.results, computed.rows
            view.probes, view.scores, view.hidden = computed.probes, computed.scores, computed.hidden
            for ask in mine if name in drafts.grown else ():
                self.windows.keep(name, ask, drafts.forests[name], view.accepted(ask), computed.results[ask.place])
            started = self.clock()
            try:
                self.drafter(name).learn(view)
            except Exception as error:
                self._disown(name, mine, error)
            self.book(name, self.clock() - started)
            found += view.found
        self._recompute()
        return found

    def keep(self, plan: Plan, txns: Sequence[Txn], computed: Computed) -> None:
        """After the commit: hold the hidden states that drafters will still need."""
        for place, states in computed.hidden.items():
            self.hidden.keep(plan.items[place].request, txns[place], states)

    def _recompute(self) -> None:
        """Recompute the rows whose hidden states were dropped: they become given rows."""
        for txn, request, length in self.hidden.take_lost():
            self.recorder.advanced(request, TARGET, self.cache.rewind(txn.lease, length))

    def forget(self, request: Request) -> None:
        """Drop what drafters remember of a request that ended or gave up its lease."""
        for slots in self.slots.values():
            slots.pop(request.id, None)
        self.windows.forget(request.id, self.cards)
        self.hidden.drop(request.id)

    def _asks(self, items: Sequence[Item], txns: Sequence[Txn]) -> dict[str, list[Ask]]:
        """What each drafter is asked: drafts, or to catch up with a text for which another one drafts."""
        asks: dict[str, list[Ask]] = {}
        for place, (item, txn) in enumerate(zip(items, txns)):
            if item.partial or (item.drafter == PLAIN_DRAFTER and not item.request.arms):
                continue
            accepts, kept = VERIFIERS.card(item.verifier), set[str | None]()
            if item.drafter != PLAIN_DRAFTER:
                card = self.cards[item.drafter]
                asks.setdefault(self.whose(item.drafter, item.request), []).append(
                    Ask(place, item, law_for(card, accepts), txn)
                )
                kept.add(card.group)
            for keeper in item.request.arms:
                card = self.cards[keeper]
                if card.group is None or card.group in kept or card.group not in txn.lease.frontier:
                    continue
                kept.add(card.group)
                late = item.behind(txn.base, txn.lease.frontier[card.group])
                if late and not self.table.waits(item.request, card.group):
                    ask = Ask(place, item._replace(nodes=0), law_for(card, accepts), txn)
                    asks.setdefault(self.whose(keeper, item.request), []).append(ask)
        return asks

    def _proposer(self, plan: Plan, asks: dict[str, list[Ask]]) -> tuple[bool, str | None, Proposer | None]:
        """Decide whether the step is a run, who drafts in it and with what. A drafter without a proposer drafts for one
        pass, and so do two of one kind: the drafter of an adapter's own head next to that of the head of all."""
        if plan.passes == 1 or plan.drafter is None:
            return plan.passes > 1, plan.drafter, None
        name, *others = (name for name, each in asks.items() if any(ask.item.nodes for ask in each))
        if others:
            return False, None, None
        mine = [ask for ask in asks[name] if ask.item.nodes]
        try:
            proposer = cast(Running, self.drafter(name)).propose(mine, self._view(name, mine))
        except Exception as error:
            self._disown(name, asks.pop(name), error)
            return True, name, None
        return proposer is not None, name, proposer

    @staticmethod
    def _drafted(items: Sequence[Item], parts: Collection[Forest]) -> list[int]:
        """Rows that each item's draft would have."""
        drafted = [0] * len(items)
        for part in parts:
            for place, _ in set(zip(part.request, part.row)):
                drafted[place] = min(drafted[place] + 1, items[place].nodes)
        return drafted

    def _view(self, name: str, asks: Sequence[Ask]) -> View:
        view = View(self.slots.setdefault(name, {}), asks, name, self._advance)
        if self.table.entries[kind(name)].taps:
            view.held = {a.place: self.hidden.of(a.request.id, a.txn, self.cards[kind(name)].group) for a in asks}
        return view

    def _advance(self, ask: Ask, group: str, length: int) -> None:
        self.cache.advance(ask.txn.lease, group, length)
        self.cache.seal(ask.txn.lease)
        self.recorder.advanced(ask.request, group, length)

    def _count_reads(self, name: str, asks: Sequence[Ask]) -> None:
        """Count the rows that a drafter is about to read of texts that it does not draft for."""
        group = self.cards[kind(name)].group
        for ask in asks:
            if group is not None and not ask.item.nodes and group in ask.txn.lease.frontier:
                rows = ask.txn.base + ask.item.given - ask.txn.lease.frontier[group]
                self.reads[kind(name)] = self.reads.get(kind(name), 0) + rows

    def book(self, name: str, seconds: float) -> None:
        """Count seconds of this step as the drafter's."""
        self.seconds[kind(name)] = self.seconds.get(kind(name), 0.0) + seconds

    def _disown(self, name: str, asks: Sequence[Ask], error: Exception) -> None:
        """A drafter that fails costs its requests their speed, never their text: they go on plainly."""
        own = kind(name)
        log.warning("Drafter %r failed (%r); its %d requests continue without it.", own, error, len(asks))
        self.errors = [*self.errors[-15:], error]
        self.failed[own] = self.failed.get(own, 0) + 1
        self.table.failed(own)
        self.recorder.failed(own, [ask.request for ask in asks])
        for ask in asks:
            if not ask.request.arms:
                ask.request.drafter = PLAIN_DRAFTER
            self.slots.get(name, {}).pop(ask.request.id, None)
            self.windows.forget(ask.request.id, (name,))


def kind(name: str) -> str:
    """The drafter that is kept under this name."""
    return name.partition(TENANT)[0]


def entered(plan: Plan, forest: Forest, parts: Sequence[Forest]) -> list[Entry | None]:
    """The rows of each item that need not begin at the target's first layer: where its draft in the joined forest is
    the chain that its drafter computed, or the beginning of it, and every hidden state that is read is there."""
    out: list[Entry | None] = [None] * len(plan.items)
    for number, part in enumerate(parts):
        drafts = part.by_request(len(plan.items)) if part.entries else []
        joined = forest.by_request(len(plan.items)) if part.entries else []
        for place, entry in part.entries.items():
            item, nodes = plan.items[place], joined[place]
            own, below = nodes[item.given :], [tap for tap in item.taps if under(tap, entry.layer)]
            sources = [(number, node) for node in drafts[place]]
            chain = all(forest.parent[node] == above for above, node in pairwise(nodes[item.given - 1 :]))
            if not chain or [forest.source[node] for node in own] != sources[: len(own)] or {*below} - {*entry.taps}:
                continue
            rows = item.given + sum(forest.row[node] != NO_ROW for node in own)
            taps = {tap: entry.taps[tap][:rows] for tap in below}
            out[place] = Entry(entry.layer, entry.hidden[:rows], taps)
    return out
