"""`s2d`: one draft model whose first layers draft by themselves where they are sure (S2D, Kavehzadeh et al. 2024, arXiv
2407.01955, section 3.2). Nothing of it is made for one target, so it serves any of the vocabulary.

Each token runs through the layers up to the first exit whose best token has at least the exit's threshold. Deeper
layers then lack the K/V of its row. They are *deferred*: the row's hidden state at the exit is kept, and when a later
token goes deeper, all rows that these layers lack go through them in one pass. The group's frontier is what the deepest
stage has; what only upper stages have is remembered in a slot, and computed again where the slot was dropped. All
requests share the passes of a stage.

`s2d_tree` is the paper's tree (SD2): `topk`'s, each level of which ends at the first exit that is sure of one of the
level's nodes. A level lays all nodes of its tree, so none of them is deferred; text goes through all layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from paceline.core.component import DRAFT, Model
from paceline.core.forest import Forest, Law
from paceline.core.program import WHOLE, Program
from paceline.core.registry import Offers
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS, NEED_DRAFT, Ask, Host, View
from paceline.draft.exits import NEED_EXITS, Exits
from paceline.draft.topk import TopK
from paceline.draft.tree import Tree, offers

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


@dataclass(slots=True)
class SortedDraft:
    """State of a request's draft while it grows."""

    ask: Ask
    kept: Ragged
    text: list[int]
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    """Every token is masked."""

    @property
    def live(self) -> bool:
        return not self.ended and len(self.tokens) < self.ask.item.chain

    @property
    def missing(self) -> int:
        """Rows of the text that no stage has."""
        return len(self.text) - self.kept.reach[0]


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
        self.stages = stages_of(self.model, self.exits)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        drafts = [self.begun(ask, view) for ask in asks if ask.item.nodes or ask.behind(DRAFT)]
        self.catch_up(drafts)
        while active := [it for it in drafts if it.live]:
            self.next(active)
        for it in drafts:
            forest.add_chain(it.ask.place, it.tokens, it.ask.law)
        return forest

    def begun(self, ask: Ask, view: View) -> "SortedDraft":
        frontier, stages = ask.txn.lease.frontier[DRAFT], len(self.stages)
        kept = view.slot(ask.request, lambda: Ragged.at(frontier, stages))
        if kept.reach[-1] != frontier or kept.reach[0] > ask.known:
            kept = view.slots[ask.request.id] = Ragged.at(frontier, stages)
        return SortedDraft(ask, kept, ask.request.tokens[: ask.known])

    def catch_up(self, drafts: Sequence["SortedDraft"]) -> None:
        """Text of which no stage has anything, all but its last token, goes through all layers, as a prompt does."""
        late = [it for it in drafts if it.missing > 1]
        for s in range(1, len(self.stages)):
            if waiting := [it for it in late if len(it.kept.waiting[s])]:
                self.stage(waiting, s)
        while late := [it for it in late if it.missing > 1]:
            share = max(1, self.chunk // len(late))
            parts = [(it, it.kept.reach[0], it.kept.reach[0] + min(share, it.missing - 1)) for it in late]
            parts = parts[: max(1, self.chunk)]
            self.run(parts, WHOLE)
            for it, _, end in parts:
                it.kept.reach = [end] * len(self.stages)

    def next(self, drafts: Sequence["SortedDraft"]) -> None:
        """The next token of each draft; one whose every token is masked ends. Those that are not sure at an exit go
        through the next stage together."""
        going = list(drafts)
        for s in range(len(self.stages)):
            refs = [(it.ask.request, tuple(it.tokens)) for it in going]
            scores = self.sampler.scores(refs, self.stage(going, s))
            sure = (scores.softmax(-1).amax(-1) >= self.exits.thresholds[s]).tolist()
            here = [i for i in range(len(going)) if sure[i] or s == len(self.stages) - 1]
            self.exits.counts[s] += len(here)
            self.choose([going[i] for i in here], scores[here])
            going = [it for i, it in enumerate(going) if i not in {*here}]
            if not going:
                break

    def choose(self, drafts: Sequence["SortedDraft"], scores: Tensor) -> None:
        """A token of each row of scores [N, V]: drawn with the target's noise, or the best one."""
        best, tops = scores.argmax(-1).tolist(), scores.amax(-1).tolist()
        for i, (it, token, top) in enumerate(zip(drafts, best, tops)):
            ref = it.ask.request, tuple(it.tokens)
            if it.ask.law is Law.SHARED_NOISE and not self.sampler.greedy(it.ask.request):
                [token] = self.sampler.draw([ref], scores[i : i + 1], [it.ask.key(len(it.tokens) + 1)])
            elif not top > float("-inf"):
                token = -1
            if token < 0:
                it.ended = True
            else:
                it.tokens.append(token)

    def stage(self, drafts: Sequence["SortedDraft"], s: int) -> Tensor:
        """All rows that stage s lacks and the stage before has (the first: the text's); logits [N, V] of each draft's
        last."""
        parts = [
            (it, it.kept.reach[s], len(it.text) + len(it.tokens) if s == 0 else it.kept.reach[s - 1]) for it in drafts
        ]
        entering = torch.cat([it.kept.waiting[s] for it in drafts]) if s else None
        logits, leave = self.run(parts, self.stages[s], entering)
        at = 0
        for it, start, end in parts:
            own, at = leave[at : at + end - start], at + end - start
            it.kept.reach[s] = end
            if s:
                it.kept.waiting[s] = it.kept.waiting[s][:0]
            if s + 1 < len(self.stages):
                before = it.kept.waiting[s + 1]
                it.kept.waiting[s + 1] = torch.cat((before, own)) if len(before) else own
        return logits

    def run(
        self, parts: Sequence[tuple["SortedDraft", int, int]], program: Program, entering: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One pass over rows start .. end of each draft's text: (logits of the last row of each, hidden states of all
        behind the last layer that ran)."""
        builder = RowsBuilder()
        for it, start, end in parts:
            ask = it.ask
            builder.add(
                [*it.text, *it.tokens][start:end],
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


def stages_of(model: Model, exits: Exits) -> list[Program]:
    """The layers between two exits each; all layers of a model that cannot stop early."""
    if "program" not in model.abilities:
        return [WHOLE]
    return [Program(first, last) for first, last in pairwise([0, *exits.layers])]


TREE_CARD = offers("a small model's most probable paths, each level with as few layers as are sure", Law.POINT)


@DRAFTERS.register("s2d_tree", replace(TREE_CARD, needs=frozenset({NEED_DRAFT, NEED_EXITS}), stops_early=True))
class S2DTree(TopK):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.native = None  # whole trees in one native call run all layers
        self.exits = cast(Exits, host.components["exits"])
        self.stages = stages_of(self.model, self.exits)

    def passes(self, trees: Sequence[Tree]) -> Sequence[Sequence[Tree]]:
        """Text apart from nodes."""
        parts = [tree for tree in trees if tree.lagging], [tree for tree in trees if not tree.lagging]
        return [part for part in parts if part]

    def forward(self, builder: RowsBuilder, trees: Sequence[Tree]) -> Tensor:
        if trees[0].laid is not None or EXIT_TAP not in self.model.places:
            return super().forward(builder, trees)
        counts = [len(tree.fresh) for tree in trees]
        deeper, entering, logits = [True] * len(trees), None, list[Tensor]()
        for s, program in enumerate(self.stages):
            rows = builder.build(self.model.device, taps=(EXIT_TAP,), program=program)
            rows.hidden = entering
            out = self.model.forward(rows)
            entering = out.taps[EXIT_TAP]
            new = list(out.logits.split_with_sizes(counts))
            logits = [new[i] if deeper[i] else logits[i] for i in range(len(trees))] if logits else new
            last = s == len(self.stages) - 1
            for i, tree in enumerate(trees):
                if deeper[i] and (last or self.sure(tree, logits[i], s)):
                    deeper[i] = False
                    self.exits.counts[s] += counts[i]
                    tree.computed = 0  # rows of nodes lack K/V of the layers behind the exit
            if not any(deeper):
                break
        return torch.cat(logits)

    def sure(self, tree: Tree, logits: Tensor, s: int) -> bool:
        """Has a token behind one of the level's nodes the exit's threshold?"""
        fresh = sorted(tree.fresh, key=tree.rank.__getitem__)
        scores = self.sampler.scores([(tree.ask.request, tree.path(place)) for place in fresh], logits)
        return float(scores.softmax(-1).max()) >= self.exits.thresholds[s]
