"""`pearl`: the draft model drafts while the target verifies (PEARL, Liu et al. 2024, arXiv 2408.11850).

A step's pass verifies what was drafted during the pass before it; meanwhile the draft goes on as if all of that were
kept. The first token of it is judged by the same pass. Where it is the text's next token, the others are the next draft
(*post-verify*: a step commits up to as many tokens as are drafted in it). Else the next pass has no draft, and its own
token is all that it can bring, while the draft restarts (*pre-verify*).
"""

from collections.abc import Sequence

import torch

from paceline.core.component import DRAFT
from paceline.core.forest import ROOT, Forest, Law
from paceline.core.plan import MinChance
from paceline.core.registry import Offers
from paceline.draft import DRAFTERS, NEED_DRAFT, Ask, View
from paceline.draft.model import Growing, ModelDrafter

NO_MIN_CHANCE = MinChance(0.0)
"""No draft ends early: drafting while the pass runs costs no extra time."""


@DRAFTERS.register(
    "pearl",
    Offers(
        summary="a small model drafts on while the target verifies",
        laws=frozenset({Law.SHARED_NOISE, Law.SAMPLED}),
        shape="chain",
        nodes=4,
        needs=frozenset({NEED_DRAFT}),
        group=DRAFT,
        auto=("pearl",),
        ahead="path",
    ),
)
class Pearl(ModelDrafter):
    def draft(self, asks: Sequence[Ask], view: View) -> Forest:
        """Nothing is prepared: the pass goes without a draft. A request that may not draft catches up meanwhile."""
        waiting = [ask._replace(item=ask.item._replace(nodes=0)) for ask in asks if not ask.item.further]
        return super().draft(waiting, view)

    def ahead(self, asks: Sequence[Ask], view: View) -> None:
        forest, leaves, growing = view.drafted, dict[int, int](), list[Growing]()
        for ask in asks:
            nodes = view.laid.get(ask.place, ())
            free = ask._replace(item=ask.item._replace(min_chance=NO_MIN_CHANCE))
            said = [forest.token[node] for node in nodes]
            most = max(0, min(ask.item.further, ask.item.depth - len(said)))
            growing.append(Growing(free, ask.txn.lease.frontier[DRAFT], said=said, most=most))
            leaves[ask.place] = nodes[-1] if nodes else ROOT
        tables = self.grow(growing)
        shift = 0 if forest.q is None else len(forest.q)
        if tables:
            forest.q = torch.cat(tables if forest.q is None else [forest.q, *tables])
        for g in growing:
            parent = leaves[g.ask.place]
            for i, token in enumerate(g.tokens):
                q_row = g.q_rows[i] + shift if g.q_rows else -1
                parent = forest.add(g.ask.place, token, parent, law=g.ask.law, q_row=q_row)
            view.slots[g.ask.request.id] = g
