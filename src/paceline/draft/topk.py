"""`topk`: the most probable continuations by the draft's own probability, whatever the noise (the dynamic tree of
EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4, with the best nodes of any depth in place of a beam per level).

    chance   of a node: the draft's probability of its path
    a pass   computes the BEAM likeliest nodes that have no law yet, of which `worth` must be expected to be kept
    at last  the likeliest leaves fill the tree
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from torch import Tensor

from paceline.core.forest import ROOT, Law
from paceline.core.rows import RowsBuilder
from paceline.draft import DRAFTERS, Host
from paceline.draft.tree import Laws, Tree, TreeDrafter, offers

BEAM, CHILDREN, PASSES = 4, 6, 10
LEAST = 0.02
"""A node is drafted if its chance is at least this: a row beyond the first costs 1-3 % of a step."""
WORTH = 0.2
"""A pass of the draft model is made if so many of its nodes are expected to be kept."""


@dataclass(slots=True)
class Pool:
    """Nodes that may be drafted, (chance, parent, token), in the order they were found."""

    choices: list[tuple[float, int, int]] = field(default_factory=list)
    chance: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})
    passes: int = 0

    def take(self, tree: Tree, most: int) -> list[int]:
        """Draft the likeliest, at ties the first, up to `most`, while they are worth it."""
        new: list[int] = []
        while len(new) < most and tree.left > 0 and self.choices:
            best = max(self.choices, key=lambda it: it[0])
            if best[0] < LEAST:
                break
            self.choices.remove(best)
            new.append(tree.add(best[1], best[2]))
            self.chance[new[-1]] = best[0]
        return new


@DRAFTERS.register("topk", offers("the draft's most probable paths", Law.POINT))
class TopK(TreeDrafter):
    width = CHILDREN

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.tree = getattr(host.draft, "tree", None)

    def plant(self, tree: Tree) -> None:
        tree.memo = Pool()

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        pool: Pool = tree.memo
        for place, draws in laws.items():
            above = pool.chance[place]
            pool.choices += [(above * exp(log_q), place, token) for token, log_q in zip(draws.token, draws.log_q)]
        pool.passes += 1
        if pool.passes <= PASSES:
            new = pool.take(tree, BEAM)
            if tree.left > 0 and sum(pool.chance[place] for place in new) >= WORTH:
                return new
        pool.take(tree, tree.left)
        return []

    def grow(self, trees: Sequence[Tree]) -> list[Tensor]:
        """Whole trees in one native call, where temperature alone makes the law; the passes are its twin."""
        ready = [t for t in trees if t.fresh and t.known - t.reach <= self.chunk]
        warm = [(t, x) for t in ready if (x := self.sampler.temperature(t.ask.request)) is not None]
        if self.tree is not None and warm:
            builder = RowsBuilder()
            for tree, _ in warm:
                ask, start, tree.reach = tree.ask, tree.reach, tree.known
                text, slots = ask.request.tokens[start : tree.known], ask.txn.lease.slots(start, tree.known)
                builder.add(text, slots, ask.txn.table, start)
            nodes = [tree.ask.item.nodes for tree, _ in warm]
            limits = (BEAM, CHILDREN, PASSES, LEAST, WORTH)
            grown = self.tree(builder.build(), nodes, [x or 1.0 for _, x in warm], limits)
            for (tree, _), (tokens, parents, computed) in zip(warm, grown):
                for token, parent in zip(tokens, parents):
                    tree.add(parent, token)
                tree.fresh, tree.computed = [], computed
        return super().grow(trees)
