"""`dyspec`: a tree that grows where the draft expects to be accepted (Xiong et al. 2024, arXiv 2410.11744, algorithm
1), and `dyspec_threshold`, its form for few passes (algorithm 2).

The next draw at a place is reached with probability

    reached = value of the place * product over its children drawn so far of (1 - chance that the child is accepted)

and its child's value is that times the child's chance. The paper draws where `reached` is largest and takes for the
chance of y its share R(y) of what was left of q. Here the draw with the largest `reached` times the chance that such a
draw has on average comes first: all of it is known before the draw, so recursive rejection stays exact. And chances are
measured, by share and rank, over all requests; they begin as the paper's.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from math import exp, log
from typing import cast

from torch import Tensor

from paceline.core.forest import ROOT, Law
from paceline.core.plan import Item, MinChance
from paceline.core.proposer import ProposerTable
from paceline.draft import DRAFTERS, Host
from paceline.draft.apart import Apart
from paceline.draft.model import SHARP, Chains, lacking
from paceline.draft.one_round import Opening, one_round
from paceline.draft.tree import Draws, Laws, Tree, TreeDrafter, TreeProposer, offers
from paceline.native.structs import CTrees, addresses, integers_in, reals_in

DYSPEC_MIN_CHANCE = MinChance(0.02)
"""A node of a smaller chance is not worth its row, unless the planner knows better: one beyond the first costs 1-3 % of
a step."""
GAIN = 0.2
"""Expected number of kept nodes, among those it asks about, for which a tree gets another pass of the draft model,
unless the planner knows what a pass costs (`MinChance.level`)."""
TREE_PASSES = 10
RISE, FALL = 1.03, 0.97
"""Factors by which the threshold rises and falls: every second tree is cut off."""

BINNED_RANKS, BINS = 3, 16
LOG_ODDS_SPAN = 5.0
"""Bins cover log-odds from -LOG_ODDS_SPAN to LOG_ODDS_SPAN."""
PAPER_TRIES = 8.0
"""Tries that the paper's estimate counts for, in each bin."""

Path = tuple[int, ...]


class BinnedRates:
    """How often something came about, by rank (0, 1, 2 and beyond) and by a number in [0, 1] that foretells it."""

    def __init__(self) -> None:
        first = [1 / (1 + exp(LOG_ODDS_SPAN - 2 * LOG_ODDS_SPAN * (b + 0.5) / BINS)) for b in range(BINS)]
        self.tries = [[PAPER_TRIES] * BINS for _ in range(BINNED_RANKS)]
        self.hits = [[PAPER_TRIES * p for p in first] for _ in range(BINNED_RANKS)]

    def count(self, rank: int, share: float, hit: bool) -> None:
        row, b = min(rank, BINNED_RANKS - 1), place_of(share)
        self.tries[row][b] += 1
        self.hits[row][b] += hit

    def of(self, rank: int, share: float) -> float:
        row, b = min(rank, BINNED_RANKS - 1), place_of(share)
        return self.hits[row][b] / self.tries[row][b]


def place_of(share: float) -> int:
    """Bin of a share, by its log-odds: whether 0.9 or 0.99 are kept decides how deep a tree goes."""
    odds = log(max(share, 1e-12)) - log(max(1 - share, 1e-12))
    return min(max(int((odds + LOG_ODDS_SPAN) / (2 * LOG_ODDS_SPAN) * BINS), 0), BINS - 1)


class ChildChances:
    """How often a drawn child was accepted when it was examined: `drawn` by its share R, `ahead` by the share that a
    draw at its place has on average."""

    def __init__(self) -> None:
        self.drawn, self.ahead = BinnedRates(), BinnedRates()

    def count(self, draws: Draws, rank: int, hit: bool) -> None:
        self.drawn.count(rank, share(draws, rank), hit)
        self.ahead.count(rank, average(draws, rank), hit)

    def of(self, draws: Draws, rank: int) -> float:
        """The chance of the child drawn with this rank, once it is reached."""
        return self.drawn.of(rank, share(draws, rank))

    def next(self, draws: Draws, drawn: int) -> float:
        """Chance of the next child before it is drawn, once it is reached."""
        return self.ahead.of(drawn, average(draws, drawn))

    def first(self) -> float:
        """Chance of the first child of a place whose distribution is not known."""
        return sum(self.ahead.hits[0]) / sum(self.ahead.tries[0])


def share(draws: Draws, rank: int) -> float:
    """R of the child drawn with this rank: q(child) / (1 - q of the ones before it)."""
    return min(1.0, exp(draws.log_q[rank]) / max(1e-12, 1 - sum(map(exp, draws.log_q[:rank]))))


def average(draws: Draws, drawn: int) -> float:
    """The share that the draw after the first `drawn` has on average: the sum of R(y)^2."""
    q = [exp(log_q) for log_q in draws.log_q[:drawn]]
    return min(1.0, max(0.0, draws.square - sum(x * x for x in q)) / max(1e-12, (1 - sum(q)) ** 2))


@dataclass(slots=True)
class Memo:
    """State of a tree while it grows. `laws` are known for places that were computed."""

    drawn: dict[int, int] = field(default_factory=lambda: {ROOT: 0})
    """place that may have children: how many were drawn."""
    value: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})
    """place: the chance that it is accepted."""
    reached: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})
    """place: the chance that its next draw is examined."""
    laws: dict[int, Draws] = field(default_factory=dict)
    paths: dict[Path, Draws] = field(default_factory=dict)
    """Distributions by path, for a deterministic choice."""
    passes: int = 0

    def worth(self, chances: ChildChances, place: int) -> float:
        """The chance that the next draw at `place` is accepted."""
        draws, drawn = self.laws.get(place), self.drawn[place]
        if draws is None:
            return self.reached[place] * chances.first()
        if drawn >= len(draws.token):
            return 0.0
        return self.reached[place] * chances.next(draws, drawn)

    def draw(self, tree: Tree, chances: ChildChances, place: int) -> int:
        """Draw the next child of `place`."""
        draws, drawn = self.laws[place], self.drawn[place]
        child, chance = tree.add(place, draws.token[drawn]), chances.of(draws, drawn)
        self.value[child] = self.reached[child] = self.reached[place] * chance
        self.reached[place] *= 1 - chance
        self.drawn[place] = drawn + 1
        if tree.depth[child] < tree.ask.item.depth:
            self.drawn[child] = 0
        return child


def prices(item: Item) -> tuple[float, float]:
    """What a node of a tree has to bring, and what another pass over it."""
    chance = item.min_chance or DYSPEC_MIN_CHANCE
    return chance.row, chance.level or GAIN


def most_probable(laws: dict[Path, Draws], nodes: int, least: float) -> list[tuple[float, Path]]:
    """The `nodes` most probable paths below the root, none below `least`, as far as distributions are known: (chance,
    path) by falling chance."""
    out: list[tuple[float, Path]] = []
    items: list[tuple[float, int, Path, int, float]] = []  # (-chance, when, path above, rank, chance of the path)

    def offer(above: float, path: Path, rank: int) -> None:
        draws = laws.get(path)
        if draws is not None and rank < len(draws.token):
            heappush(items, (-above * exp(draws.log_q[rank]), len(out), path, rank, above))

    offer(1.0, (), 0)
    while items and len(out) < nodes and -items[0][0] >= least:
        value, _, path, rank, above = heappop(items)
        out.append((-value, (*path, laws[path].token[rank])))
        offer(above, path, rank + 1)
        offer(-value, out[-1][1], 0)
    return out


@DRAFTERS.register(
    "dyspec",
    offers("a tree that grows where the draft is sure", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT, runs="greedy"),
)
class DySpec(TreeDrafter):
    """The greedy heap. The best draws are found one by one, but the distributions of all places that can be among them
    are computed in one pass, so a tree costs about as many passes as it is deep."""

    squares = True

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        able = "chain" in self.model.abilities and hasattr(self.model, "drafting")
        self.native = cast(Chains, self.model) if able else None
        self.chances = Apart(ChildChances)

    def plant(self, tree: Tree) -> None:
        tree.memo = Memo()

    def observe(self, tree: Tree, path: list[int]) -> None:
        count(self.chances.of(tree.ask.request), tree, path, tree.memo.laws)

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        return self._settle(tree, laws) if tree.law is Law.POINT else self._pop(tree, laws)

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        """Deterministic trees in one native call, a round of a run, where temperature, filters and rules alone make the
        distribution; `_settle` is its twin."""
        left, warm, openings = self.chunk, list[Tree](), list[Opening]()
        for tree in trees:
            item, able = tree.ask.item, tree.fresh and tree.law is Law.POINT and tree.known - tree.reach <= left
            warp = self.sampler.warp(tree.ask.request, tuple(tree.said)) if able else None
            if warp is not None:
                left -= tree.known - tree.reach
                warm.append(tree)
                [last] = tree.text(tree.known - 1, tree.known)
                openings.append(Opening(tree.known, item.depth, item.nodes, last, warp))
        table = self.table(self.proposer(warm)) if warm else None
        if table is not None:
            for tree, (tokens, parents) in zip(warm, one_round(table, openings)):
                for token, parent in zip(tokens, parents):
                    tree.add(parent, token)
                tree.fresh = []
        return super().grow(trees)

    def table(self, proposer: TreeProposer) -> ProposerTable | None:
        if self.native is None:
            return None
        trees, items = proposer.trees, proposer.items
        model, behind, held = self.native.drafting(lacking(trees), max(tree.ask.txn.rows for tree in trees))
        least, gain = map(reals_in, zip(*map(prices, items)))
        nodes, reach = integers_in(proposer.nodes), integers_in([tree.reach for tree in trees])
        places = addresses(nodes, least, gain, reach, computed := integers_in([0] * len(trees)))
        state = CTrees(ctypes.pointer(model), ctypes.pointer(behind), *places, self.width, TREE_PASSES, SHARP)

        def done() -> None:
            for tree, rows, nodes in zip(trees, reach, computed):
                tree.reach, tree.computed = rows, nodes

        return ProposerTable("paceline_trees", state, (held, nodes, least, gain, reach, computed), done)

    def _settle(self, tree: Tree, laws: Laws) -> list[int]:
        """Rebuild a deterministic tree as the best one by the distributions known so far; earlier choices need not be
        kept. This repeats until the distributions of all its places are known. After d passes the tree is right down to
        depth d. Returns the places to compute next."""
        known: dict[Path, Draws] = tree.memo.paths
        known.update((tree.path(place), draws) for place, draws in laws.items())
        least, price = prices(tree.ask.item)
        best = most_probable(known, tree.ask.item.nodes, least)
        tree.replant([path for _, path in best])
        last = best[-1][0] if tree.left <= 0 else least
        new = [i for i, (chance, path) in enumerate(best) if path not in known and chance > last]
        tree.memo.passes += 1
        gain = sum(best[i][0] for i in new)
        return new if gain >= price and tree.memo.passes <= TREE_PASSES else []

    def _pop(self, tree: Tree, laws: Laws) -> list[int]:
        memo: Memo = tree.memo
        memo.laws.update(laws)
        chances = self.chances.of(tree.ask.request)
        heap = [(-memo.worth(chances, place), place) for place in memo.drawn]
        heapify(heap)
        least, gain = prices(tree.ask.item)
        while heap and heap[0][0] < 0 and -heap[0][0] >= least and tree.left > 0:
            place = heappop(heap)[1]
            if place not in memo.laws:
                heappush(heap, (-memo.worth(chances, place), place))
                asked = [(-w, p) for w, p in nsmallest(tree.left, heap) if p not in memo.laws and -w >= least]
                if memo.laws and sum(worth for worth, _ in asked) < gain:  # no further pass, but what is known may do
                    heap = [each for each in heap if each[1] in memo.laws]
                    heapify(heap)
                    continue
                return [p for _, p in asked] or ([] if memo.laws else [place])
            child = memo.draw(tree, chances, place)
            for one in (place, child):
                if one in memo.drawn:
                    heappush(heap, (-memo.worth(chances, one), one))
        return []


def count(chances: ChildChances, tree: Tree, path: Sequence[int], laws: Laws) -> None:
    """Note, at every place that was reached, the children up to the accepted one."""
    for above, rank, hit in tree.examined(path):
        if above in laws:
            chances.count(laws[above], rank, hit)


@DRAFTERS.register(
    "dyspec_threshold", offers("dyspec, level by level to a threshold", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class DySpecThreshold(TreeDrafter):
    """Every draw that is accepted with at least a certain chance, level by level. The threshold of each budget follows
    the trees: it rises when one was cut off by the budget and falls a little when one was not."""

    squares = True

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.chances = Apart(ChildChances)
        self.least: Apart[dict[int, float]] = Apart(dict)
        """{nodes: threshold}"""

    def plant(self, tree: Tree) -> None:
        tree.memo = Memo()

    def observe(self, tree: Tree, path: list[int]) -> None:
        count(self.chances.of(tree.ask.request), tree, path, tree.memo.laws)
        nodes, least = tree.ask.item.nodes, self.least.of(tree.ask.request)
        least[nodes] = least.get(nodes, 1 / nodes) * (RISE if tree.left <= 0 else FALL)

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        memo: Memo = tree.memo
        memo.laws.update(laws)
        nodes, new, chances = tree.ask.item.nodes, [], self.chances.of(tree.ask.request)
        least = self.least.of(tree.ask.request).get(nodes, 1 / nodes)
        for place, draws in laws.items():
            if tree.law is Law.POINT:
                for token, log_q in zip(draws.token, draws.log_q):
                    if tree.left <= 0 or memo.value[place] * exp(log_q) < least:
                        break
                    new.append(tree.add(place, token))
                    memo.value[new[-1]] = memo.value[place] * exp(log_q)
            else:
                while tree.left > 0 and memo.worth(chances, place) >= least:
                    new.append(memo.draw(tree, chances, place))
        return [place for place in new if memo.value[place] >= least] if tree.left > 0 else []
