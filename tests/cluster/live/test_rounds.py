"""Rounds of migrations while moves last: a round knows what those before it have decided."""

import asyncio

import pytest

from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.freeness import ROUND_S
from paceline.cluster.live.voyage import Voyage
from paceline.engine.totals import Snapshot, Totals
from tests.cluster.live.fakes import FakeLink, sample

MOVE_S = 0.9
BLOCKS, SAMPLE_BLOCKS = 210, 20


class Roomy(FakeLink):
    """An engine of 210 blocks."""

    async def snapshot(self) -> Snapshot:
        return Snapshot(0, 0, BLOCKS, 0, 0, Totals(), block_size=16)


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        ([10, 0, 0, 0], [7, 1, 1, 1]),
        ([10, 0], [7, 3]),
        ([10, 3, 3], [7, 4, 5]),
        ([10, 9], [10, 9]),
        ([10, 10, 0, 0], [7, 7, 3, 3]),
    ],
)
async def test_what_is_under_way_counts_as_done(
    counts: list[int], ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is emptied, and nothing goes out and back."""
    engines, links = Engines(Roomy), dict[str, Roomy]()
    engines.make = lambda name: links.setdefault(name, Roomy(name))
    monkeypatch.setattr(engines, "_balance", lambda: asyncio.sleep(0))  # the rounds are made here
    await engines.start(len(counts))
    names = sorted(links)
    for number, count in enumerate(counts):
        for each in range(count):
            sample(engines, links[names[number]], SAMPLE_BLOCKS, number=100 * number + each)
    ticks, moves = [0], dict[int, int]()

    async def slow_move(voyages: object, voyage: Voyage, to: FakeLink) -> str:
        end, voyage.moving = ticks[0] + MOVE_S / ROUND_S, True
        moves[voyage.request.id] = moves.get(voyage.request.id, 0) + 1
        while ticks[0] < end:
            await asyncio.sleep(0)
        voyage.moving, voyage.link = False, to
        return "moved"

    monkeypatch.setattr(live, "move", slow_move)
    for tick in range(100):
        ticks[0] = tick
        engines._round()
        for _ in range(3):
            await asyncio.sleep(0)
    assert [load.running for load in engines.loads()] == ends
    assert sum(moves.values()) == sum(max(0, a - b) for a, b in zip(counts, ends)) and set(moves.values()) <= {1}
    await engines.close()
