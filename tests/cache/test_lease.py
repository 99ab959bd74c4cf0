"""Slots, and what the check of one lease finds."""

from collections.abc import Callable

import pytest

from paceline.cache.cache import Cache
from paceline.cache.lease import Lease
from paceline.core.errors import IntegrityError


def lease_of(cache: Cache, rows: int) -> Lease:
    lease = cache.open([])
    cache.begin(lease, rows, 0).commit([], list(range(rows)))
    return lease


def test_slots_follow_the_table() -> None:
    cache = Cache(8, 4)
    lease_of(cache, 2)
    lease = lease_of(cache, 6)
    assert lease.blocks == [1, 2] and lease.slots(2, 6) == [6, 7, 8, 9] and lease.slot(5) == 9
    assert lease.slots(6, 6) == []
    cache.begin(lease, 1, 1)
    assert lease.slots(5, 8) == [9, 10, 11]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7)])
def test_slots_stay_inside(start: int, stop: int) -> None:
    lease = lease_of(Cache(8, 4), 6)
    with pytest.raises(IntegrityError, match="outside the lease's 6"):
        lease.slots(start, stop)


def test_groups_and_sealed() -> None:
    cache = Cache(8, 4, groups=("target", "draft"))
    lease = lease_of(cache, 9)
    assert lease.groups == {"target", "draft"} and lease.sealed == 0
    cache.advance(lease, "draft", 7)
    lease.seal()
    assert lease.sealed == 1 and lease.hashes[0] in cache.pool.index


def damage_table(lease: Lease) -> None:
    lease.blocks[1] = lease.blocks[0]


def damage_length(lease: Lease) -> None:
    lease.blocks.append(7)


def damage_frontier(lease: Lease) -> None:
    lease.frontier["draft"] = 10


def damage_sealed(lease: Lease) -> None:
    lease.hashes.append(b"x")


def damage_tokens(lease: Lease) -> None:
    lease.tokens[0] += 1


def damage_publication(lease: Lease) -> None:
    lease.pool.publish(lease.blocks[2], b"x", lease.groups)


def damage_sharing(lease: Lease) -> None:
    lease.pool.acquire(lease.blocks[2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_table, "Block 0 is twice in one table"),
        (damage_length, "holds 4 blocks, the last 7, and needs 3"),
        (damage_frontier, "Frontier 10 of draft"),
        (damage_sealed, "Frontier 9 of draft is outside 12..9"),
        (damage_tokens, "Block 0 is published or sealed under a name"),
        (damage_publication, "Block 2 is shared or published and has rows that are not verified"),
        (damage_sharing, "Block 2 is shared or published"),
    ],
)
def test_check_names_the_block(damage: Callable[[Lease], None], message: str) -> None:
    cache = Cache(8, 4, groups=("target", "draft"))
    lease = lease_of(cache, 9)
    cache.advance(lease, "draft", 9)
    cache.seal(lease)
    cache.check_integrity()
    damage(lease)
    with pytest.raises(IntegrityError, match=message):
        lease.check()


def test_check_counts_sealed_blocks() -> None:
    cache = Cache(8, 4)
    lease = lease_of(cache, 6)
    lease.hashes.append(b"x")
    with pytest.raises(IntegrityError, match="6 rows seals 2 blocks"):
        cache.check_integrity()
