"""Whole prompts before any decode, as vLLM once did: a baseline. Decoding requests stall at every prompt."""

from collections.abc import Sequence

from paceline.core.request import Request
from paceline.schedule import Order


class PrefillFirst:
    def __init__(self, order: Order, row_budget: int) -> None:
        self.order, self.row_budget = order, row_budget

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        return [r for r in order if r.pending > 1] or list(order)

    def rows(self, turn: Sequence[Request], now: float) -> int:
        return self.row_budget
