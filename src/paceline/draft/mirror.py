"""`mirror`: the draft model prepares a draft for each likely outcome of the target's pass while that runs (Mirror-SD,
Bhendawade et al. 2025, arXiv 2510.13161).

Behind its lower layers the target is asked what they make of each row of the pass: the MIRROR_KAPPA tokens that are
then most likely to follow it, under the noise that the target will draw with. For each of them the draft model draws a
window, all of them in one tree, while the upper layers run. Where the outcome, how much of the draft is kept and the
token behind it, is one that was prepared for, its window is the next draft (*reuse*); else the draft is made before the
next pass (*fallback*). Either way it is the same draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.component import DRAFT
from paceline.core.forest import MAX_CANDIDATES, ROOT, Forest, Law
from paceline.core.plan import MinChance
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, NEED_DRAFT, Ask, Host, View
from paceline.draft.model import ModelDrafter
from paceline.draft.tree import Laws, Tree, TreeDrafter
from paceline.sample.noise import keys_tensor
from paceline.sample.race import perturbed

MIRROR_KAPPA = 8
"""Tokens that each row is expected to be followed by, as far as there is room."""
EXIT = 0.5
"""Share of the target's layers behind which it is asked."""
WHOLE_WINDOW = MinChance(0.0)
"""A window is as long as a draft: none ends early, so that a reused one equals the one that would be drafted again."""


@dataclass(slots=True)
class Outlook:
    """What may come of one request's pass. Row 0 is that of the root, row r that of the draft's node r."""

    trunk: int
    """Nodes of the draft: the tree's first places."""
    window: int
    """Tokens behind an outcome's own."""
    room: int
    """Outcomes that there are rows for."""
    picks: dict[int, list[int]] = field(default_factory=dict)
    """{row: the tokens that are likely to follow it, the most probable first}"""
    started: bool = False


class MirrorWindows(TreeDrafter):
    """The windows of all outcomes, a pass of the draft model a level."""

    width = MIRROR_KAPPA + 1

    def __init__(self, host: Host, kappa: int) -> None:
        super().__init__(host)
        self.kappa = kappa
        self.width = kappa + 1

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        look: Outlook = tree.memo
        if look.started:
            last = [tree.add(place, draws.token[0]) for place, draws in laws.items() if draws.token and tree.left]
            return [place for place in last if tree.depth[place] - self.top(tree, place) < look.window]
        for place, draws in laws.items():
            look.picks.setdefault(place + 1, draws.token)
        missing = [row - 1 for row in range(look.trunk + 1) if row not in look.picks]
        return missing or self.branch(tree, look)

    def branch(self, tree: Tree, look: Outlook) -> list[int]:
        """The outcomes' own tokens, the most probable of every row first. A token that the draft has there is none: it
        would be kept."""
        look.started, heads = True, list[int]()
        rows = range(look.trunk + 1)
        drafted = [tree.token[row] if row < look.trunk else None for row in rows]
        likely = [[t for t in look.picks[row] if t != drafted[row]][: self.kappa] for row in rows]
        for rank in range(self.kappa):
            for row in rows:
                if rank < len(likely[row]) and len(heads) < look.room:
                    heads.append(tree.add(row - 1, likely[row][rank]))
        return heads

    @staticmethod
    def top(tree: Tree, place: int) -> int:
        """Depth of the outcome's own token above a place of a window."""
        look: Outlook = tree.memo
        while tree.parent[place] >= look.trunk:
            place = tree.parent[place]
        return tree.depth[place]


@DRAFTERS.register(
    "mirror",
    Offers(
        summary="a small model prepares for each outcome while the target verifies",
        laws=frozenset({Law.SHARED_NOISE}),
        shape="chain",
        nodes=4,
        needs=frozenset({NEED_DRAFT}),
        group=DRAFT,
        auto=("mirror",),
        ahead="outcomes",
        exit=EXIT,
    ),
)
class Mirror(ModelDrafter):
    kappa = MIRROR_KAPPA

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.branches = MirrorWindows(host, self.kappa)

    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        """The fallback: a chain, as `model` drafts it."""
        return super().draft([ask._replace(item=ask.item._replace(min_chance=WHOLE_WINDOW)) for ask in asks], view)

    def ahead(self, asks: Sequence[Ask], view: View) -> None:
        forest, trees = view.drafted, list[tuple[Tree, list[int]]]()
        for ask in asks:
            trunk = list(view.laid.get(ask.place, ()))
            rows = min(MAX_CANDIDATES, ask.item.nodes + ask.item.further)
            item = ask.item._replace(nodes=rows)
            tree = Tree(ask._replace(item=item), ask.txn.lease.frontier[DRAFT], ask.law)
            tree.law = Law.POINT if ask.request.params.greedy else ask.law
            for place, node in enumerate(trunk):
                tree.add(place - 1, forest.token[node])
            window = min(ask.item.nodes, ask.item.depth - len(trunk) - 1)
            if window < 1:
                continue
            tree.memo = Outlook(len(trunk), window, (rows - len(trunk)) // (1 + window))
            if ask.place in view.exits:
                tree.memo.picks = self.picks(ask, [forest.token[node] for node in trunk], view.exits[ask.place])
            tree.fresh = [ROOT]
            trees.append((tree, trunk))
        self.branches.grow([tree for tree, _ in trees])
        for tree, trunk in trees:
            nodes = dict(enumerate(trunk))
            for place in range(len(trunk), len(tree.token)):
                parent = nodes.get(tree.parent[place], ROOT)
                nodes[place] = forest.add(tree.ask.place, tree.token[place], parent, law=tree.ask.law)
            view.slots[tree.ask.request.id] = tree

    def picks(self, ask: Ask, path: Sequence[int], logits: Tensor) -> dict[int, list[int]]:
        """{row: the most probable tokens to follow it}, by what the lower layers make of it and the target's noise."""
        refs = [(ask.request, tuple(path[:row])) for row in range(len(path) + 1)]
        scores = self.sampler.scores(refs, logits).to(torch.float64).log_softmax(-1)
        if not ask.request.params.greedy:
            keys = [ask.request.target_noise.key(ask.request.index(row)) for row in range(len(refs))]
            scores = perturbed(scores, keys_tensor(keys, scores.device))
        found = scores.topk(min(self.kappa + 1, scores.shape[-1]), dim=-1).indices.tolist()
        return dict(enumerate(found))

    def learn(self, view: View) -> None:
        """Keep the K/V of what was kept of the draft; those of the outcomes are gone."""
        for ask in view.asks:
            tree = view.slots.get(ask.request.id)
            if isinstance(tree, Tree):
                view.slots.pop(ask.request.id)
                kept = min(len(view.accepted(ask)), tree.computed, tree.memo.trunk)
                view.advance(ask, DRAFT, min(tree.reach + kept, ask.txn.lease.length))
        super().learn(view)
