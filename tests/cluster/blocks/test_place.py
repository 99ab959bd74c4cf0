"""Blocks over devices: memory is kept, every block is somewhere, neighbours are near, and no request is lost."""

import random
from itertools import product

import pytest

from paceline.cluster.blocks.simulate import Ways, ZooSimulator
from paceline.core.errors import CapacityError, InputError
from paceline.model.spread.place import (
    BlockPlaces,
    Demand,
    ZooBlock,
    ZooDevice,
    best_fit,
    greedy,
    transitions,
)

WAYS = Ways(0.001, 0.01)


def zoo(apps: int, runs: int, shared: int, seed: int = 0) -> tuple[dict[str, ZooBlock], list[Demand]]:
    """Apps whose first `shared` runs of layers are the base's."""
    rng = random.Random(seed)
    blocks = {f"base{i}": ZooBlock(f"base{i}", 10, 0.002) for i in range(shared)}
    demands = []
    for app in range(apps):
        own = [f"app{app}.{i}" for i in range(shared, runs)]
        blocks |= {name: ZooBlock(name, 10, 0.002) for name in own}
        demands.append(Demand((*(f"base{i}" for i in range(shared)), *own), rng.random() * 20))
    return blocks, demands


def crossings(places: BlockPlaces, demands: list[Demand]) -> float:
    """Passes a second that leave a device, by the best instances."""
    return sum(
        rate for (before, after), rate in transitions(demands).items() if not {*places.at[before]} & {*places.at[after]}
    )


@pytest.mark.parametrize("rule", [greedy, best_fit])
@pytest.mark.parametrize("seed", range(6))
def test_memory_is_kept_and_every_block_has_a_place(rule: object, seed: int) -> None:
    blocks, demands = zoo(6, 6, 4, seed)
    devices = [ZooDevice(i // 3, 60) for i in range(6)]
    places = rule(blocks, demands, devices)  # type: ignore[operator]
    assert places.at.keys() == blocks.keys()
    for device, it in enumerate(devices):
        held = [name for name, at in places.at.items() if device in at]
        assert sum(blocks[name].bytes for name in held) == places.used[device] <= it.bytes
    assert all(len({*at}) == len(at) for at in places.at.values())


def test_greedy_puts_neighbours_together() -> None:
    """Two chains that have nothing in common, on two devices: no pass leaves its own."""
    blocks = {name: ZooBlock(name, 10, 0.0001) for name in ("a0", "a1", "a2", "b0", "b1", "b2")}
    demands = [Demand(("a0", "a1", "a2"), 9.0), Demand(("b0", "b1", "b2"), 5.0)]
    devices = [ZooDevice(0, 30), ZooDevice(1, 30)]
    assert crossings(greedy(blocks, demands, devices), demands) == 0
    best = min(
        crossings(BlockPlaces(devices, {n: [d] for n, d in zip(blocks, where)}), demands)
        for where in product(range(2), repeat=6)
    )
    assert best == 0


def test_no_room_and_no_sense_are_said() -> None:
    blocks, demands = zoo(2, 3, 1)
    for rule in (greedy, best_fit):
        with pytest.raises(CapacityError, match="no device has room"):
            rule(blocks, demands, [ZooDevice(0, 20)])
        with pytest.raises(InputError, match="no devices"):
            rule(blocks, demands, [])
        with pytest.raises(InputError, match="share of a device's time"):
            rule(blocks, demands, [ZooDevice(0, 200)], target=0.0)
    with pytest.raises(InputError, match="none of the zoo's"):
        greedy(blocks, [Demand(("nothing",), 1.0)], [ZooDevice(0, 200)])


@pytest.mark.parametrize("rule", [greedy, best_fit])
def test_no_request_is_lost(rule: object) -> None:
    blocks, demands = zoo(5, 4, 2, 3)
    devices = [ZooDevice(i // 2, 60) for i in range(4)]
    out = ZooSimulator(blocks, rule(blocks, demands, devices), WAYS).run(demands, 80, 4)  # type: ignore[operator]
    assert len(out.seconds) == 80 and out.tokens == 320
    assert out.rows == 320 * 4
    assert min(out.seconds) >= 0.99 * 4 * 4 * 0.002
    again = ZooSimulator(blocks, rule(blocks, demands, devices), WAYS).run(demands, 80, 4)  # type: ignore[operator]
    assert again.seconds == out.seconds


def test_shared_blocks_are_computed_in_one_batch() -> None:
    """All apps at once on one device: rows of different apps meet in the base's blocks, and not in their own."""
    blocks, demands = zoo(4, 4, 3)
    demands = [Demand(it.chain, 2000.0) for it in demands]
    out = ZooSimulator(blocks, greedy(blocks, demands, [ZooDevice(0, 1000)]), WAYS).run(demands, 64, 2)
    assert out.batches < out.rows / 2
