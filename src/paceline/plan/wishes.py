"""Requests that name their drafter get it, with a fixed number of nodes; for the others the chooser decides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.plan import Edge, Item, Work
from paceline.core.request import Request
from paceline.plan import LengthPolicy, Share
from paceline.plan.choose import Goodput
from paceline.plan.fixed import FixedLength


@dataclass(slots=True)
class Wishes(LengthPolicy):
    fixed: FixedLength
    goodput: Goodput

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> dict[int, Share]:
        named, free = [r for r in requests if not r.arms], [r for r in requests if r.arms]
        if not named:
            return self.goodput.share(free, spare, base)
        shares = self.fixed.share(named, spare, base)
        if free:
            used = sum(share.nodes for share in shares.values())
            shares.update(self.goodput.share(free, spare - used, replace(base, rows=base.rows + used)))
        return shares

    def edges(self, base: Work) -> tuple[Edge, ...]:
        return self.goodput.edges(base)

    def passes(self, items: Sequence[Item], base: Work) -> int:
        return self.goodput.passes(items, base)
