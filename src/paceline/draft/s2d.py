"""`s2d`: one draft model whose first layers draft by themselves where they are sure (S2D, Kavehzadeh et al. 2024, arXiv
2407.01955, section 3.2). Nothing of it is made for one target, so it serves any of the vocabulary.

Each token runs through the layers up to the first exit whose best token has at least the exit's threshold. Deeper
layers then lack the K/V of its row. They are *deferred*: the row's hidden state at the exit is kept, and when a later
token goes deeper, all rows that these layers lack go through them in one pass. The group's frontier is what the deepest
stage has; what only upper stages have is remembered in a slot, and computed again where the slot was dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from paceline.core.component import DRAFT
from paceline.core.forest import Forest, Law
from paceline.core.program import WHOLE, Program
from paceline.core.registry import Offers
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS, NEED_DRAFT, Ask, Host, View
from paceline.draft.exits import NEED_EXITS, Exits

EXIT_TAP = "pre_norm"


@dataclass(slots=True)
class Ragged:
    """A request's K/V in the draft model. reach[s]: rows that stage s has, never more than the stage before;
    waiting[s]: hidden states [reach[s - 1] - reach[s], H] of the rows that it lacks."""

    reach: list[int]
    waiting: list[Tensor] = field(default_factory=list)

    @classmethod
    def at(cls, rows: int, stages: int) -> "Ragged":
        return cls([rows] * stages, [torch.empty(0, 0)] * stages)

    def crop(self, rows: int) -> None:
        """Forget everything after the first `rows` rows."""
        self.reach = [min(reach, rows) for reach in self.reach]
        for s in range(1, len(self.reach)):
            self.waiting[s] = self.waiting[s][: self.reach[s - 1] - self.reach[s]]


@DRAFTERS.register(
    "s2d",
    Offers(
        summary="a small model drafts, each token with as few layers as it is sure with",
        laws=frozenset({Law.SHARED_NOISE, Law.POINT}),
        shape="chain",
        nodes=5,
        needs=frozenset({NEED_DRAFT, NEED_EXITS}),
        group=DRAFT,
    ),
)
class S2DDrafter:
    def __init__(self, host: Host) -> None:
        self.model, self.sampler, self.chunk = host.model(DRAFT), host.sampler, host.chunk
        self.exits = cast(Exits, host.components["exits"])
        ends = [0, *self.exits.layers]
        self.stages = [Program(first, last) for first, last in pairwise(ends)]
        if "program" not in self.model.abilities:  # it cannot stop early
            self.stages = [WHOLE]

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            if ask.item.nodes or ask.behind(DRAFT):
                forest.add_chain(ask.place, self.chain(ask, view), ask.law)
        return forest

    def chain(self, ask: Ask, view: View) -> list[int]:
        frontier, stages = ask.txn.lease.frontier[DRAFT], len(self.stages)
        kept = view.slot(ask.request, lambda: Ragged.at(frontier, stages))
        if kept.reach[-1] != frontier or kept.reach[0] > ask.known:
            kept = view.slots[ask.request.id] = Ragged.at(frontier, stages)
        text, tokens = ask.request.tokens[: ask.known], list[int]()
        self.catch_up(ask, kept, text)
        while len(tokens) < ask.item.chain:
            token = self.next(ask, kept, text, tokens)
            if token < 0:
                break
            tokens.append(token)
        return tokens

    def catch_up(self, ask: Ask, kept: Ragged, text: list[int]) -> None:
        """Text of which no stage has anything, all but its last token, goes through all layers, as a prompt does."""
        if len(text) - kept.reach[0] < 2:
            return
        self.deepen(ask, kept, text, range(1, len(self.stages)))
        while kept.reach[0] < len(text) - 1:
            start = kept.reach[0]
            end = min(start + self.chunk, len(text) - 1)
            self.run(ask, text, start, end, WHOLE)
            kept.reach = [end] * len(self.stages)

    def deepen(self, ask: Ask, kept: Ragged, text: list[int], stages: Sequence[int]) -> None:
        for s in stages:
            if len(kept.waiting[s]):
                self.stage(ask, kept, text, s)

    def next(self, ask: Ask, kept: Ragged, text: list[int], tokens: list[int]) -> int:
        """The next token of a draft; -1 where every token is masked."""
        whole, refs = [*text, *tokens], [(ask.request, tuple(tokens))]
        for s in range(len(self.stages)):
            scores = self.sampler.scores(refs, self.stage(ask, kept, whole, s))
            if s == len(self.stages) - 1 or float(scores.softmax(-1).max()) >= self.exits.thresholds[s]:
                break
        self.exits.counts[s] += 1
        if ask.law is Law.SHARED_NOISE and not self.sampler.greedy(ask.request):
            return self.sampler.draw(refs, scores, [ask.key(len(tokens) + 1)])[0]
        best = int(scores[0].argmax())
        return best if float(scores[0, best]) > float("-inf") else -1

    def stage(self, ask: Ask, kept: Ragged, text: list[int], s: int) -> Tensor:
        """All rows that stage s lacks and the stage before has (the first: the text's); logits [1, V] of the last."""
        start, end = kept.reach[s], len(text) if s == 0 else kept.reach[s - 1]
        entering = kept.waiting[s] if s else None
        logits, leave = self.run(ask, text, start, end, self.stages[s], entering)
        kept.reach[s] = end
        if s:
            kept.waiting[s] = kept.waiting[s][:0]
        if s + 1 < len(self.stages):
            before = kept.waiting[s + 1]
            kept.waiting[s + 1] = torch.cat((before, leave)) if len(before) else leave
        return logits

    def run(
        self, ask: Ask, text: list[int], start: int, end: int, program: Program, entering: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(logits of the last row, hidden states of all behind the last layer that ran)."""
        builder = RowsBuilder()
        builder.add(
            text[start:end],
            ask.txn.lease.slots(start, end),
            ask.txn.table,
            start,
            shift=ask.shift(start),
            adapter=ask.request.adapter_slot,
        )
        taps = (EXIT_TAP,) if EXIT_TAP in self.model.places else ()
        rows = builder.build(self.model.device, taps=taps, program=program)
        rows.hidden = entering
        out = self.model.forward(rows)
        return out.logits, out.taps.get(EXIT_TAP, torch.empty(0, 0))

    def learn(self, view: View) -> None:
        for ask in view.asks:
            kept = view.slots.get(ask.request.id)
            if kept is not None:
                kept.crop(min(ask.known + len(view.accepted(ask)), ask.txn.lease.length))
                view.advance(ask, DRAFT, kept.reach[-1])
