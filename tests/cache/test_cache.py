"""The face of the cache: sharing prefixes, frontiers, rewind, fork, close, and the byte budget."""

import ast
from pathlib import Path

import pytest

import paceline.cache
from paceline.cache.cache import Cache
from paceline.cache.eviction import LRU
from paceline.cache.lease import Lease
from paceline.cache.policies import EVICTION_POLICIES, policy
from paceline.core.errors import IntegrityError

TEXT = list(range(10, 24))


def run(cache: Cache, tokens: list[int], *args: object) -> Lease:
    """A lease with all of `tokens` computed in all of its groups."""
    lease = cache.open(tokens, *args)  # type: ignore[arg-type]
    given = tokens[lease.length :]
    cache.begin(lease, len(given), 0).commit([], given)
    for group in lease.frontier:
        cache.advance(lease, group, lease.length)
    cache.seal(lease)
    cache.check_integrity()
    return lease


def test_a_prefix_is_shared_while_it_runs_and_after() -> None:
    cache = Cache(16, 4)
    first = run(cache, TEXT)
    second = cache.open([*TEXT[:9], 0, 0, 0])
    assert second.length == 8 and second.blocks == first.blocks[:2] and second.sealed == 2
    cache.close(first)
    cache.check_integrity()
    assert cache.open(TEXT).length == 12
    assert (cache.pool.hits, cache.pool.queries) == (5, 3 + 2 + 3)


def test_at_least_one_row_is_left_to_compute() -> None:
    cache = Cache(16, 4)
    run(cache, TEXT[:8])
    assert [cache.open(TEXT[:n]).length for n in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]


def test_another_key_or_no_prefix_cache_shares_nothing() -> None:
    cache = Cache(16, 4)
    run(cache, TEXT, None, "adapter")
    assert cache.open(TEXT).length == 0 and cache.open(TEXT, None, "adapter").length == 12
    off = Cache(16, 4, prefix=False)
    run(off, TEXT)
    assert off.open(TEXT).length == 0 and off.pool.queries == 0


def test_a_match_covers_all_groups() -> None:
    cache = Cache(16, 4, groups=("target", "draft"))
    run(cache, TEXT, ("target",))
    assert cache.open(TEXT, ("target",)).length == 12
    assert cache.open(TEXT).length == 0
    run(cache, TEXT)
    assert cache.open(TEXT).frontier == {"draft": 12}


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(IntegrityError, match="'draft'"):
        Cache(16, 4).open(TEXT, ("target", "draft"))


def test_blocks_are_published_only_below_every_frontier() -> None:
    cache = Cache(16, 4, groups=("target", "draft"))
    lease = cache.open(TEXT)
    cache.begin(lease, 14, 0).commit([], TEXT)
    assert lease.sealed == 0 and not cache.pool.index
    cache.advance(lease, "draft", 11)
    assert not cache.pool.index
    cache.seal(lease)
    assert lease.sealed == 2 == len(cache.pool.index)


@pytest.mark.parametrize(("group", "length"), [("draft", 15), ("draft", 7), ("draft", -1), ("target", 8), ("x", 8)])
def test_a_frontier_stays_in_its_range(group: str, length: int) -> None:
    cache = Cache(16, 4, groups=("target", "draft"))
    lease = cache.open(TEXT)
    cache.begin(lease, 14, 0).commit([], TEXT)
    cache.advance(lease, "draft", 8)
    cache.seal(lease)
    cache.begin(lease, 1, 1)
    with pytest.raises(IntegrityError, match=r"outside 8\.\.14"):
        cache.advance(lease, group, length)
    cache.advance(lease, "draft", 14)


def test_rewind_stops_at_immutable_blocks() -> None:
    cache = Cache(16, 4)
    lease = run(cache, TEXT)
    assert cache.rewind(lease, 14) == 14
    assert cache.rewind(lease, 13) == 13 and lease.sealed == 3
    assert cache.rewind(lease, 12) == 12 and len(lease.blocks) == 3
    assert cache.rewind(lease, 6) == 4 and lease.sealed == 1 and lease.tokens == TEXT[:4]
    cache.check_integrity()
    assert cache.open(TEXT).length == 12
    assert cache.rewind(lease, 0) == 0 and lease.blocks == []


def test_rewind_is_exact_in_private_blocks_and_cuts_frontiers() -> None:
    cache = Cache(16, 4, groups=("target", "draft"))
    lease = cache.open(TEXT)
    cache.begin(lease, 14, 0).commit([], TEXT)
    cache.advance(lease, "draft", 13)
    assert cache.rewind(lease, 6) == 6 and lease.frontier == {"draft": 6}
    twin = cache.fork(lease)
    assert twin.length == 4 and cache.rewind(lease, 3) == 0 and twin.length == 4
    cache.check_integrity()


def test_rewind_refuses_what_it_cannot_do() -> None:
    cache = Cache(16, 4)
    lease = run(cache, TEXT)
    for length in (-1, 15):
        with pytest.raises(IntegrityError, match=r"length in 0\.\.14"):
            cache.rewind(lease, length)
    cache.begin(lease, 1, 0)
    with pytest.raises(IntegrityError, match="without a Txn"):
        cache.rewind(lease, 3)


def test_a_fork_shares_full_blocks() -> None:
    cache = Cache(16, 4, groups=("target", "draft"))
    lease = cache.open(TEXT)
    cache.begin(lease, 14, 0).commit([], TEXT)
    cache.advance(lease, "draft", 5)
    txn = cache.begin(lease, 1, 4)
    room = cache.room()
    fork = cache.fork(lease)
    assert (fork.length, fork.frontier, fork.blocks, fork.txn) == (12, {"draft": 5}, lease.blocks[:3], None)
    assert cache.room() == room
    txn.commit([0], [1, 2])
    cache.begin(fork, 2, 0).commit([], [0, 0])
    cache.check_integrity()
    cache.close(lease)
    cache.check_integrity()
    assert fork.tokens == [*TEXT[:12], 0, 0]


def test_two_requests_that_compute_the_same_prefix() -> None:
    cache = Cache(16, 4)
    a, b = cache.open(TEXT), cache.open(TEXT)
    for lease in (a, b):
        cache.begin(lease, 14, 0).commit([], TEXT)
    cache.check_integrity()
    assert not set(a.blocks) & set(b.blocks) and len(cache.pool.index) == 3 and b.sealed == 3
    assert cache.rewind(b, 6) == 6
    cache.check_integrity()
    cache.close(b)
    cache.close(a)
    cache.check_integrity()
    assert len(cache.pool.evictable) == 3


def test_a_closed_lease_is_done_with() -> None:
    cache = Cache(16, 4)
    lease = run(cache, TEXT)
    txn = cache.begin(lease, 1, 8)
    cache.close(lease)
    cache.check_integrity()
    assert cache.room() == 16 and lease.length == 0 and not txn.open
    for use in (cache.close, cache.seal, cache.fork, lambda x: cache.begin(x, 1, 0), lambda x: cache.rewind(x, 0)):
        with pytest.raises(IntegrityError, match="closed"):
            use(lease)
    with pytest.raises(IntegrityError, match="another cache"):
        cache.close(Cache(16, 4).open([1]))


def test_drop_prefix_empties_the_index_only() -> None:
    cache = Cache(16, 4)
    cache.close(run(cache, TEXT))
    lease = run(cache, TEXT[:9])
    cache.drop_prefix()
    cache.check_integrity()
    assert cache.open(TEXT).length == 0 and lease.tokens == TEXT[:9] and cache.room() == 13


def test_needs_and_room() -> None:
    cache = Cache(4, 4)
    assert cache.blocks_for(0) == 0 and cache.blocks_for(5) == 2 and cache.needs(None, 9) == 3
    lease = run(cache, TEXT[:7])
    assert cache.needs(lease, 1) == 0 and cache.needs(lease, 2) == 1
    cache.begin(lease, 1, 4)
    assert cache.needs(lease, 0) == 0 and cache.room() == 1 and cache.needs(None, 5) > cache.room()


def test_gain_counts_what_closing_frees() -> None:
    cache = Cache(16, 4)
    lease = run(cache, TEXT)
    assert cache.gain(lease) == 4
    fork = cache.fork(lease)
    cache.begin(fork, 1, 4)
    for each, gain in ((lease, 1), (fork, 5)):
        room = cache.room()
        assert cache.gain(each) == gain
        cache.close(each)
        assert cache.room() == room + gain


def test_old_prefixes_make_room() -> None:
    cache = Cache(4, 4)
    cache.close(run(cache, TEXT))
    assert cache.room() == 4 and len(cache.pool.index) == 3
    lease = run(cache, [1] * 16)
    assert cache.pool.evictions == 3 and cache.room() == 0 and lease.sealed == 4


def test_the_room_imports_neither_torch_nor_a_clock() -> None:
    for path in Path(paceline.cache.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & {"torch", "time", "datetime", "random"}, path.name


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_text_loses_its_end_first(eviction: str) -> None:
    """Under any policy; so the rest of it stays of use."""
    cache = Cache(8, 1, eviction=policy(eviction)(8))
    cache.close(run(cache, TEXT[:8]))
    cache.close(cache.open(TEXT[:4]))
    for left in range(7, -1, -1):
        cache.pool.allocate(1)
        lease = cache.open(TEXT)
        assert lease.length == left
        cache.close(lease)


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_of_two_texts_that_share_a_start_it_goes_last(eviction: str) -> None:
    cache = Cache(8, 1, eviction=policy(eviction)(8))
    cache.close(run(cache, [1, 2, 3, 4, 5]))
    cache.close(run(cache, [1, 2, 6, 7, 8]))
    for _ in range(6):
        cache.pool.allocate(1)
    lease = cache.open([1, 2, 3])
    assert lease.length == 2
    cache.close(lease)


def test_content_computed_twice_at_once_was_asked_for_twice() -> None:
    """The second holder keeps its copy to itself, and the policy hears of the use all the same."""
    asked: list[int] = []

    class Listening(LRU):
        def ask(self, block: int, name: bytes, parent: bytes) -> None:
            asked.append(block)
            super().ask(block, name, parent)

    cache = Cache(8, 2, eviction=Listening())
    leases = [cache.open(TEXT[:5]) for _ in range(2)]
    for lease in leases:
        cache.begin(lease, 5, 0).commit([], TEXT[:5])
    assert leases[0].blocks != leases[1].blocks
    assert asked == leases[0].blocks[:2] * 2
    cache.pool.publish(leases[0].blocks[0], leases[0].hashes[0], leases[0].groups)
    assert len(asked) == 4, "sealed again, but not used again"


def test_a_group_with_a_state_cannot_lag() -> None:
    with pytest.raises(IntegrityError, match="cannot lag"):
        Cache(4, 4, groups=["draft"], states=["draft"], lagging=["draft"])
