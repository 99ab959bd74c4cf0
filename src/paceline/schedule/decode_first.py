"""Request-level batching, as FasterTransformer's: a batch is served to its end before the next one begins. A baseline:
nothing stalls decoding requests, and new requests wait for the slowest."""

from collections.abc import Sequence

from paceline.core.request import Request
from paceline.schedule import Order


class DecodeFirst:
    def __init__(self, order: Order, row_budget: int) -> None:
        self.order, self.row_budget = order, row_budget
        self._batch: set[int] = set()

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        """The batch; its prompts first, so that it decodes together. When all of it has left, the requests that are
        present."""
        batch = [r for r in order if r.id in self._batch] or list(order)
        self._batch = {r.id for r in batch}
        return [r for r in batch if r.pending > 1] or batch

    def rows(self, turn: Sequence[Request], now: float) -> int:
        return self.row_budget
