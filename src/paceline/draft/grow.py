"""Trees on a head: the common builder (draft/tree.py) with a `Head` in place of a draft model. A level of all trees is
one call of the head.

The shape of a tree is fixed before anything is drawn. It is the best one for the chance of each rank at each depth to
be the accepted one, as measured on the engine's own rounds (Medusa, Cai et al. 2024, arXiv 2401.10774, section 3.3:
greedy growth), and at first when the head was trained.
"""

import heapq
from collections.abc import Mapping, Sequence
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.component import TARGET
from paceline.core.forest import ROOT, Forest, Law
from paceline.core.plan import Item
from paceline.core.proposer import ProposerTable
from paceline.core.registry import Offers
from paceline.core.rows import RowsBuilder
from paceline.core.warp import Warp
from paceline.draft import Ask, Host, View
from paceline.draft.apart import Apart
from paceline.draft.head import Head, need
from paceline.draft.head_runs import MAX_CHILDREN, CompiledHead, HeadProposer
from paceline.draft.layers import whole
from paceline.draft.one_round import Opening, one_round
from paceline.draft.sequoia import Shape, rates, shaped
from paceline.draft.tree import Draws, Laws, Tree, TreeDrafter, TreeProposer, cut, law_of

HEAD_TREE_NODES = 15
RANK_PRIOR = (0.5, 0.13, 0.07, 0.04, 0.03, 0.02, 0.015, 0.01, 0.008, 0.006)
RANK_PRIOR_FADE = 0.8
"""What `RANK_PRIOR` is multiplied by from depth to depth."""
RANK_PRIOR_ROUNDS = 20.0
"""Rounds that the first rates count for."""


def offers(name: str, summary: str, keeps: bool = False) -> Offers:
    """The card of a drafter with a head of this format. `keeps`: the head may have K/V of its own. Whether it
    drafts within runs, `Head.abilities` says."""
    laws = frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT})
    group = name if keeps else None
    return Offers(summary, laws, "tree", HEAD_TREE_NODES, frozenset({need(name)}), group, runs="greedy", auto=(name,))


@cache
def ranked(nodes: int, chances: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """The nodes of `best`, the most probable first: the chance of each, and its ranks from depth 1 down."""
    kept = list[tuple[float, tuple[int, ...]]]()
    heap: list[tuple[float, tuple[int, ...]]] = [(-chances[0][0], (0,))]
    while heap and len(kept) < nodes:
        minus, path = heapq.heappop(heap)
        kept.append((-minus, path))
        depth, rank = len(path), path[-1]
        if depth < len(chances):
            heapq.heappush(heap, (minus * chances[depth][0], (*path, 0)))
        row = chances[depth - 1]
        if rank + 1 < len(row) and row[rank] > 0:
            heapq.heappush(heap, (minus / row[rank] * row[rank + 1], (*path[:-1], rank + 1)))
    return tuple(kept)


@cache
def best(nodes: int, chances: tuple[tuple[float, ...], ...]) -> Shape:
    """The tree of at most `nodes` below the root with the most expected accepted nodes, where `chances[depth][rank]` is
    the chance of a child to be the accepted one, given that its parent is."""
    kept = {path for _, path in ranked(nodes, chances)}

    def shape(path: tuple[int, ...]) -> Shape:
        below = [(*path, rank) for rank in range(MAX_CHILDREN)]
        return tuple(shape(child) for child in below if child in kept)

    return shape(())


def paying(item: Item, chances: tuple[tuple[float, ...], ...]) -> int:
    """How many of the best nodes are worth their rows; all that were asked for, where a row has no price."""
    price = item.min_chance.row if item.min_chance else 0.0
    return sum(chance >= price for chance, _ in ranked(item.nodes, chances))


class RankChances:
    """Rates by depth and rank, over a tenant's requests, from the rounds; they change between rounds only."""

    def __init__(self, first: Sequence[Sequence[float]], depth: int) -> None:
        """`first`: as measured before; missing ones are `RANK_PRIOR`'s."""
        known = [[float(rate) for rate in row][:MAX_CHILDREN] for row in first][:depth]
        known += [[p * RANK_PRIOR_FADE**d for p in RANK_PRIOR] for d in range(len(known), depth)]
        self.hits = [[RANK_PRIOR_ROUNDS * max(p, 1e-4) for p in row] for row in known]
        self.tries = [[RANK_PRIOR_ROUNDS * max(1 - sum(row[:rank]), 1e-3) for rank in range(len(row))] for row in known]
        self.due = 2 * RANK_PRIOR_ROUNDS
        self.rates = self.falling()

    def observe(self, depth: int, rank: int, hits: int, tries: int = 1) -> None:
        if rank < len(self.tries[depth]):
            self.tries[depth][rank] += tries
            self.hits[depth][rank] += hits

    def review(self) -> None:
        """After a step."""
        if self.tries[0][0] >= self.due:  # rates grow finer as they change less
            self.due *= 1.5
            self.rates = self.falling()

    def falling(self) -> tuple[tuple[float, ...], ...]:
        """By depth; from rank to rank never rising, for a tree that fills ranks in order."""
        out = []
        for hits, tries in zip(self.hits, self.tries):
            row, least = list[float](), 1.0
            for rate in rates(hits, tries):
                least = min(least, max(rate, 1e-4))
                row.append(least)
            out.append(tuple(row))
        return tuple(out)


class HeadDrafter(TreeDrafter):
    """The builder for a `Head`. A method gives its `name`, that of the format, and perhaps a rule of its own (`plant`,
    `expand`, `observe`)."""

    name: ClassVar[str]

    def __init__(self, host: Host) -> None:
        head = host.components[self.name]
        assert isinstance(head, Head)
        self.head, self.target = head, host.embeds(TARGET)
        self.sampler, self.chunk = host.sampler, host.chunk
        self.keeps = self.name if head.kv_layers else None
        """The K/V group, of a head that has one."""
        self.width = min(MAX_CHILDREN, head.config.draft_vocab or head.vocab_size)
        depth = head.config.depth
        self.chances = {greedy: Apart(lambda: RankChances(head.config.accuracy, depth)) for greedy in (True, False)}
        self.compiled = CompiledHead(head, self.target)
        self.roots: dict[int, Tensor] = {}
        """{place: state of the root}, of the requests to draft for."""

    # -- the rule ----------------------------------------------------------------------------------------------------

    def plant(self, tree: Tree) -> None:
        rates = self.chances[tree.law is Law.POINT].of(tree.ask.request).rates
        tree.memo = {ROOT: best(paying(tree.ask.item, rates), rates)}

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        return shaped(tree, laws)

    def draws(self, places: list[tuple[Tree, int]], scores: Tensor) -> list[Draws]:
        """Draws of each place. Deterministic trees get the most probable tokens alone: their shape is fixed, so the
        probabilities are not needed."""
        if any(tree.law is not Law.POINT for tree, _ in places):
            return super().draws(places, scores)
        score, token = scores.topk(min(self.width, scores.shape[-1]), dim=-1)
        return [Draws(*cut(tokens, row, row)) for tokens, row in zip(token.tolist(), score.tolist())]

    def observe(self, tree: Tree, path: list[int]) -> None:
        chances = self.chances[tree.law is Law.POINT].of(tree.ask.request)
        for above, rank, hit in tree.examined(path):
            chances.observe(tree.below(above) - 1, rank, hit)

    # -- the builder -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        """Where the hidden state of the row before the root is at hand: not while a prompt is computed."""
        trees = []
        for ask in asks:
            view.slots.pop(ask.request.id, None)
            item = ask.item if ask.item.given == 1 else ask.item._replace(nodes=0)
            if item.nodes or (self.keeps and ask.behind(self.keeps)):
                reach = ask.txn.lease.frontier[self.keeps] if self.keeps else ask.txn.base
                trees.append(Tree(ask._replace(item=item), reach, law_of(ask)))
        contexts = self.catch_up(trees, view) if self.keeps else self.last(trees, view)
        grown = [tree for tree in trees if tree.ask.item.nodes and tree.ask.place in contexts]
        warm = self.at_once([tree for tree in grown if self.warm(tree)], contexts)
        cold = [tree for tree in grown if not (warm and self.warm(tree))]
        if cold:
            places = [tree.ask.place for tree in cold]
            roots = [tree.ask.request.tokens[tree.ask.known - 1] for tree in cold]
            self.begin(places, [contexts[place] for place in places], roots)
        for tree in cold:
            tree.fresh = [ROOT]
            self.plant(tree)
        return self.forest(trees, self.grow(cold), view)

    def warm(self, tree: Tree) -> bool:
        """Can it be drafted in one native call: is it deterministic, and do temperature, filters and rules alone make
        it?"""
        able = self.compiled.stages is not None and tree.law is Law.POINT
        return able and self.sampler.warp(tree.ask.request) is not None

    def at_once(self, trees: list[Tree], contexts: Mapping[int, Tensor]) -> bool:
        """Draft these trees in one native call, as a run of one round. False if there is no such call."""
        if not trees:
            return False
        items = [tree.ask.item for tree in trees]
        first = {place: contexts[tree.ask.place] for place, tree in enumerate(trees)}
        openings = []
        for tree, item in zip(trees, items):
            warp, last = self.sampler.warp(tree.ask.request), tree.ask.request.tokens[tree.known - 1]
            rules = None if warp is None else warp.rules
            openings.append(Opening(tree.known, item.depth, item.nodes, last, Warp(0.0, rules=rules)))
        table = self.table(HeadProposer(self, trees, items, first))
        if table is None:
            return False
        for tree, (tokens, parents) in zip(trees, one_round(table, openings)):
            for token, parent in zip(tokens, parents):
                tree.add(parent, token)
        return True

    def propose(self, asks: Sequence[Ask], view: View) -> TreeProposer | None:
        reach = [ask.txn.lease.frontier[self.keeps] if self.keeps else ask.txn.base for ask in asks]
        trees = [Tree(ask, rows, Law.POINT) for ask, rows in zip(asks, reach)]
        contexts = self.catch_up(trees, view) if self.keeps else self.last(trees, view)
        if {law_of(ask) for ask in asks} != {Law.POINT} or len(contexts) < len(trees):
            return None
        first = {place: contexts[ask.place] for place, ask in enumerate(asks)}
        proposer = HeadProposer(self, trees, [ask.item for ask in asks], first)
        view.slots.update((ask.request.id, (proposer, place)) for place, ask in enumerate(asks))
        return proposer

    def table(self, proposer: TreeProposer) -> ProposerTable | None:
        assert isinstance(proposer, HeadProposer)
        chances = self.chances[True].of(*(tree.ask.request for tree in proposer.trees))

        def observe(tries: Sequence[Sequence[int]], hits: Sequence[Sequence[int]]) -> None:
            for depth, row in enumerate(tries):
                for rank, count in enumerate(row):
                    chances.observe(depth, rank, hits[depth][rank], count)

        nodes = [paying(item, chances.rates) for item in proposer.items]
        tree = [path for _, path in ranked(max(nodes), chances.rates)]
        return self.compiled.table(proposer, nodes, tree, observe)

    def begin(self, places: Sequence[int], contexts: Sequence[Tensor], tokens: Sequence[int]) -> None:
        """Set the states of these requests' roots, from the hidden states before them and their tokens."""
        states = self.head.begin(torch.stack(list(contexts)), self.embed(tokens))
        self.roots = dict(zip(places, states))

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.target.embed(torch.tensor(tokens, dtype=torch.int64)).to(self.head.compute)

    def last(self, trees: Sequence[Tree], view: View) -> dict[int, Tensor]:
        """{place: hidden state of the last committed row}"""
        held = {tree.ask.place: view.held[tree.ask.place].get(self.head.taps[0]) for tree in trees}
        return {
            place: states[-1].to(self.head.compute)
            for place, states in held.items() if states is not None and len(states)
        }  # fmt: skip

    def catch_up(self, trees: Sequence[Tree], view: View) -> dict[int, Tensor]:
        """Compute the committed rows that the head's K/V group lacks, in passes of at most `chunk` rows; the contexts
        of those that are complete, by place."""
        contexts, tap = dict[int, Tensor](), self.head.taps[0]
        held = {tree.ask.place: view.held[tree.ask.place].get(tap) for tree in trees}
        waiting = [
            tree for tree in trees
            if (states := held[tree.ask.place]) is not None and 0 < tree.ask.txn.base - tree.reach <= len(states)
        ]  # fmt: skip
        while waiting:
            builder, left, parts, stops, ends = RowsBuilder(), self.chunk, list[Tensor](), list[int](), list[int]()
            for tree in waiting:
                ask, states = tree.ask, held[tree.ask.place]
                assert states is not None
                start, base = tree.reach, ask.txn.base
                tree.reach = stop = min(base, start + left)
                left -= stop - start
                if stop == start:
                    break
                builder.add(
                    [0] * (stop - start),
                    tree.slots(start, stop),
                    ask.txn.table,
                    start,
                    want=[],
                    shift=ask.shift(start),
                    adapter=ask.request.adapter_slot,
                )
                skip = len(states) - (base - start)
                parts.append(states[skip : skip + stop - start])
                stops += ask.request.tokens[start + 1 : stop + 1]
                ends.append(len(stops) - 1)
            hidden = torch.cat(parts).to(self.head.compute)
            context = self.head.contexts(builder.build(), hidden, self.embed(stops))
            for tree, end in zip(waiting, ends):
                if tree.reach == tree.ask.txn.base:
                    contexts[tree.ask.place] = context[end]
            waiting = [tree for tree in waiting if tree.reach < tree.ask.txn.base]
        return contexts

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        """Level by level: places of one depth, their states from their parents'."""
        tables, depth = list[Tensor](), 0
        states: dict[tuple[int, int], Tensor] = {(place, ROOT): state for place, state in self.roots.items()}
        while active := [tree for tree in trees if tree.fresh]:
            places = [(tree, place) for tree in active for place in sorted(tree.fresh)]
            if depth:
                above = torch.stack([states[tree.ask.place, tree.parent[place]] for tree, place in places])
                tokens = self.embed([tree.token[place] for tree, place in places])
                state = self.head.extend(above, tokens, depth - 1)
                states = {(tree.ask.place, place): one for (tree, place), one in zip(places, state)}
            else:
                state = torch.stack([states[tree.ask.place, ROOT] for tree, _ in places])
            logits = self.head.logits(self.head.draft(state, depth), depth, self.target.head)
            self._level(places, whole(logits, self.head.words, self.head.vocab_size), tables)
            depth += 1
        return tables

    def learn(self, view: View) -> None:
        for ask in view.asks:
            tree = view.slots.pop(ask.request.id, None)
            if isinstance(tree, tuple):  # a run's proposer has followed what was accepted
                proposer, place = tree
                if self.keeps:
                    reach = ask.txn.base + proposer.entered.get(place, 0)
                    view.advance(ask, self.keeps, min(reach, ask.txn.lease.length))
                continue
            if tree is None:
                continue
            if self.keeps:
                view.advance(ask, self.keeps, min(tree.reach, ask.txn.lease.length))
            if tree.token:
                self.observe(tree, [tree.places[node] for node in view.accepted(ask)])
        for apart in self.chances.values():
            for chances in apart.kept.values():
                chances.review()
