"""`DrafterPool`: the drafters of an engine. Who can draft, what each is asked, and what each is told."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from paceline.cache.cache import Cache
from paceline.cache.txn import Txn
from paceline.core.component import TARGET
from paceline.core.errors import InputError, RefusalError
from paceline.core.forest import Forest, join
from paceline.core.plan import Item, Note, Plan
from paceline.core.proposer import Proposer
from paceline.core.registry import Offers, law_for, refusal
from paceline.core.request import Request
from paceline.draft import DRAFTERS, Ask, Drafter, Host, Running, View
from paceline.engine.compute import Computed
from paceline.engine.config import EngineConfig
from paceline.engine.drafter_table import DrafterTable
from paceline.engine.hidden import HiddenStates
from paceline.engine.prune import prune
from paceline.engine.recorder import Recorder
from paceline.plan import DrafterFacts
from paceline.plan.cut import trim
from paceline.verify import VERIFIERS

log = logging.getLogger("paceline")
AUTO, NONE = "auto", "none"
MOST_DRAFTERS = 256
"""Drafters and combinations of them that an engine keeps; clients name the latter."""


@dataclass(slots=True)
class Drafts:
    """What the drafters made for a step: the given tokens and the candidates below them; in a run, what will draft in
    it."""

    asks: dict[str, list[Ask]]
    forest: Forest
    names: list[str] = field(default_factory=list)
    """Drafters whose forests were joined, in their order."""
    drafted: list[int] = field(default_factory=list)
    """Rows of each item's draft before any were cut."""
    depths: list[int | None] = field(default_factory=list)
    """Depth to which each item's chain was cut; None: it was not."""
    run: bool = False
    proposer: Proposer | None = None
    drafter: str | None = None
    """Whose proposer it is."""


class DrafterPool:
    """Owns the drafters, their cards and their memories of requests. One thread owns it."""

    def __init__(
        self, host: Host, config: EngineConfig, table: DrafterTable, cache: Cache, clock: Callable[[], float]
    ) -> None:
        self.host, self.config, self.table, self.cache, self.clock = host, config, table, cache, clock
        given = ("callable",) if host.callable is not None else ()
        self.have: Collection[str] = {*(name for name in host.components if name != TARGET), *given}
        self.cards: dict[str, Offers] = {}
        self.drafters: dict[str, Drafter] = {}
        self.slots: dict[str, dict[int, Any]] = {}
        self.errors: list[Exception] = []
        """The latest; how many there were is in `Totals`."""
        self.failed: dict[str, int] = {}
        """Failures of each drafter in this step, which `Totals` has not counted yet."""
        self.seconds: dict[str, float] = {}
        """Seconds of each drafter in this step."""
        self.recorder = Recorder()
        self.hidden = HiddenStates(host.components, config.remember)
        for name, card in [*DRAFTERS.items(), *((arm, DRAFTERS.card(arm)) for arm in DRAFTERS.card(AUTO).arms)]:
            self.enrol(name, card)

    # -- who can draft -----------------------------------------------------------------------------------------------

    def lacks(self, card: Offers) -> bool:
        return any(need.name not in self.have for need in card.needs)

    def enrol(self, name: str, card: Offers | None = None) -> None:
        """Make a drafter known that the engine has what it needs for: a merged one or a choice, for the first time."""
        card = card or DRAFTERS.card(name)
        if name in self.cards or self.lacks(card):
            return
        if len(self.cards) >= MOST_DRAFTERS:
            raise InputError(f"Drafter {name[:80]!r} would be one of too many combinations; use one used before.")
        components = self.host.components
        if card.group is not None and not components[card.group].kv_bytes_per_token:
            card = replace(card, group=None)  # a head of this format that keeps nothing
        self.cards[name] = card
        mine = [components[need.name] for need in card.needs if need.name in components]
        most = self.config.nodes.get(name)
        facts = DrafterFacts(
            nodes=card.nodes if most is None else most,
            chain=card.shape == "chain",
            group=card.group,
            limit=min((it.max_len for it in mine), default=None),
            stops_early=card.stops_early,
            most=most,
            always_asked=card.always_asked,
            runs=card.runs and all("run" in it.abilities for it in (components[TARGET], *mine)),
            taps=tuple(sorted({*card.taps, *(tap for it in mine for tap in it.taps)})),
        )
        self.table.enrol(name, facts)
        self.recorder.enrolled(name, facts)

    def arms(self, drafter: str, verifier: str) -> tuple[str, ...]:
        """The drafters that a choice is made from: of `auto` those that can serve, of a user's own all; () for a
        drafter that is no choice. RefusalError when it cannot serve under this verifier."""
        accepts = VERIFIERS.card(verifier)

        def reason(name: str) -> str | None:
            return refusal(name, DRAFTERS.card(name), verifier, accepts, self.have)

        if why := reason(drafter):
            raise RefusalError(why)
        reasons = {arm: reason(arm) for arm in DRAFTERS.card(drafter).arms}
        if drafter != AUTO and (refused := next(filter(None, reasons.values()), None)):
            raise RefusalError(refused)
        arms = tuple(arm for arm, why in reasons.items() if not why)
        for name in (drafter, *arms):
            self.enrol(name)
        return arms

    def drafter(self, name: str) -> Drafter:
        """Made when it is first asked."""
        if name not in self.drafters:
            self.drafters[name] = DRAFTERS.get(name)(self.host)
        return self.drafters[name]

    def restart(self) -> None:
        """Forget everything that the drafters have learned."""
        self.drafters.clear()
        self.slots.clear()

    # -- a step ------------------------------------------------------------------------------------------------------

    def draft(self, plan: Plan, txns: Sequence[Txn]) -> Drafts:
        """The drafts of a step; in a run, of those alone that only catch up, and the proposer of the others."""
        self.seconds = {}
        asks = self._asks(plan.items, txns)
        run, proposer = self._proposer(plan, asks)
        parts: dict[str, Forest] = {}
        for name, each in list(asks.items()):
            mine = [ask for ask in each if not (run and ask.item.nodes)]
            if not mine:
                continue
            started = self.clock()
            try:
                forest = self.drafter(name).draft(mine, self._view(name, mine))
                forest.check({ask.place for ask in mine}, self.host.vocab_size, self.host.lent)
                parts[name] = prune(forest, plan.items, self.host.sampler)
            except Exception as error:
                del asks[name]  # who has failed has nothing to learn
                self._disown(name, each, error)
            self.book(name, self.clock() - started)
        given = [item.request.tokens[item.request.length :][: item.given] for item in plan.items]
        drafted = self._drafted(plan.items, parts.values())
        left, depths = trim(plan, drafted, lambda name: self.cards[name].shape == "chain")
        deep = [item.depth if depth is None else depth for item, depth in zip(plan.items, depths)]
        forest = join(given, [*parts.values()], left, deep)
        return Drafts(asks, forest, [*parts], drafted, depths, run, proposer, plan.drafter)

    def learn(self, drafts: Drafts, computed: Computed) -> list[Note]:
        """Tell the drafters what came of their drafts; what they found beside it."""
        found: list[Note] = []
        if computed.error is not None and drafts.drafter is not None:
            self._disown(drafts.drafter, drafts.asks.pop(drafts.drafter), computed.error)
        for name, mine in drafts.asks.items():
            view = self._view(name, mine)
            view.results, view.rows = computed.results, computed.rows
            view.probes, view.scores, view.hidden = computed.probes, computed.scores, computed.hidden
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
        """Let the rows whose hidden states were dropped be computed again: they become given rows."""
        for txn, request, length in self.hidden.take_lost():
            self.recorder.advanced(request, TARGET, self.cache.rewind(txn.lease, length))

    def forget(self, request: Request) -> None:
        """Drop what drafters remember of a request that ended or gave up its lease."""
        for slots in self.slots.values():
            slots.pop(request.id, None)
        self.hidden.drop(request.id)

    def _asks(self, items: Sequence[Item], txns: Sequence[Txn]) -> dict[str, list[Ask]]:
        """What each drafter is asked: drafts, or to catch up with a text for which another one drafts."""
        asks: dict[str, list[Ask]] = {}
        for place, (item, txn) in enumerate(zip(items, txns)):
            if item.drafter == NONE and not item.request.arms:
                continue
            accepts, kept = VERIFIERS.card(item.verifier), set[str | None]()
            if item.drafter != NONE:
                card = self.cards[item.drafter]
                asks.setdefault(item.drafter, []).append(Ask(place, item, law_for(card, accepts), txn))
                kept.add(card.group)
            for keeper in item.request.arms:
                card = self.cards[keeper]
                if card.group is None or card.group in kept or card.group not in txn.lease.frontier:
                    continue
                kept.add(card.group)
                if item.behind(txn.base, txn.lease.frontier[card.group]):
                    ask = Ask(place, item._replace(nodes=0), law_for(card, accepts), txn)
                    asks.setdefault(keeper, []).append(ask)
        return asks

    def _proposer(self, plan: Plan, asks: dict[str, list[Ask]]) -> tuple[bool, Proposer | None]:
        """Is the step a run, and what drafts in it? A drafter without a proposer is asked for drafts, for one pass."""
        name = plan.drafter
        if plan.passes == 1 or name is None:
            return plan.passes > 1, None
        mine = [ask for ask in asks[name] if ask.item.nodes]
        try:
            proposer = cast(Running, self.drafter(name)).propose(mine, self._view(name, mine))
        except Exception as error:
            self._disown(name, asks.pop(name), error)
            return True, None
        return proposer is not None, proposer

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
        if self.table.entries[name].taps:
            view.held = {a.place: self.hidden.of(a.request.id, a.txn, self.cards[name].group) for a in asks}
        return view

    def _advance(self, ask: Ask, group: str, length: int) -> None:
        self.cache.advance(ask.txn.lease, group, length)
        self.cache.seal(ask.txn.lease)
        self.recorder.advanced(ask.request, group, length)

    def book(self, name: str, seconds: float) -> None:
        """Count seconds of this step as the drafter's."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _disown(self, name: str, asks: Sequence[Ask], error: Exception) -> None:
        """A drafter that fails costs its requests their speed, never their text: they go on plainly."""
        log.warning("Drafter %r failed (%r); its %d requests go on without it.", name, error, len(asks))
        self.errors = [*self.errors[-15:], error]
        self.failed[name] = self.failed.get(name, 0) + 1
        self.table.policy.failed(name)
        self.recorder.failed(name, [ask.request for ask in asks])
        for ask in asks:
            if not ask.request.arms:
                ask.request.drafter = NONE
            self.slots.get(name, {}).pop(ask.request.id, None)
