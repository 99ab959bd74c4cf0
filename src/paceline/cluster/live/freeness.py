"""Where a request goes, which engines share their load, and how many there should be: Llumnix's virtual usage and
freeness (OSDI 2024, section 4.4). No clock, no transport: the front and the simulator call the same functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeVar

from paceline.serve.settings import MOST_ENGINES

LOW_FREENESS = 8.0
"""Blocks for each sample: below it an engine gives samples away, above it it takes them."""
ROUND_S = 0.1
"""Between two rounds of migrations."""
URGENT_SHARE = 0.25
"""Share of an engine's blocks that may be used where an urgent sample runs: the rest is its headroom."""
MOVES_AT_ONCE = 8
"""Samples that leave a draining engine at once."""
Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine at one moment, in blocks."""

    name: str
    blocks: int
    used: int
    """Blocks that requests hold."""
    running: int
    waiting: int
    """Samples that wait for their first lease, or for another one."""
    wanted: int = 0
    """Blocks that the first waiting sample needs."""
    queued: int = 0
    """Blocks that all waiting samples need."""
    urgent: int = 0
    """Samples of a priority above the usual one (below 0)."""
    draining: bool = False
    alive: bool = True
    """Does the engine answer?"""

    @property
    def headroom(self) -> int:
        """Blocks that are to stay free for urgent samples, as if these used them."""
        return int((1.0 - URGENT_SHARE) * self.blocks) if self.urgent else 0

    @property
    def takes(self) -> bool:
        """Does the engine take requests?"""
        return self.alive and not self.draining


def urgent(priority: int) -> bool:
    """Is this a priority above the usual one?"""
    return priority < 0


def freeness(load: EngineLoad) -> float:
    """Blocks that are free for each sample, after what waits first and the headroom of urgent ones have had their own:
    about the steps until one must wait, in blocks. -inf for an engine that drains, by the request of infinite use that
    stands in it."""
    return _each(spare(load), load) if load.takes else -inf


def spare(load: EngineLoad) -> int:
    """Blocks that are free after what waits first and the headroom."""
    return load.blocks - load.used - load.wanted - load.headroom


def room_for_more(load: EngineLoad, pressing: bool = False) -> float:
    """As `freeness`, after all that waits: what a new request, which comes behind them, finds. `pressing`: it is
    urgent, and the headroom of the urgent is its own, too."""
    if not load.takes:
        return -inf
    return _each(load.blocks - load.used - max(load.wanted, load.queued) - (0 if pressing else load.headroom), load)


def _each(blocks: int, load: EngineLoad) -> float:
    """What is free, for each sample; what is lacking, in all: more samples do not make an engine freer."""
    return blocks / max(1, load.running + load.waiting) if blocks > 0 else float(blocks)


class EngineRanking:
    """The freest engine, kept while loads change: each change and each question take time by the logarithm of the
    number of engines."""

    def __init__(self, loads: Iterable[EngineLoad] = (), pressing: bool = False) -> None:
        """`pressing`: for urgent requests."""
        self._pressing = pressing
        self._keys = {load.name: -room_for_more(load, pressing) for load in loads if load.takes}
        self._heap = [(key, name) for name, key in self._keys.items()]
        heapify(self._heap)

    def tell(self, load: EngineLoad) -> None:
        """An engine as it is now."""
        if not load.takes:
            self._keys.pop(load.name, None)
            return
        key = -room_for_more(load, self._pressing)
        if self._keys.get(load.name) != key:
            self._keys[load.name] = key
            heappush(self._heap, (key, load.name))
        if len(self._heap) > 64 + 4 * len(self._keys):
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapify(self._heap)

    def best(self) -> str | None:
        """The freest; None where none takes any."""
        while self._heap and self._keys.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None


def place(loads: Iterable[EngineLoad], pressing: bool = False) -> str | None:
    """The engine for a new request, which may be urgent: the freest one. None where none takes any."""
    return EngineRanking(loads, pressing).best()


def pairs(loads: Sequence[EngineLoad]) -> list[tuple[str, str]]:
    """(source, destination) of this round's migrations: the least free with the freest, the second with the second. One
    that drains gives to any that takes; others give only where it helps, and never their only sample, which would come
    back. An engine whose first in the queue does not fit is none too free, so that what is scattered over several
    engines becomes room on one."""
    by = sorted(((freeness(each), each.name, each) for each in loads if each.alive), key=lambda it: it[:2])
    crowded = [each for free, _, each in by if free < LOW_FREENESS]
    sources = [each for each in crowded if each.running + each.waiting >= (1 if each.draining else 2)]
    giving = {each.name for each in sources}
    takers = [(free, each) for free, _, each in reversed(by) if each.takes and each.name not in giving]
    return [(a.name, b.name) for a, (free, b) in zip(sources, takers) if a.draining or free > LOW_FREENESS]


def relieved(load: EngineLoad, blocks: int, priority: int = 0) -> EngineLoad:
    """An engine without a running sample that it has."""
    count = load.urgent - urgent(priority)
    return replace(load, used=load.used - blocks, running=load.running - 1, urgent=count)


def laden(load: EngineLoad, blocks: int, priority: int = 0) -> EngineLoad:
    """An engine with one more running sample."""
    count = load.urgent + urgent(priority)
    return replace(load, used=load.used + blocks, running=load.running + 1, urgent=count)


def eases(source: EngineLoad, to: EngineLoad, blocks: int, priority: int = 0) -> bool:
    """Does it help that a sample with this number of blocks moves? After it the less free of the two engines is freer
    than the source was, so that no sample goes to and fro. From one that drains each move helps."""
    after = freeness(relieved(source, blocks, priority)), freeness(laden(to, blocks, priority))
    return source.draining or min(after) > freeness(source)


def victim(load: EngineLoad, samples: Iterable[tuple[int, int, Sample]], to: EngineLoad) -> Sample | None:
    """Sample that has to leave for another engine, out of (priority, blocks, sample): the least urgent first, then the
    shortest, of those whose move helps. Urgent ones stay where only their own headroom makes the engine less free."""
    helps = dict[tuple[int, int], bool]()
    stay = not load.draining and _each(load.blocks - load.used - load.wanted, load) >= LOW_FREENESS
    for priority, blocks, sample in sorted(samples, key=lambda it: (-it[0], it[1])):
        if (priority, blocks) not in helps:
            helps[priority, blocks] = not (stay and urgent(priority)) and eases(load, to, blocks, priority)
        if helps[priority, blocks]:
            return sample
    return None


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """Thresholds for the number of engines: the freeness of all together, which is their spare blocks for each sample,
    is to stay within `low` and `high`. The mean of theirs would not do: one idle engine would outweigh many full ones,
    and go."""

    low: float = 16.0
    high: float = 64.0
    patience_s: float = 10.0
    """Seconds outside of them before the number changes by one."""
    fewest: int = 1
    most: int = MOST_ENGINES


@dataclass(frozen=True, slots=True)
class ScaleState:
    """Since when the freeness has been too low or too high; None: it is within."""

    below: float | None = None
    above: float | None = None


def scaled(rule: ScaleRule, state: ScaleState, loads: Sequence[EngineLoad], coming: int, now: float) -> tuple[
    ScaleState, int
]:  # fmt: skip
    """(state, engines to add: 1, 0 or -1) at a time in seconds. `coming`: engines that are being started."""
    taking = [load for load in loads if load.takes]
    count = sum(not load.draining for load in loads) + coming  # one that is silent for a while is no one less
    if count < rule.fewest:
        return ScaleState(), 1
    if not taking:
        return state, 0
    blocks, samples = sum(map(spare, taking)), sum(load.running + load.waiting for load in taking)
    free = blocks / max(1, samples) if blocks > 0 else float(blocks)
    if free < rule.low and count < rule.most:
        below = now if state.below is None else state.below
        return (ScaleState(), 1) if now - below >= rule.patience_s else (ScaleState(below=below), 0)
    if free > rule.high and count > rule.fewest and not coming:
        above = now if state.above is None else state.above
        return (ScaleState(), -1) if now - above >= rule.patience_s else (ScaleState(above=above), 0)
    return ScaleState(), 0


def spared(loads: Iterable[EngineLoad]) -> str | None:
    """The engine that goes first where there are too many: that with the fewest samples."""
    taking = [load for load in loads if load.takes]
    return min(taking, key=lambda load: (load.running + load.waiting, load.name)).name if taking else None
