"""`rsd_c`: recursive speculative decoding with constant branching (Jeon et al. 2024, arXiv 2402.14160, section 3.2.1).
Every node of a level has as many children, drawn without replacement by Gumbel top-k."""

from functools import cache

from paceline.core.forest import Law
from paceline.draft import DRAFTERS
from paceline.draft.sequoia import SEQUOIA_DEPTH, MeasuredTree
from paceline.draft.tree import Laws, Tree, offers


@cache
def branching(nodes: int, rates: tuple[float, ...]) -> tuple[int, ...]:
    """Children per node at each level, never more than at the level above: of all trees of at most `nodes` the one with
    the most expected accepted nodes, where `rates[b]` is the chance that the child drawn b-th is the accepted one."""
    best: tuple[float, tuple[int, ...]] = (0.0, ())

    def grow(factors: tuple[int, ...], level: int, left: int, chance: float, value: float) -> None:
        nonlocal best
        best = max(best, (value, factors))
        for factor in range(1, (factors[-1] if factors else len(rates)) + 1):
            if level * factor <= left and len(factors) < SEQUOIA_DEPTH:
                reached = chance * sum(rates[:factor])
                grow((*factors, factor), level * factor, left - level * factor, reached, value + reached)

    grow((), 1, nodes, 1.0, 0.0)
    return best[1]


@DRAFTERS.register(
    "rsd_c", offers("a tree with fixed branching, drawn without replacement", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class RsdC(MeasuredTree):
    def plant(self, tree: Tree) -> None:
        tree.memo = branching(tree.ask.item.nodes, self.rates(tree))

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        level = tree.below(next(iter(laws))) - 1
        count = tree.memo[level]
        new = [tree.add(place, token) for place, draws in laws.items() for token in draws.token[:count]]
        return new if level + 1 < len(tree.memo) else []
