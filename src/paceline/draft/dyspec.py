"""`dyspec`: a tree that grows where the draft expects to be accepted (Xiong et al. 2024, arXiv 2410.11744, algorithm
1), and `dyspec_threshold`, its form for few passes (algorithm 2).

The next draw at a place is reached with probability

    value = value of the place * product over its children drawn so far of (1 - chance that the child is accepted)

which is known before the draw, so recursive rejection stays exact. The child's own is that times its chance. The paper
takes for the chance of y its share R(y) of what was left of q; here it is measured by that share and by rank, over all
requests, and begins as the paper's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nlargest
from math import exp

from torch import Tensor

from paceline.core.forest import ROOT, Law
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS, Host
from paceline.draft.model import SHARP
from paceline.draft.tree import Draws, Laws, Tree, TreeDrafter, offers

LEAST = 0.02
"""A draw that is reached less often than this is not worth its row: one beyond the first costs 1-3 % of a step."""
WORTH = 0.2
"""A deterministic tree gets another pass of the draft model if so many of the nodes it asks about are kept."""
PASSES = 10

RANKS, BINS = 3, 10
WEIGHT = 8.0
"""Tries that the paper's estimate counts for, in each bin."""

Path = tuple[int, ...]


class Chances:
    """How often a drawn child was accepted when it was examined: by its rank (0, 1, 2 and beyond) and its share R."""

    def __init__(self) -> None:
        self.tries = [[WEIGHT] * BINS for _ in range(RANKS)]
        self.hits = [[WEIGHT * (b + 0.5) / BINS for b in range(BINS)] for _ in range(RANKS)]

    def count(self, rank: int, share: float, hit: bool) -> None:
        row, b = min(rank, RANKS - 1), min(int(share * BINS), BINS - 1)
        self.tries[row][b] += 1
        self.hits[row][b] += hit

    def of(self, rank: int, share: float) -> float:
        row, b = min(rank, RANKS - 1), min(int(share * BINS), BINS - 1)
        return self.hits[row][b] / self.tries[row][b]

    def left(self, draws: Draws, drawn: int) -> float:
        """The chance that none of the first `drawn` children of a place is accepted."""
        out = 1.0
        for rank, share in enumerate(shares(draws, drawn)):
            out *= 1.0 - self.of(rank, share)
        return out


def shares(draws: Draws, drawn: int) -> list[float]:
    """R of each of the first `drawn` children: q(child) / (1 - q of the ones before it)."""
    out, left = [], 1.0
    for log_q in draws.log_q[:drawn]:
        out.append(min(1.0, exp(log_q) / max(left, 1e-12)))
        left -= exp(log_q)
    return out


@dataclass(slots=True)
class Heap:
    """Next draws by falling value. `laws` are known for places that were computed."""

    items: list[tuple[float, int, int]] = field(default_factory=list)
    """(-value, place, how many of its children were drawn)."""
    laws: dict[int, Draws] = field(default_factory=dict)
    paths: dict[Path, Draws] = field(default_factory=dict)
    """The same by path, for a deterministic choice."""
    passes: int = 0
    value: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})

    def push(self, chances: Chances, place: int, drawn: int) -> None:
        """The draw after `drawn` children at `place`."""
        worth = self.value[place]
        if drawn:
            draws = self.laws[place]
            if drawn >= len(draws.token):
                return
            worth *= chances.left(draws, drawn)
        if worth >= LEAST:
            heappush(self.items, (-worth, place, drawn))


def most_probable(laws: dict[Path, Draws], nodes: int) -> list[tuple[float, Path]]:
    """The `nodes` most probable paths below the root, as far as laws are known: (chance, path) by falling chance."""
    out: list[tuple[float, Path]] = []
    items: list[tuple[float, int, Path, int]] = []  # (-chance, when, path above, rank of the child)

    def offer(above: float, path: Path, rank: int) -> None:
        draws = laws.get(path)
        if draws is not None and rank < len(draws.token):
            heappush(items, (-above * exp(draws.log_q[rank]), len(out), path, rank))

    offer(1.0, (), 0)
    while items and len(out) < nodes and -items[0][0] >= LEAST:
        value, _, path, rank = heappop(items)
        draws = laws[path]
        out.append((-value, (*path, draws.token[rank])))
        offer(-value / exp(draws.log_q[rank]), path, rank + 1)
        offer(-value, out[-1][1], 0)
    return out


@DRAFTERS.register(
    "dyspec", offers("a tree that grows where the draft is sure", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class DySpec(TreeDrafter):
    """The greedy heap. The best draws are found one by one, but the laws of all places that can be among them are
    computed in one pass, so a tree costs about as many passes as it is deep."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.native = getattr(host.draft, "tree", None)
        self.chances = Chances()

    def plant(self, tree: Tree) -> None:
        tree.memo = Heap()
        tree.memo.push(self.chances, ROOT, 0)

    def observe(self, tree: Tree, path: list[int]) -> None:
        count(self.chances, tree, path, tree.memo.laws)

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        return self._settle(tree, laws) if tree.law is Law.POINT else self._pop(tree, laws)

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        """Deterministic trees in one native call, where temperature alone makes the law; `_settle` is its twin."""
        ready = [t for t in trees if t.fresh and t.law is Law.POINT and t.known - t.reach <= self.chunk]
        warm = [(t, x) for t in ready if (x := self.sampler.temperature(t.ask.request)) is not None]
        if self.native is not None and warm:
            builder = RowsBuilder()
            for tree, _ in warm:
                ask, start, tree.reach = tree.ask, tree.reach, tree.known
                text, slots = ask.request.tokens[start : tree.known], ask.txn.lease.slots(start, tree.known)
                builder.add(text, slots, ask.txn.table, start)
            sizes, limits = [(t.ask.item.nodes, t.ask.item.depth) for t, _ in warm], (self.width, PASSES, LEAST, WORTH)
            grown = self.native(builder.build(), sizes, [x or SHARP for _, x in warm], limits)
            for (tree, _), (tokens, parents, computed) in zip(warm, grown):
                for token, parent in zip(tokens, parents):
                    tree.add(parent, token)
                tree.fresh, tree.computed = [], computed
        return super().grow(trees)

    def _settle(self, tree: Tree, laws: Laws) -> list[int]:
        """Of a deterministic choice nothing is owed to what was chosen before: the tree is the best one by the laws
        known so far, until the laws of its places are known. After d passes it is right down to depth d."""
        known: dict[Path, Draws] = tree.memo.paths
        known.update((tree.path(place), draws) for place, draws in laws.items())
        best = most_probable(known, tree.ask.item.nodes)
        tree.replant([path for _, path in best])
        last = best[-1][0] if tree.left <= 0 else LEAST
        new = [i for i, (chance, path) in enumerate(best) if path not in known and chance > last]
        tree.memo.passes += 1
        gain = sum(best[i][0] for i in new)
        return new if gain >= WORTH and tree.memo.passes <= PASSES else []

    def _pop(self, tree: Tree, laws: Laws) -> list[int]:
        heap: Heap = tree.memo
        heap.laws.update(laws)
        while heap.items and tree.left > 0:
            _, place, drawn = heap.items[0]
            draws = heap.laws.get(place)
            if draws is None:
                ahead = nlargest(tree.left, heap.items, key=lambda it: -it[0])
                return [p for _, p, _ in ahead if p not in heap.laws]
            heappop(heap.items)
            if drawn >= len(draws.token):
                continue
            child = tree.add(place, draws.token[drawn])
            chance = self.chances.of(drawn, shares(draws, drawn + 1)[-1])
            heap.value[child] = heap.value[place] * self.chances.left(draws, drawn) * chance
            heap.push(self.chances, place, drawn + 1)
            heap.push(self.chances, child, 0)
        return []


def count(chances: Chances, tree: Tree, path: Sequence[int], laws: Laws) -> None:
    """Note, at every place that was reached, the children up to the accepted one."""
    for above, child in zip([ROOT, *path], [*path, None]):
        siblings = [i for i, parent in enumerate(tree.parent) if parent == above]
        if siblings and above in laws:
            for rank, (sibling, share) in enumerate(zip(siblings, shares(laws[above], len(siblings)))):
                chances.count(rank, share, sibling == child)
                if sibling == child:
                    break


@DRAFTERS.register(
    "dyspec_threshold", offers("dyspec, level by level to a threshold", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class DySpecThreshold(TreeDrafter):
    """Every draw that is reached with at least `1 / nodes` (or a deterministic choice of that chance), level by level,
    while nodes last."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.chances = Chances()

    def plant(self, tree: Tree) -> None:
        tree.memo = Heap()

    def observe(self, tree: Tree, path: list[int]) -> None:
        count(self.chances, tree, path, tree.memo.laws)

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        heap: Heap = tree.memo
        heap.laws.update(laws)
        least, new = 1 / tree.ask.item.nodes, []
        for place, draws in laws.items():
            for drawn, token in enumerate(draws.token):
                point, reached = exp(draws.log_q[drawn]), self.chances.left(draws, drawn)
                worth = heap.value[place] * (point if tree.law is Law.POINT else reached)
                if tree.left <= 0 or worth < least:
                    break
                new.append(tree.add(place, token))
                chance = self.chances.of(drawn, shares(draws, drawn + 1)[-1])
                heap.value[new[-1]] = worth if tree.law is Law.POINT else worth * chance
        return [place for place in new if heap.value[place] >= least] if tree.left > 0 else []
