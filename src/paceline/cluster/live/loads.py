"""What a front knows of its engines, in figures: pure functions."""

from collections.abc import Iterable, Sequence
from math import ceil

from paceline.cluster.live.freeness import EngineLoad, urgent
from paceline.core.request import Request
from paceline.engine.totals import Snapshot, Totals


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


def together(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Sums; `why` is nobody's. The engines have blocks of one size."""
    running = waiting = blocks = used = cached = size = 0
    prefix = False
    totals = Totals()
    for each in snapshots:
        running, waiting = running + each.running, waiting + each.waiting
        blocks, used, cached = blocks + each.blocks, used + each.used, cached + each.cached
        size, prefix = max(size, each.block_size), prefix or each.prefix
        mine = each.totals
        totals.prompt += mine.prompt
        totals.cached += mine.cached
        totals.preemptions += mine.preemptions
        totals.saved_s += mine.saved_s
        totals.busy_s += mine.busy_s
        for name, count in mine.drafter_errors.items():
            totals.failed(name, count)
        for name, stats in mine.drafters.items():
            sum_ = totals.drafters.setdefault(name, type(stats)())
            sum_.count(stats.offered, stats.kept)
            sum_.passes += stats.passes
            sum_.generated += stats.generated
    return Snapshot(running, waiting, max(1, blocks), used, cached, totals, block_size=size, prefix=prefix)
