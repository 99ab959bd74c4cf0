"""Layered prefill (arXiv 2510.08055): while others decode, prompts advance by groups of layers, not by chunks of
tokens, so that the weights of a layer, and of an expert, are read once for all rows of a prompt."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil

from paceline.core.plan import Item, Plan, Work
from paceline.core.request import Request
from paceline.schedule import Order
from paceline.schedule.chunked import Chunked, work

STAGE_ROWS = 512
"""Rows of the chunk that a step takes no longer than, where no target says how many (the paper's table of stages)."""


class Layered:
    """Prompts that have rows in a step are a *cohort*. Its rows run through one group of layers a step, the decoding
    requests through all of them, and no other prompt begins before the cohort's last group. A step takes as long as a
    chunk of `chunked`, by step times. Where nobody decodes, the rows run through all layers that are left."""

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
        """Groups of a new cohort, as few as keep a step within a chunk's time: layers outside the group add a part of a
        plain step. By rows alone where step times were not measured."""
        if not decoding:
            return 1
        if self.groups is not None:
            return self.groups
        turn, rows = [item.request for item in (*decoding, *cohort)], sum(item.given for item in cohort)
        fit, forecast = STAGE_ROWS, self.chunked.forecast
        if self.chunked.target != 0 and forecast is not None:
            fit = max(1, self.chunked.rows(turn, 0.0) - len(decoding))
        if forecast is None or not forecast.measured or rows <= fit:
            return -(-rows // fit)
        plain = forecast.predict(Work.of((1, item.request.length, 1) for item in decoding))
        chunk, whole = (forecast.predict(work(turn, len(decoding) + each)) for each in (fit, rows))
        return max(1, ceil((whole - plain) / (chunk - plain))) if chunk > plain else -(-rows // fit)

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
