"""Schedules: which requests are served when, one file per policy. Pure decisions: no tensors, no clock (D8)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.core.request import Request

Order = Callable[[Sequence[Request], float], list[Request]]
"""(requests, now) -> all of them, most important first: the first is admitted first, the last is pre-empted first. What
has been admitted keeps its place among its like, so no request is pre-empted back and forth; no request is last for
ever."""


class SchedulePolicy(Protocol):
    """Divides steps between requests. `order` is an `Order`."""

    @property
    def order(self) -> Order: ...

    def turn(self, order: Sequence[Request], now: float) -> list[Request]:
        """Running requests that get rows in this step, from all of them in order. At least one gets rows, and every
        request gets its turn eventually."""

    def rows(self, turn: Sequence[Request], now: float) -> int:
        """Most rows of this step, prompt rows and draft nodes alike: at least one for each that decodes."""
