"""`rsd_c`: recursive speculative decoding with constant branching (Jeon et al. 2024, arXiv 2402.14160, section 3.2.1).
Every node of a level has as many children, drawn without replacement by Gumbel top-k."""

from paceline.core.forest import Law
from paceline.draft import DRAFTERS
from paceline.draft.tree import Laws, Tree, TreeDrafter, offers


def branching(nodes: int) -> tuple[int, ...]:
    """Children per node at each level, of a tree of at most `nodes`: two for the first levels, then one.

    >>> branching(6), branching(14)
    ((2, 1, 1), (2, 2, 1, 1))
    """
    factors: list[int] = []
    level, left = 1, nodes
    while left >= level:
        doubles = 2 * level <= left and 4 * 2 * level <= nodes + 2 * level
        factors.append(2 if doubles else 1)
        level *= factors[-1]
        left -= level
    return tuple(factors)


@DRAFTERS.register(
    "rsd_c", offers("a tree with fixed branching, drawn without replacement", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class RsdC(TreeDrafter):
    def plant(self, tree: Tree) -> None:
        tree.memo = branching(tree.ask.item.nodes)

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        level = tree.below(next(iter(laws))) - 1
        count = tree.memo[level]
        new = [tree.add(place, token) for place, draws in laws.items() for token in draws.token[:count]]
        return new if level + 1 < len(tree.memo) else []
