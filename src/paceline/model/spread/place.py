"""Where blocks lie: each on a device, so that what follows one another is near, within memory and load.

A block is a run of layers; a chain is the sequence of blocks that a model's requests pass. Transition counts say how
often one follows another. `greedy` follows the paper (section 5.3): blocks in the order of their load, each on the
device with most of its neighbours, then on the server with most, then where least is to do. `best_fit` looks at memory
alone: the fullest device in which the block still fits. Blocks with more load than one device gets have several
instances.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.errors import CapacityError, InputError


@dataclass(frozen=True, slots=True)
class ZooBlock:
    """A run of layers."""

    name: str
    bytes: int
    seconds: float
    """Time of a batch of one row."""


@dataclass(frozen=True, slots=True)
class ZooDevice:
    """A process with memory; those of one server are near each other."""

    server: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """A model's chain and how often it is asked for."""

    chain: tuple[str, ...]
    rate: float
    """Passes a second."""


@dataclass(slots=True)
class BlockPlaces:
    """Devices of each block's instances."""

    devices: Sequence[ZooDevice]
    at: dict[str, list[int]] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)
    """Bytes of each device."""
    load: list[float] = field(default_factory=list)
    """Share of each device's time, for batches of one row."""

    def __post_init__(self) -> None:
        self.used = self.used or [0] * len(self.devices)
        self.load = self.load or [0.0] * len(self.devices)

    def put(self, block: ZooBlock, device: int, load: float) -> None:
        self.at.setdefault(block.name, []).append(device)
        self.used[device] += block.bytes
        self.load[device] += load

    def room(self, block: ZooBlock) -> list[int]:
        """Devices without this block that have room for it."""
        there = self.at.get(block.name, ())
        return [i for i, it in enumerate(self.devices) if self.used[i] + block.bytes <= it.bytes and i not in there]


def transitions(demands: Sequence[Demand]) -> dict[tuple[str, str], float]:
    """{(block, next block): times a second}"""
    counts = dict[tuple[str, str], float]()
    for demand in demands:
        for pair in zip(demand.chain, demand.chain[1:]):
            counts[pair] = counts.get(pair, 0.0) + demand.rate
    return counts


def loads(blocks: Mapping[str, ZooBlock], demands: Sequence[Demand]) -> dict[str, float]:
    """{block: seconds of work a second, in batches of one row}"""
    found = dict.fromkeys(blocks, 0.0)
    for demand in demands:
        for name in demand.chain:
            if name not in blocks:
                raise InputError(f"A chain names the block {name!r}, which is none of the zoo's.")
            found[name] += demand.rate * blocks[name].seconds
    return found


def instances(load: float, target: float) -> int:
    """How many of a block are needed so that none has more than `target` of a device's time."""
    return max(1, math.ceil(load / target))


def greedy(
    blocks: Mapping[str, ZooBlock], demands: Sequence[Demand], devices: Sequence[ZooDevice], target: float = 0.5,
    most: int | None = None,
) -> BlockPlaces:  # fmt: skip
    """By transitions and load. CapacityError where a block has room nowhere. `most`: instances of a block."""
    check(devices, target)
    places, counts, work = BlockPlaces(devices), transitions(demands), loads(blocks, demands)
    for block, share, first in wanted(blocks, work, target, most):
        near = dict[str, float]()
        for (before, after), rate in counts.items():
            if block.name in (before, after) and before != after:
                other = after if before == block.name else before
                near[other] = near.get(other, 0.0) + rate

        def worth(device: int, near: Mapping[str, float] = near) -> tuple[float, float, float, int]:
            here = sum(rate for it, rate in near.items() if device in places.at.get(it, ()))
            server = devices[device].server
            beside = sum(
                rate for it, rate in near.items() if any(devices[i].server == server for i in places.at.get(it, ()))
            )
            return here, beside, -places.load[device], -device

        idle = [i for i in places.room(block) if places.load[i] + share <= 1.0] or places.room(block)
        if not idle:
            if first:
                raise no_room(block)
            continue
        places.put(block, max(idle, key=worth), share)
    return places


def best_fit(
    blocks: Mapping[str, ZooBlock], demands: Sequence[Demand], devices: Sequence[ZooDevice], target: float = 0.5,
    most: int | None = None,
) -> BlockPlaces:  # fmt: skip
    """By memory alone. CapacityError where a block has room nowhere. `most`: instances of a block."""
    check(devices, target)
    places, work = BlockPlaces(devices), loads(blocks, demands)
    for block, share, first in wanted(blocks, work, target, most):
        free = places.room(block)
        if not free:
            if first:
                raise no_room(block)
            continue
        places.put(block, min(free, key=lambda i: (devices[i].bytes - places.used[i], i)), share)
    return places


def wanted(
    blocks: Mapping[str, ZooBlock], work: Mapping[str, float], target: float, most: int | None = None
) -> list[tuple[ZooBlock, float, bool]]:
    """(block, load of one instance, is it the first?): the first of each by load, then more of those that need them."""
    order = sorted(blocks.values(), key=lambda it: (-work[it.name], it.name))
    counts = {it.name: min(instances(work[it.name], target), most or sys.maxsize) for it in order}
    once = [(it, work[it.name] / counts[it.name], True) for it in order]
    more = [(it, work[it.name] / counts[it.name], False) for it in order for _ in range(counts[it.name] - 1)]
    return once + more


def check(devices: Sequence[ZooDevice], target: float) -> None:
    """InputError for a shape that cannot be."""
    if not devices:
        raise InputError("There are no devices for the blocks; give at least one.")
    if not 0 < target <= 1:
        raise InputError(f"target is {target}, but it must be a share of a device's time, above 0 and at most 1.")


def no_room(block: ZooBlock) -> CapacityError:
    return CapacityError(f"The block {block.name} has {block.bytes:,} bytes, for which no device has room.")
