"""What a front knows of its engines, in figures: pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil
from operator import attrgetter

from paceline.cluster.live.freeness import EngineLoad, urgent
from paceline.core.request import Request
from paceline.engine.totals import Snapshot, added


def load_of(name: str, blocks: int, size: int, requests: Sequence[Request], draining: bool = False) -> EngineLoad:
    """By the requests that a front has on an engine with `blocks` of `size` tokens. One of which nothing has been heard
    waits."""
    used = queued = wanted = running = pressing = 0
    first = min((each.arrival for each in requests if each.admitted is None), default=0.0)
    for each in requests:
        need = ceil(len(each.tokens) / size)
        pressing += urgent(each.params.priority)
        if each.admitted is not None:
            used, running = used + need, running + 1
        else:
            queued += need
            wanted = max(wanted, need) if each.arrival == first else wanted
    waiting = len(requests) - running
    return EngineLoad(name, blocks, used, running, waiting, wanted, queued, pressing, draining)


def by_engine(
    opening: Sequence[tuple[str, Sequence[Request]]],
    arriving: Sequence[tuple[str, Request]],
    going: Sequence[tuple[str, Request]],
    final: bool = False,
) -> dict[str, list[Request]]:
    """{engine: what counts as its own}, by what engines are asked to take in, what moves there, and what is there. One
    that moves has its blocks on both engines. `final`: as after the moves, where each counts once."""
    opened = {id(each) for _, requests in opening for each in requests}
    gone = opened | {id(each) for _, each in arriving} if final else opened
    places = [(name, each) for name, requests in opening for each in requests]
    places += ((name, each) for name, each in arriving if not final or id(each) not in opened)
    places += ((name, each) for name, each in going if id(each) not in gone)
    on = dict[str, dict[int, Request]]()
    for name, each in places:
        on.setdefault(name, {})[id(each)] = each
    return {name: [*requests.values()] for name, requests in on.items()}


def together(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Sums; `why` is nobody's. The engines have blocks of one size."""
    each = list(snapshots)
    totals = replace(added(*(it.totals for it in each)), why=())
    running, waiting, blocks = (sum(map(attrgetter(name), each)) for name in ("running", "waiting", "blocks"))
    used, cached = (sum(map(attrgetter(name), each)) for name in ("used", "cached"))
    size, prefix = max((it.block_size for it in each), default=0), any(it.prefix for it in each)
    return Snapshot(running, waiting, max(1, blocks), used, cached, totals, block_size=size, prefix=prefix)
