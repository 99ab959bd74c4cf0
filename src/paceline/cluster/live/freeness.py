"""Where a request goes, and which engines share their load: Llumnix's freeness (OSDI 2024, section 4.4). No clock, no
transport: the front and the simulator call the same functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

LOW_FREENESS, HIGH_FREENESS = 8.0, 32.0
"""Blocks for each running sample: below the first an engine gives requests away, above the second it takes them."""


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
    """Blocks that the first of them needs."""
    draining: bool = False
    alive: bool = True


def freeness(load: EngineLoad) -> float:
    """Blocks that are free for each sample, after what waits first has had its own: about the steps until one must
    wait, in blocks. -inf for an engine that drains, by the request of infinite use that stands in it."""
    if load.draining or not load.alive:
        return -inf
    return (load.blocks - load.used - load.wanted) / max(1, load.running + load.waiting)


def place(loads: Sequence[EngineLoad]) -> str | None:
    """The engine for a new request: the freest one. None where none takes any."""
    taking = [each for each in loads if each.alive and not each.draining]
    return max(taking, key=lambda each: (freeness(each), each.name)).name if taking else None


def pairs(loads: Sequence[EngineLoad]) -> list[tuple[str, str]]:
    """(source, destination) of this round's migrations: the least free with the freest, the second with the second. One
    that drains gives to any that takes; others give only where it helps."""
    by = sorted((each for each in loads if each.alive), key=lambda each: (freeness(each), each.name))
    sources = [each for each in by if freeness(each) < LOW_FREENESS and each.running + each.waiting > 0]
    takers = [each for each in reversed(by) if not each.draining and each not in sources]
    return [
        (a.name, b.name) for a, b in zip(sources, takers) if a.draining or freeness(b) > HIGH_FREENESS
    ]  # fmt: skip
