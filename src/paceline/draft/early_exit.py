"""`early_exit`: the target's own lower layers draft a chain (LayerSkip, Elhoushi et al. 2024, arXiv 2404.16710).

A draft pass runs layers 1 .. l, then the final norm and the head. Its K/V and its hidden states are those of the whole
model: verification takes them (`Forest.entries`) and runs the last drafted token alone through the lower layers. A
round of n drafted tokens so costs n * l + L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.component import TARGET
from paceline.core.forest import Forest, Law
from paceline.core.joined import placed
from paceline.core.program import Entry, exits, inputs
from paceline.core.registry import Offers
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS, NEED_EXIT, NEED_PROGRAM, Ask, Host, View
from paceline.draft.apart import Apart
from paceline.draft.model import Growing, ModelDrafter, SampledChances
from paceline.model import spans

EXITS = 8
"""Most layers to choose an exit from."""
DEFAULT_EXIT_SHARE = 0.5
"""Share of the layers that a draft runs through, where nothing is measured."""


@dataclass(slots=True)
class Leaving(Growing):
    """A draft by the layers below `layer`, and the hidden states that its rows have left with."""

    layer: int = 0
    most: int = 64
    """Tokens, by the drafter's own choice."""
    tau: float = 0.0
    """A draft ends after a distribution whose best token has less probability; 0: it does not."""
    hidden: list[Tensor] = field(default_factory=list)
    taps: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return min(self.most, self.ask.item.chain)

    @property
    def below(self) -> list[str]:
        """Hidden states below the exit that are read."""
        return [tap for tap in self.ask.item.taps if tap in {f"input:{i}" for i in range(self.layer)}]


@DRAFTERS.register(
    "early_exit",
    Offers(
        summary="the target's own lower layers draft a chain",
        laws=frozenset({Law.SHARED_NOISE, Law.SAMPLED}),
        shape="chain",
        nodes=4,
        needs=frozenset({NEED_PROGRAM}),
        stops_early=True,
        auto=("early_exit",),
        auto_needs=frozenset({NEED_EXIT}),
    ),
)
class EarlyExit(ModelDrafter):
    def __init__(self, host: Host) -> None:
        self.sampled = Apart(SampledChances)
        self.model, self.sampler = host.model(TARGET), host.sampler
        self.layers = inputs(self.model.places)
        self.exits = exits(self.layers, EXITS)

    def leaving(self, ask: Ask, view: View) -> Leaving:
        """Where and how far a request's draft runs. `most` 0: not at all."""
        layer = min(self.exits, key=lambda layer: abs(layer - DEFAULT_EXIT_SHARE * self.layers), default=0)
        return Leaving(ask, ask.txn.base, layer=layer, most=64 if layer else 0)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        growing = [self.leaving(ask, view) for ask in asks if ask.item.chain > 0]
        tables: list[Tensor] = []
        while active := [g for g in growing if g.live]:
            self._pass(active, tables)
        forest = Forest(q=torch.cat(tables) if tables else None)
        for g in growing:
            forest.add_chain(g.ask.place, g.tokens, g.ask.law, g.q_rows)
            if g.hidden:
                taps = {tap: torch.cat(states) for tap, states in g.taps.items()}
                forest.entries[g.ask.place] = Entry(g.layer, torch.cat(g.hidden), taps)
        return forest

    def _pass(self, active: Sequence[Growing], tables: list[Tensor]) -> None:
        """One pass of the lower layers, of each text as many as it wants, and the next token of each draft."""
        builder, leaving = RowsBuilder(), [g for g in active if isinstance(g, Leaving)]
        for g in leaving:
            text = [*g.ask.request.tokens[: g.known], *g.tokens]
            slots = g.ask.txn.lease.slots(g.reach, len(text))
            placing = placed(g.ask.request.layout, g.reach)
            slot = g.ask.request.adapter_slot
            builder.add(text[g.reach :], slots, g.ask.txn.table, g.reach, adapter=slot, **placing)
            g.reach = len(text)
        taps = tuple(sorted({tap for g in leaving for tap in g.below}))
        rows = builder.build(self.model.device, taps)
        out = spans.forward(self.model, rows, [None] * len(leaving), [g.layer for g in leaving], narrow=True)
        assert out.leave is not None
        for g, segment in zip(leaving, rows.segments):
            own = slice(segment.start, segment.start + segment.rows)
            g.hidden.append(out.leave[own])
            for tap in g.below:
                g.taps.setdefault(tap, []).append(out.taps[tap][own])
        self._draw(leaving, out.logits, tables)

    def learn(self, view: View) -> None:
        pass
