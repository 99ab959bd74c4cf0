"""`sequoia`: the best fixed tree for the acceptance that was measured (Chen et al. 2024, arXiv 2402.12374, sect. 3.1).

`rates[b]` is the chance that the child drawn b-th is the accepted one, given that its parent was.
"""

from collections.abc import Iterable, Sequence
from functools import cache

from paceline.core.forest import ROOT, Law
from paceline.draft import DRAFTERS, Host
from paceline.draft.apart import Apart
from paceline.draft.tree import Laws, Tree, TreeDrafter, offers

SEQUOIA_WIDTH, SEQUOIA_DEPTH = 6, 16
SEQUOIA_PRIOR = (0.6, 0.15, 0.06, 0.03, 0.02, 0.01)
SEQUOIA_PRIOR_ROUNDS = 20.0
"""Rounds that SEQUOIA_PRIOR counts for."""

IMPOSSIBLE_WORTH = -1e9
"""Worth of a tree that is too big for its depth and width."""

Shape = tuple["Shape", ...]
"""A node's children in draw order, each with its own."""


@cache
def best(nodes: int, depth: int, rates: tuple[float, ...]) -> Shape:
    """The tree of at most `nodes` below the root, at most `depth` deep, with the most expected accepted nodes: dynamic
    programming over (nodes, depth, children), the paper's T."""

    @cache
    def most(size: int, deep: int) -> tuple[float, int]:
        """Expected accepted nodes below a node whose subtree has `size` nodes, and how many children it has."""
        options = [(grown(size, deep, b)[0], -b) for b in range(min(len(rates), size) + 1 if deep else 1)]
        value, b = max(options)
        return value, -b

    @cache
    def grown(size: int, deep: int, children: int) -> tuple[float, int]:
        """Expected accepted nodes with exactly `children` children, and the size of the last child's subtree, itself
        included."""
        if children == 0:
            return (0.0, 0) if size == 0 else (IMPOSSIBLE_WORTH, 0)
        rate = rates[children - 1]
        options = [
            (grown(size - last, deep, children - 1)[0] + rate * (1.0 + most(last - 1, deep - 1)[0]), last)
            for last in range(1, size - children + 2)
            if children > 1 or last == size
        ]
        return max(options, default=(IMPOSSIBLE_WORTH, 0))

    def build(size: int, deep: int) -> Shape:
        out: list[Shape] = []
        for children in range(most(size, deep)[1], 0, -1):
            last = grown(size, deep, children)[1]
            out.append(build(last - 1, deep - 1))
            size -= last
        return tuple(reversed(out))

    return build(max(range(nodes + 1), key=lambda n: most(n, depth)[0]), depth)


class MeasuredRanks:
    """The acceptance by rank, measured on rounds. `rates` change between rounds only."""

    def __init__(self) -> None:
        self.rates: tuple[float, ...] = SEQUOIA_PRIOR
        self.hits = [SEQUOIA_PRIOR_ROUNDS * p for p in SEQUOIA_PRIOR]
        self.tries = [SEQUOIA_PRIOR_ROUNDS * (1 - sum(SEQUOIA_PRIOR[:b])) for b in range(SEQUOIA_WIDTH)]
        self.due = 2 * SEQUOIA_PRIOR_ROUNDS

    def observe(self, examined: Iterable[tuple[int, int, bool]]) -> None:
        """Count, at every place that was reached, the children up to the accepted one as tried."""
        for _, rank, hit in examined:
            self.tries[rank] += 1
            self.hits[rank] += hit
        if self.tries[0] >= self.due:  # rates grow finer as they change less
            self.due *= 2
            self.rates = rates(self.hits, self.tries)


class MeasuredTree(TreeDrafter):
    """A builder whose shape follows the acceptance by rank, measured on the rounds of a tenant's requests."""

    width = SEQUOIA_WIDTH

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.measured = Apart(MeasuredRanks)

    def rates(self, tree: Tree) -> tuple[float, ...]:
        return self.measured.of(tree.ask.request).rates

    def observe(self, tree: Tree, path: list[int]) -> None:
        self.measured.of(tree.ask.request).observe(tree.examined(path))


@DRAFTERS.register(
    "sequoia", offers("the best fixed tree for the measured acceptance", Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT)
)
class Sequoia(MeasuredTree):
    def plant(self, tree: Tree) -> None:
        tree.memo = {ROOT: best(tree.ask.item.nodes, SEQUOIA_DEPTH, self.rates(tree))}

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        return shaped(tree, laws)


def shaped(tree: Tree, laws: Laws) -> list[int]:
    """Children of a tree whose shape is fixed: `tree.memo` has {place: the shapes of its children}."""
    new = []
    for place, draws in laws.items():
        for token, shape in zip(draws.token, tree.memo[place]):
            child = tree.add(place, token)
            if shape:
                tree.memo[child] = shape
                new.append(child)
    return new


def rates(hits: Sequence[float], tries: Sequence[float]) -> tuple[float, ...]:
    """Chance of each rank from how often it was accepted when it was tried (Kaplan and Meier 1958): trees differ in
    width, and so in how many ranks they try. Rounded, with a sum of at most 1."""
    out, left, done = [], 1.0, 0.0
    for hit, tried in zip(hits, tries):
        left *= 1 - hit / tried
        out.append(round(1 - left, 2) - done)
        done = round(1 - left, 2)
    return tuple(round(rate, 2) for rate in out)
