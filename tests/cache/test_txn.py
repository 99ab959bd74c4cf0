"""Reserve by count, then commit a path or give everything back."""

import pytest

from paceline.cache.cache import Cache
from paceline.core.errors import CapacityError, IntegrityError


def test_rows_are_reserved_before_anything_is_drawn() -> None:
    cache = Cache(8, 4)
    lease = cache.open([1, 2, 3])
    txn = cache.begin(lease, 3, 3)
    assert txn.slots == [0, 1, 2, 3, 4, 5] and txn.table == [0, 1] == lease.blocks
    assert (txn.base, txn.given, txn.nodes, lease.length, lease.reserved, cache.room()) == (0, 3, 3, 0, 6, 6)


@pytest.mark.parametrize(
    ("path", "moves", "blocks"),
    [([], [], 1), ([0, 1], [], 2), ([0, 2], [(5, 4)], 2), ([1, 3, 4], [(4, 3), (6, 4), (7, 5)], 2)],
)
def test_accepted_rows_become_contiguous(path: list[int], moves: list[tuple[int, int]], blocks: int) -> None:
    cache = Cache(8, 4)
    lease = cache.open([1, 2, 3])
    txn = cache.begin(lease, 3, 5)
    assert txn.commit(path, [1, 2, 3, *path]) == moves
    assert lease.tokens == [1, 2, 3, *path] and len(lease.blocks) == blocks and lease.txn is None
    cache.check_integrity()


def test_abort_restores_everything() -> None:
    cache = Cache(8, 4)
    lease = cache.open(list(range(6)))
    cache.begin(lease, 6, 0).commit([], list(range(6)))
    before = list(lease.blocks), list(lease.tokens), cache.room(), list(cache.pool.refs), dict(cache.pool.index)
    cache.begin(lease, 1, 9).abort()
    assert before == (lease.blocks, lease.tokens, cache.room(), cache.pool.refs, cache.pool.index)


def test_a_txn_ends_once() -> None:
    cache = Cache(8, 4)
    lease = cache.open([1])
    txn = cache.begin(lease, 1, 0)
    txn.commit([], [1])
    for again in (lambda: txn.commit([], [1]), txn.abort):
        with pytest.raises(IntegrityError, match="commits or aborts once"):
            again()
    assert lease.tokens == [1]
    other = cache.begin(lease, 0, 1)
    other.abort()
    with pytest.raises(IntegrityError, match="commits or aborts once"):
        other.abort()


def test_one_txn_per_lease_which_may_stay_open() -> None:
    cache = Cache(8, 4)
    a, b = cache.open([1]), cache.open([2])
    long = cache.begin(a, 1, 2)
    with pytest.raises(IntegrityError, match="without an open Txn"):
        cache.begin(a, 1, 0)
    for token in range(6):
        cache.begin(b, 1, 1).commit([], [token])
        cache.check_integrity()
    assert long.commit([1], [1, 9]) == [(2, 1)]


@pytest.mark.parametrize("counts", [(-1, 2), (1, -1)])
def test_counts_are_not_negative(counts: tuple[int, int]) -> None:
    cache = Cache(8, 4)
    with pytest.raises(IntegrityError, match="counts >= 0"):
        cache.begin(cache.open([1]), *counts)


@pytest.mark.parametrize(
    ("path", "tokens", "message"),
    [
        ([1, 0], [1, 7, 8], "ascending choice of 2"),
        ([0, 0], [1, 7, 8], "ascending choice of 2"),
        ([2], [1, 7], "ascending choice of 2"),
        ([-1], [1, 7], "ascending choice of 2"),
        ([0], [1], r"1 tokens are committed for 1 \+ 1 rows"),
        ([], [], "0 tokens"),
    ],
)
def test_a_wrong_path_changes_nothing(path: list[int], tokens: list[int], message: str) -> None:
    cache = Cache(8, 4)
    lease = cache.open([1])
    txn = cache.begin(lease, 1, 2)
    with pytest.raises(IntegrityError, match=message):
        txn.commit(path, tokens)
    assert lease.txn is txn and txn.commit([0], [1, 7]) == []


def test_without_room_nothing_changes() -> None:
    cache = Cache(2, 4)
    lease = cache.open([1])
    cache.begin(lease, 1, 0).commit([], [1])
    assert cache.needs(lease, 7) <= cache.room() < cache.needs(lease, 8)
    with pytest.raises(CapacityError, match="at least 3 blocks"):
        cache.begin(lease, 1, 7)
    assert lease.txn is None and len(lease.blocks) == 1 and cache.room() == 1
    cache.begin(lease, 1, 6)


def test_drafted_rows_are_never_found_before_the_commit() -> None:
    cache = Cache(8, 2)
    lease = cache.open([1, 2])
    txn = cache.begin(lease, 2, 4)
    assert not cache.pool.index
    txn.commit([0], [1, 2, 3])
    assert len(cache.pool.index) == 1 and cache.open([1, 2, 3, 4, 5]).length == 2
