"""`dyspec`: a tree that grows where the draft expects to be accepted (Xiong et al. 2024, arXiv 2410.11744, algorithm
1), and `dyspec_threshold`, its form for few passes (algorithm 2).

The next draw at a place is reached with probability

    value = value of the place * (1 - q of its children drawn so far)

which is known before the draw, so recursive rejection stays exact. The child's own is value of the place * q(child).
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

Path = tuple[int, ...]


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

    def push(self, tree: Tree, place: int, drawn: int) -> None:
        """The draw after `drawn` children at `place`."""
        worth = self.value[place]
        if drawn:
            draws = self.laws[place]
            if drawn >= len(draws.token):
                return
            worth *= gain(tree, draws, drawn)
        if worth >= LEAST:
            heappush(self.items, (-worth, place, drawn))


def gain(tree: Tree, draws: Draws, drawn: int) -> float:
    """The chance that the draw after `drawn` children is reached; for a deterministic choice, that it is right."""
    if tree.law is Law.POINT:
        return exp(draws.log_q[drawn])
    return 1.0 - sum(exp(x) for x in draws.log_q[:drawn])


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

    def plant(self, tree: Tree) -> None:
        tree.memo = Heap()
        tree.memo.push(tree, ROOT, 0)

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
            heap.value[child] = heap.value[place] * exp(draws.log_q[drawn])
            heap.push(tree, place, drawn + 1)
            heap.push(tree, child, 0)
        return []


@DRAFTERS.register(
    "dyspec_threshold", offers("dyspec, level by level to a threshold", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class DySpecThreshold(TreeDrafter):
    """Every draw reached with at least `1 / nodes`, level by level, while nodes last."""

    def plant(self, tree: Tree) -> None:
        tree.memo = {ROOT: 1.0}

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        least, new = 1 / tree.ask.item.nodes, []
        for place, draws in laws.items():
            for drawn, token in enumerate(draws.token):
                if tree.left <= 0 or tree.memo[place] * gain(tree, draws, drawn) < least:
                    break
                new.append(tree.add(place, token))
                tree.memo[new[-1]] = tree.memo[place] * exp(draws.log_q[drawn])
        return [place for place in new if tree.memo[place] >= least] if tree.left > 0 else []
