"""`ppd`: parallel prompt decoding (Chen et al. 2024, arXiv 2405.18628). The target drafts for itself: behind the root
and every candidate hangs a chain of trained prompt embeddings, and the logits at the j-th of a chain guess the token
j + 1 places on. Those of the accepted node's chain are the next round's guesses.

    root ─┬─ P1 ── P2 ── P3                    chains are probes: rows without a token of the vocabulary
          └─ guess ─┬─ P1 ── P2
                    └─ guess ── P1

Guesses of one depth are the same below all parents, so a tree is a set of paths of ranks, the best by the chance of
each rank at each depth, which is counted as rounds are judged. A node whose chain is short leaves a next tree that is
shallow; a budget is shared out between candidates and chains for the most tokens a pass in the long run (section 3.2).
The size is where one more row brings less than the planner's price for it, which is made from measured pass times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, cast

import torch
from torch import Tensor

from paceline.core.component import TARGET, Ability, Lends, Rowless
from paceline.core.errors import CheckpointError
from paceline.core.forest import PROBE, ROOT, Forest, Law
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, Ask, Host, View
from paceline.draft.apart import Apart
from paceline.draft.head import HEADS, METHOD_KEY, HeadCard, HeadConfig, HeadFacts, HeadFiles, need
from paceline.model.linear import Packing

PPD = "ppd"
PPD_RANKS = 6
"""Guesses of one depth that a tree may hold."""
PPD_PRIOR_ROUNDS = 30.0
"""Rounds that the chances count for which the head came with."""
PRICE = 0.02
"""Tokens that a row has to bring, unless the planner knows better."""
PPD_REVIEW_ROUNDS = 32
"""Rounds before the chances are read again; then twice as many each time."""

Ranks = tuple[int, ...]
Chances = tuple[tuple[float, ...], ...]
"""[depth][rank]: that this guess is right, given that the path above is."""
Sparse = tuple[tuple[Ranks, int], ...]
"""(path of ranks, length of its chain) of each node, parents first; () is the root."""


@HEADS.register(PPD, HeadCard("prompt embeddings that the target itself reads"))
class PromptTokens(Rowless):
    """The component: m embeddings [m, width]; it keeps nothing."""

    taps: tuple[str, ...] = ()
    abilities = frozenset[Ability]()

    def __init__(self, table: Tensor, vocab: int, max_len: int, chances: Chances) -> None:
        self.table, self.vocab_size, self.max_len, self.chances = table.float(), vocab, max_len, chances
        self.width, self.weight_bytes = table.shape[1], table.numel() * 4

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return config.get(METHOD_KEY) == PPD

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        made = HeadConfig.read(config)
        return HeadFacts(PPD, made.width, made.vocab, made.depth, 0, ())

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> "PromptTokens":
        made, tensors = HeadConfig.read(files.config), files.tensors()
        table = tensors.get("prompts.weight")
        if table is None or tuple(table.shape) != (made.depth, made.width):
            has = None if table is None else tuple(table.shape)
            raise CheckpointError(
                f"Weight prompts.weight of the head {files.path} has the shape {has}, but {(made.depth, made.width)} "
                "is expected; config and weights are of different heads."
            )
        return cls(table, made.vocab, made.max_len, made.accuracy)

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> "PromptTokens":
        return cls(torch.randn(3, width, generator=torch.Generator().manual_seed(seed)), vocab, 512, ())

    def describe(self) -> str:
        return f"ppd, {len(self.table)} prompts"


# -- the tree ----------------------------------------------------------------------------------------------------------


def best_paths(chances: Chances, depth: int, count: int) -> list[tuple[float, Ranks]]:
    """The `count` most probable paths of ranks down to `depth`, by falling chance: parents and earlier siblings
    first."""
    out: list[tuple[float, Ranks]] = []
    heap: list[tuple[float, Ranks]] = [(-chances[0][0], (0,))] if depth and chances else []
    while heap and len(out) < count:
        minus, path = heappop(heap)
        out.append((-minus, path))
        at, rank = len(path) - 1, path[-1]
        if rank + 1 < len(chances[at]) and chances[at][rank] > 0:
            heappush(heap, (minus / chances[at][rank] * chances[at][rank + 1], (*path[:-1], rank + 1)))
        if at + 1 < min(depth, len(chances)):
            heappush(heap, (minus * chances[at + 1][0], (*path, 0)))
    return out


def gain(chances: Chances, depth: int, count: int) -> float:
    """Expected number of accepted candidates of a tree of this size: the sum of their chances."""
    return sum(chance for chance, _ in best_paths(chances, depth, count))


def sparse(chances: Chances, depth: int, count: int, rows: int, gains: Sequence[float]) -> dict[Ranks, int] | None:
    """{path: length of its chain} of the best `count` candidates and the root, at most `rows` rows together; None where
    they do not fit. `gains[c]`: of the tree that a chain of c leaves. Chains start whole and lose their ends where that
    costs least; the root's stays whole, for a round may accept nothing."""
    best, most = best_paths(chances, depth, count), len(gains) - 1
    if len(best) < count or 2 * count + most > rows:
        return None
    last = {(): 1.0} | {path: chance for chance, path in best}
    for chance, path in best:
        last[path[:-1]] -= chance
    chain = dict.fromkeys(last, most)
    heap = [(max(0.0, last[path]) * (gains[most] - gains[most - 1]), path) for path in chain if path and most > 1]
    heap.sort()
    for _ in range(count + sum(chain.values()) - rows):
        _, path = heappop(heap)
        chain[path] -= 1
        if chain[path] > 1:
            heappush(heap, (max(0.0, last[path]) * (gains[chain[path]] - gains[chain[path] - 1]), path))
    return chain


def steady(chances: Chances, trees: Sequence[Mapping[Ranks, int]]) -> list[float]:
    """How often each state is met: `trees[k - 1]` is that of state k, and leaves the length of the last accepted node's
    chain as the next one."""
    m = len(trees)
    step = torch.zeros(m, m, dtype=torch.float64)
    for k, tree in enumerate(trees):
        reach = {path: reached(chances, path) for path in tree}
        for path, chain in tree.items():
            below = sum(reach[other] for other in tree if len(other) == len(path) + 1 and other[:-1] == path)
            step[k, chain - 1] += max(0.0, reach[path] - below)
    share = torch.full((m,), 1 / m, dtype=torch.float64)
    for _ in range(64):
        share = share @ step
        share = share / share.sum()
    listed: list[float] = share.tolist()
    return listed


def reached(chances: Chances, path: Ranks) -> float:
    out = 1.0
    for depth, rank in enumerate(path):
        out *= chances[depth][rank]
    return out


@lru_cache(4096)
def plan(chances: Chances, rows: int) -> tuple[float, tuple[Sparse, ...]]:
    """(R, the tree of each state 1 .. m) for a pass of `rows` rows: R candidates are accepted a pass in the long run.
    The number of candidates of each state is found by going up in small steps (the paper searches them, too)."""
    m = len(chances)
    counts = [max(0, (rows - m) // 3)] * m

    def made(counts: Sequence[int]) -> tuple[float, list[dict[Ranks, int]]] | None:
        gains = [0.0, *(gain(chances, k + 1, count) for k, count in enumerate(counts))]
        trees = []
        for k, count in enumerate(counts):
            tree = sparse(chances, k + 1, count, rows, gains)
            if tree is None:
                return None
            trees.append(tree)
        return sum(share * g for share, g in zip(steady(chances, trees), gains[1:])), trees

    best = made(counts) or made([0] * m)
    if best is None:
        return 0.0, ()
    if made(counts) is None:
        counts = [0] * m
    better = True
    while better:
        better = False
        for k in range(m):
            for step in (1, -1, 4, -4):
                other = [*counts]
                other[k] = max(0, other[k] + step)
                new = made(other)
                if new is not None and new[0] > best[0] + 1e-9:
                    best, counts, better = new, other, True
    return best[0], tuple(tuple(sorted(tree.items(), key=lambda it: (len(it[0]), it[0]))) for tree in best[1])


def size(chances: Chances, most: int, price: float) -> int:
    """Number of rows, up to `most`, at which R minus the price of the rows is largest."""
    least = len(chances)
    sizes = [*range(least, min(most, 16) + 1), *range(20, most + 1, 4)]
    return max(sizes, key=lambda rows: plan(chances, rows)[0] - price * rows, default=0)


# -- the drafter -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class State:
    """State of a request: guesses [depth][rank] for the next round, and the round under way."""

    guesses: list[list[int]] = field(default_factory=list)
    path: dict[int, Ranks] = field(default_factory=dict)
    """{node of the forest: ranks on its path}"""
    probes: list[Ranks] = field(default_factory=list)
    """Path of the node that each probe's chain belongs to, in the order of the probes."""


class GuessCounts:
    """How often the guess of each depth and rank was right, over a tenant's rounds."""

    def __init__(self, first: Sequence[Sequence[float]]) -> None:
        """`first`: chances by depth and rank before any round."""
        self.tries = [PPD_PRIOR_ROUNDS] * len(first)
        self.hits = [[PPD_PRIOR_ROUNDS * p for p in (*row, *[0.0] * PPD_RANKS)[:PPD_RANKS]] for row in first]
        self.rounds, self.due, self.chances = 0, PPD_REVIEW_ROUNDS, self.counted()

    def counted(self) -> Chances:
        """The chances as they are now, never rising by rank, so that trees hold the first guesses."""
        out = []
        for hits, tries in zip(self.hits, self.tries):
            row = sorted((min(0.999, max(1e-4, round(hit / tries, 4))) for hit in hits), reverse=True)
            out.append(tuple(row))
        return tuple(out)

    def count(self, guesses: Sequence[Sequence[int]], tokens: Sequence[int]) -> None:
        """Which rank was right at each depth, as long as all before were right in some rank."""
        for depth, (row, token) in enumerate(zip(guesses, tokens)):
            self.tries[depth] += 1
            if token not in row:
                break
            self.hits[depth][row.index(token)] += 1
        self.rounds += 1
        if self.rounds >= self.due:
            self.due *= 2
            self.chances = self.counted()


@DRAFTERS.register(
    PPD,
    Offers(
        "prompt tokens inside the target's pass", frozenset({Law.POINT}), "tree", 24, needs=frozenset({need(PPD)}),
        stops_early=True, auto=(PPD,),
    ),
)  # fmt: skip
class Ppd:
    def __init__(self, host: Host) -> None:
        self.prompts = cast(PromptTokens, host.components[PPD])
        target = host.components[TARGET]
        assert "lend" in target.abilities, "the target takes no embeddings of others"
        self.first = cast(Lends, target).lend(self.prompts.table)
        self.m = len(self.prompts.table)
        self.counts = Apart(lambda: GuessCounts(self.chances_given()))

    def chances_given(self) -> Sequence[Sequence[float]]:
        return self.prompts.chances or [
            [0.4 * 0.7**j / (rank + 1) ** 1.5 for rank in range(PPD_RANKS)] for j in range(self.m)
        ]

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        forest = Forest()
        for ask in asks:
            state = view.slot(ask.request, State)
            state.path, state.probes = {}, []
            if ask.item.nodes:
                self.grow(forest, ask, state)
        return forest

    def grow(self, forest: Forest, ask: Ask, state: State) -> None:
        """Candidates, then chains: a panel's cut takes chains first."""
        nodes, known = ask.item.nodes, min(len(state.guesses), self.m, ask.item.depth)
        price = PRICE if ask.item.min_chance is None else ask.item.min_chance.row
        chances = self.counts.of(ask.request).chances
        rows = size(chances, nodes, price)
        trees = plan(chances, rows)[1] if rows else ()
        tree: Sparse = trees[known - 1] if trees and known else (((), min(self.m, nodes)),)
        places: dict[Ranks, int] = {(): ROOT}
        for path, _ in tree:
            if path:
                token = state.guesses[len(path) - 1][path[-1]]
                places[path] = node = forest.add(ask.place, token, places[path[:-1]], law=Law.POINT)
                state.path[node] = path
        for path, length in tree:
            above = places[path]
            for j in range(min(length, ask.item.depth - len(path))):  # what is deeper gets no row
                above = forest.add(ask.place, self.first + j, above, law=Law.POINT, role=PROBE)
                state.probes.append(path)

    def learn(self, view: View) -> None:
        for ask in view.asks:
            state: State | None = view.slots.get(ask.request.id)
            result, logits = view.results[ask.place], view.probes.get(ask.place)
            if state is None or not result.tokens or not ask.item.nodes:
                continue
            nodes = view.accepted(ask)
            path = state.path[nodes[-1]] if nodes else ()
            self.counts.of(ask.request).count(state.guesses, result.tokens)
            mine = [i for i, of in enumerate(state.probes) if of == path and logits is not None and i < len(logits)]
            state.guesses = [] if logits is None else guesses(logits[mine])


def guesses(logits: Tensor) -> list[list[int]]:
    """The most probable tokens of each row of logits [N, V], best first."""
    found: Any = logits.topk(min(PPD_RANKS, logits.shape[-1]), dim=-1).indices.tolist()
    return list(found)
