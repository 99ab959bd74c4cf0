"""Chunked prefill, stall-free (Sarathi-Serve, OSDI'24): every step has all decoding requests, and prompts fill what is
left of its rows."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from paceline.core.plan import PROMPT_RESERVE_ROWS, Work
from paceline.core.request import Request
from paceline.schedule import Order

PANEL_ROWS = 16
"""Rows that share one reading of the weights: the step time is a staircase, and a step is best taken to its edge."""


Seconds = Callable[[Work], float]
"""Predicts what a step takes; the engine's is that of `plan.choose.Goodput`."""


class Chunked:
    """The default. With a `target` (seconds between two steps of a decoding request) the rows of a step are the most
    whose predicted time meets it, yet never fewer than the decodes and one least chunk of the prompts."""

    def __init__(
        self, order: Order, row_budget: int, target: float | None = None, seconds: Seconds | None = None
    ) -> None:
        self.order, self.row_budget, self.target, self.seconds = order, row_budget, target, seconds

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        return list(order)

    def rows(self, turn: Sequence[Request], now: float) -> int:
        decoding = sum(r.pending == 1 for r in turn)
        if self.target is None or self.seconds is None or not decoding:
            return self.row_budget
        seconds, waiting = self.seconds, sum(r.pending for r in turn if r.pending > 1)
        least = min(decoding + min(PROMPT_RESERVE_ROWS, waiting), self.row_budget)
        edges = range(least - least % PANEL_ROWS + PANEL_ROWS, self.row_budget + 1, PANEL_ROWS)
        fit = bisect_right(edges, self.target, key=lambda rows: seconds(work(turn, rows)))
        return edges[fit - 1] if fit else least


def work(turn: Sequence[Request], rows: int) -> Work:
    """Division of the rows: one for each decoding request, then prompts in order, then nodes, shared evenly."""
    decoding = [r for r in turn if r.pending == 1]
    left, shares = rows - len(decoding), []
    for request in turn:
        if request.pending > 1 and left > 0:
            chunk = min(request.pending, left)
            shares.append((chunk, request.length, int(chunk == request.pending)))
            left -= chunk
    nodes, more = divmod(max(left, 0), max(len(decoding), 1))
    for i, request in enumerate(decoding):
        own = 1 + nodes + (i < more)
        shares.append((own, request.length, own))
    return Work.of(shares)
