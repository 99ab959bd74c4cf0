"""`spectr`: independent chains from the draft (Sun et al. 2023, arXiv 2310.15141, section 5), for the rules that want
i.i.d. candidates. Chains that agree share their rows; each stays a candidate of its own."""

from math import sqrt

import torch
from torch import Tensor

from paceline.core.forest import ROOT, Law
from paceline.draft import DRAFTERS
from paceline.draft.tree import Draws, Laws, Tree, TreeDrafter, offers
from paceline.sample.noise import keys_tensor
from paceline.sample.race import race


def chains(nodes: int) -> int:
    """How many; each is `nodes // chains` long, about twice as long as there are chains."""
    return max(1, round(sqrt(nodes / 2)))


@DRAFTERS.register("spectr", offers("independent chains, drawn with replacement", Law.SAMPLED))
class SpecTr(TreeDrafter):
    def plant(self, tree: Tree) -> None:
        tree.memo = [ROOT] * chains(tree.ask.item.nodes)  # where each chain ends

    def draws(self, places: list[tuple[Tree, int]], scores: Tensor) -> list[Draws]:
        """One independent draw for every chain that ends at a place (or at a twin of it), in order of the chains."""
        ends = [[c for c, end in enumerate(tree.memo) if tree.row(end) == tree.row(place)] for tree, place in places]
        keys = [tree.ask.key(tree.below(place), c + 1) for (tree, place), cs in zip(places, ends) for c in cs]
        line = torch.tensor([i for i, cs in enumerate(ends) for _ in cs], dtype=torch.int64)
        greedy = torch.tensor([tree.ask.request.params.greedy for tree, _ in places])[line]
        raced = torch.tensor(race(scores[line], keys_tensor(keys, scores.device)))
        drawn = iter(torch.where(greedy, scores[line].argmax(-1), raced).tolist())
        return [Draws([next(drawn) for _ in cs], [], []) for cs in ends]

    def expand(self, tree: Tree, laws: Laws) -> list[int]:
        ends: list[int] = tree.memo
        at = {tree.row(place): (place, iter(draws.token)) for place, draws in laws.items()}
        twins: dict[tuple[int, int], int] = {}
        for chain, end in enumerate(ends):
            place, tokens = at.get(tree.row(end), (ROOT, iter(())))
            token = next(tokens, -1)
            if token < 0:  # every token was masked there: this chain has ended
                continue
            twin = twins.get((place, token))
            if end != place:
                tree.law_row[end] = tree.law_row[place]
            ends[chain] = tree.add(end, token, twin)
            twins.setdefault((place, token), ends[chain])
        return sorted(set(twins.values())) if tree.left >= len(ends) else []
