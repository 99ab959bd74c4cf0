"""In which order requests are served: one file per policy. Pure decisions: no tensors, no clock (D8)."""

from collections.abc import Sequence
from typing import Protocol

from paceline.core.request import Request


class SchedulePolicy(Protocol):
    """Orders requests, most important first. It may leave requests out, but none for ever."""

    def order(self, requests: Sequence[Request], now: float) -> list[Request]: ...
