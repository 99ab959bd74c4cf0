"""First come, first served. Ids count up, so a pre-empted request keeps its place."""

from collections.abc import Sequence

from paceline.core.request import Request


class FirstComeFirstServed:
    def order(self, requests: Sequence[Request], now: float) -> list[Request]:
        return sorted(requests, key=lambda r: r.id)
