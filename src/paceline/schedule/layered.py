"""Layered prefill (arXiv 2510.08055): while others decode, prompts advance by groups of layers, not by chunks of
tokens, so that the weights of a layer, and of an expert, are read once for all rows of a prompt."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from paceline.core.plan import Item, Plan
from paceline.core.request import Request
from paceline.schedule import Order
from paceline.schedule.chunked import Chunked

STAGE_ROWS = 512
"""Rows through all layers that one step's group of layers weighs at most, where no target says how many (the paper's
table of stages)."""


class Layered:
    """Prompts that have rows in a step are a *cohort*. Its rows run through one group of layers a step, the decoding
    requests through all of them, and no other prompt begins before the cohort's last group. There are as many groups as
    a chunk of `chunked` would fit into the cohort: a step takes as long as that chunk. Where nobody decodes, the rows
    run through all layers that are left."""

    def __init__(self, chunked: Chunked, layers: int, groups: int | None = None) -> None:
        """`layers`: of the target. `groups`: this number of groups, at most one a layer; None: as said above."""
        self.chunked, self.layers, self.groups = chunked, layers, groups
        self._ends: list[int] = []
        """Layer behind the last one of each group, of the cohort that is in flight."""

    @property
    def order(self) -> Order:
        return self.chunked.order

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        if not any(r.layer for r in order):
            return list(order)
        return [r for r in order if r.layer or decodes(r)]

    def rows(self, turn: Sequence[Request], now: float) -> int:
        return self.chunked.row_budget

    def staged(self, plan: Plan) -> Plan:
        """The plan with the layers that each prompt's rows run through."""
        decoding = [item for item in plan.items if decodes(item.request)]
        cohort = [item for item in plan.items if not decodes(item.request)]
        if not cohort:
            return plan
        if not any(item.first for item in cohort):
            self._ends = ends(self.layers, self._count(decoding, cohort))
        whole = not decoding
        staged = {item.request.id: self._stage(item, whole) for item in cohort}
        if not any(item.first or item.partial for item in staged.values()):
            return plan
        # no drafter works while such a pass runs: it is cut by layers already
        items = [staged.get(item.request.id, item._replace(further=0)) for item in plan.items]
        return replace(plan, items=items)

    def _count(self, decoding: Sequence[Item], cohort: Sequence[Item]) -> int:
        """Groups of a new cohort."""
        if not decoding:
            return 1
        if self.groups is not None:
            return self.groups
        fit = STAGE_ROWS
        if self.chunked.target != 0 and self.chunked.forecast is not None:
            turn = [item.request for item in (*decoding, *cohort)]
            fit = max(1, self.chunked.rows(turn, 0.0) - len(decoding))
        return -(-sum(item.given for item in cohort) // fit)

    def _stage(self, item: Item, whole: bool) -> Item:
        end = self.layers if whole else next(end for end in self._ends if end > item.first)
        if item.first == 0 and end == self.layers:
            return item
        last, share = None if end == self.layers else end, (end - item.first) / self.layers
        return item._replace(nodes=0, depth=0, further=0, last=last, share=share)


def decodes(request: Request) -> bool:
    """Decodes a request in each of its steps?"""
    return request.pending == 1 and request.closing is None and not request.layer


def ends(layers: int, groups: int) -> list[int]:
    """Layer behind the last one of each of `groups` groups: as equal as can be, the first ones larger; at least one
    layer each."""
    groups = min(groups, layers)
    return [*accumulate(layers // groups + (i < layers % groups) for i in range(groups))]
