"""Orders that compare requests alone. Each gives a request one number when it arrives, which never changes: no two of
them ever swap places, and a request is overtaken only by those that arrive within a bounded time after it."""

from collections.abc import Callable, Sequence

from paceline.core.request import Request

LEVEL_S = 60.0
"""Seconds of waiting that weigh as much as one level of priority: below such waits the order is strict."""
PATIENCE_S = 60.0
"""The deadline of a request that names none, in seconds from its arrival."""


def fcfs(requests: Sequence[Request], now: float) -> list[Request]:
    """First come, first served."""
    return _by(requests, lambda r: r.arrival)


def priority(requests: Sequence[Request], now: float) -> list[Request]:
    """The lowest `priority` first, aged by `LEVEL_S`."""
    return _by(requests, lambda r: r.arrival + LEVEL_S * r.params.priority)


def deadline(requests: Sequence[Request], now: float) -> list[Request]:
    """Earliest deadline first."""
    return _by(requests, due)


def due(request: Request) -> float:
    """When the request should be finished, by the engine's clock."""
    wish = request.params.deadline_ms
    return request.arrival + (PATIENCE_S if wish is None else wish / 1e3)


def _by(requests: Sequence[Request], key: Callable[[Request], float]) -> list[Request]:
    return sorted(requests, key=lambda r: (key(r), r.id))
