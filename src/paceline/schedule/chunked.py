"""Chunked prefill, stall-free (Sarathi-Serve, OSDI'24): every step has all decoding requests, and prompts fill what is
left of its rows."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from paceline.core.plan import PROMPT_RESERVE_ROWS, Work
from paceline.core.request import Request
from paceline.schedule import Order

PANEL_ROWS = 16
"""Rows that share one reading of the weights: the step time is a staircase, and a step is best taken to its edge."""
TARGET_S, TARGET_STEPS = 0.1, 4
"""Default time between two steps of a decoding request: the larger of these seconds and this number of plain steps."""
USUAL_ROWS = 512
"""Most rows of a step for prompts alone, or for drafts alone, where step times do not say that more are better."""
UNMEASURED_ROWS = 64
"""Most rows of a step in which somebody decodes, by default, until it is known what steps cost on this machine."""
SCORED_ROWS = 32
"""Maximum rows of prompts in such a step, where a prompt's log-probabilities are wanted: each row then needs a softmax
and a choice over the vocabulary, up to a millisecond that no forecast of passes contains."""


class Forecast(Protocol):
    """Predicts what steps take, in seconds; the engine's is `plan.cost.StepTimes`."""

    @property
    def measured(self) -> bool:
        """Were passes of many sizes timed on this machine?"""

    def predict(self, work: Work) -> float:
        """Seconds of a step without drafts."""

    def like_latest(self, work: Work) -> float:
        """Seconds of a step in which what was drafted last is drafted again."""


class Chunked:
    """The default schedule. While somebody decodes, the rows of a step are the most whose predicted time meets the
    target, yet never fewer than the decodes and one least chunk of the prompts; while nobody does, those with which the
    prompts that wait are read soonest. `target`: seconds between two steps of a decoding request; 0 for none; None for
    the default of `TARGET_S` and `TARGET_STEPS`."""

    def __init__(
        self, order: Order, row_budget: int, target: float | None = None, forecast: Forecast | None = None
    ) -> None:
        self.order, self.row_budget, self.target, self.forecast = order, row_budget, target, forecast

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        return list(order)

    def rows(self, turn: Sequence[Request], now: float) -> int:
        decoding = [r for r in turn if r.pending == 1]
        forecast, waiting, most = self.forecast, sum(r.pending for r in turn if r.pending > 1), self.row_budget
        if self.target == 0 or forecast is None or not decoding:
            return self._soonest(turn, waiting)
        if any(r.pending > 1 and r.params.prompt_logprobs is not None for r in turn):
            most = min(most, len(decoding) + SCORED_ROWS)
        if self.target is None:
            if not waiting:
                return min(most, USUAL_ROWS)
            if not forecast.measured:
                return min(most, max(UNMEASURED_ROWS, len(decoding) + min(PROMPT_RESERVE_ROWS, waiting)))
            plain = forecast.predict(Work.of((1, r.length, 1) for r in decoding))
        target = max(TARGET_S, TARGET_STEPS * plain) if self.target is None else self.target
        least = min(len(decoding) + min(PROMPT_RESERVE_ROWS, waiting), most)
        edges = range(least - least % PANEL_ROWS + PANEL_ROWS, most + 1, PANEL_ROWS)
        fit = bisect_right(edges, target, key=lambda rows: forecast.like_latest(work(turn, rows)))
        return edges[fit - 1] if fit else least

    def _soonest(self, turn: Sequence[Request], waiting: int) -> int:
        """Rows of the steps, all alike, that read what waits in the least predicted time; of equals the fewest."""
        usual, forecast = min(self.row_budget, USUAL_ROWS), self.forecast
        if forecast is None or not forecast.measured or waiting <= usual:
            return usual
        sizes = [usual]
        while sizes[-1] < min(waiting, self.row_budget):
            sizes.append(min(2 * sizes[-1], self.row_budget))
        return min(sizes, key=lambda rows: sum(map(forecast.predict, steps(turn, rows))))


def steps(turn: Sequence[Request], rows: int) -> Iterator[Work]:
    """Steps of at most `rows` that read all prompts, in order; each decoding request has a row in each."""
    decoding = [(1, r.length, 1) for r in turn if r.pending == 1]
    most = left = max(1, rows - len(decoding))
    shares = list[tuple[int, int, int]]()
    for request in turn:
        done = 0
        while request.pending > 1 and done < request.pending:
            chunk = min(left, request.pending - done)
            shares.append((chunk, request.length + done, int(done + chunk == request.pending)))
            done, left = done + chunk, left - chunk
            if not left:
                yield Work.of([*decoding, *shares])
                shares, left = [], most
    if shares:
        yield Work.of([*decoding, *shares])


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
