"""The life of a block: free, held, evictable; and the names in the index."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import pytest

from paceline.cache.blocks import BlockPool, chain_hash, root_hash
from paceline.core.errors import CapacityError, InputError, IntegrityError

T, TD = frozenset({"target"}), frozenset({"target", "draft"})


def named(pool: BlockPool, *names: bytes, groups: frozenset[str] = T) -> list[int]:
    """Held blocks published under these names."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names):
        pool.publish(block, name, groups)
    return blocks


def test_sizes_must_be_positive() -> None:
    with pytest.raises(InputError, match="block_size is 0"):
        BlockPool(4, 0)
    with pytest.raises(CapacityError, match="at least 1"):
        BlockPool(0, 4)


def test_free_blocks_go_before_evictable_ones() -> None:
    pool = BlockPool(3, 4)
    (old,) = named(pool, b"a")
    pool.release([old])
    assert pool.room == 3
    assert old not in pool.allocate(2) and pool.evictions == 0
    assert pool.allocate(1) == [old] and pool.evictions == 1
    assert not pool.index and pool.hashes[old] is None


def test_eviction_takes_the_end_of_the_oldest_chain() -> None:
    pool = BlockPool(4, 4)
    first, second = named(pool, b"a1", b"a2"), named(pool, b"b1", b"b2")
    pool.release(reversed(first))
    pool.release(reversed(second))
    assert pool.find(b"a1", T) == first[0]
    assert [pool.allocate(1)[0] for _ in range(4)] == [first[1], second[1], second[0], first[0]]


def test_without_room_nothing_changes() -> None:
    pool = BlockPool(3, 4)
    (old,) = named(pool, b"a")
    pool.release([old])
    pool.allocate(1)
    with pytest.raises(CapacityError, match=r"3 cache blocks of 4 tokens .* 2 of 3 .* at least 4 blocks"):
        pool.allocate(3)
    assert pool.room == 2 and pool.find(b"a", T) == old and pool.evictions == 0


def test_a_found_block_leaves_and_rejoins_the_evictable_ones() -> None:
    pool = BlockPool(2, 4)
    (block,) = named(pool, b"a")
    pool.release([block])
    pool.acquire(block)
    assert pool.room == 1 and pool.refs[block] == 1
    pool.acquire(block)
    pool.release([block])
    assert pool.room == 1 and pool.immutable(block)


def test_the_first_of_two_equal_blocks_stays() -> None:
    pool = BlockPool(2, 4)
    first, second = named(pool, b"a", b"a")
    assert pool.find(b"a", T) == first and not pool.immutable(second)
    pool.release([second])
    assert second in pool.free


def test_a_block_complete_in_more_groups_replaces() -> None:
    pool = BlockPool(3, 4)
    (first,) = named(pool, b"a")
    pool.release([first])
    assert pool.find(b"a", TD) is None
    (second,) = named(pool, b"a", groups=TD)
    assert pool.find(b"a", TD) == pool.find(b"a", T) == second and first in pool.free
    named(pool, b"a", groups=frozenset({"target", "other"}))
    assert pool.find(b"a", T) == second


def test_without_prefix_nothing_is_published() -> None:
    pool = BlockPool(1, 4, prefix=False)
    (block,) = named(pool, b"a")
    assert pool.find(b"a", T) is None
    pool.release([block])
    assert pool.free == [block]


def test_broken_life_cycles_are_refused() -> None:
    pool = BlockPool(2, 4)
    with pytest.raises(IntegrityError, match="Block 0 is free"):
        pool.acquire(0)
    with pytest.raises(IntegrityError, match="Block 0 is released more often"):
        pool.release([0])
    with pytest.raises(IntegrityError, match="Block 0 cannot be published"):
        pool.publish(0, b"a", T)
    with pytest.raises(IntegrityError, match="Block 0 is not in the index"):
        pool.forget(0)
    (block,) = named(pool, b"a")
    with pytest.raises(IntegrityError, match="holds other content"):
        pool.publish(block, b"b", T)


def test_a_policy_cannot_evict_a_held_block() -> None:
    class Wrong:
        def ask(self, block: int, name: bytes, parent: bytes) -> None: ...

        def touch(self, block: int) -> None: ...

        def offer(self, block: int) -> None: ...

        def victim(self, candidates: AbstractSet[int]) -> int:
            return next(b for b in range(9) if b not in candidates)

    pool = BlockPool(2, 4, Wrong())
    blocks = named(pool, b"a", b"b")
    pool.release(blocks[:1])
    with pytest.raises(IntegrityError, match=f"chose block {blocks[1]}, which is not evictable"):
        pool.allocate(1)


def test_names_depend_on_everything_before() -> None:
    root = root_hash("")
    names = {
        chain_hash(root, [1, 2]),
        chain_hash(root, [2, 1]),
        chain_hash(root, [1, -2]),
        chain_hash(root_hash("adapter"), [1, 2]),
        chain_hash(chain_hash(root, [1, 2]), [1, 2]),
        root,
        root_hash("adapter"),
    }
    assert len(names) == 7 and {len(name) for name in names} == {16}
    assert chain_hash(root, [2**61 - 1]) != chain_hash(root, [0]) and hash(2**61 - 1) == hash(0)


def damage_refs(pool: BlockPool) -> None:
    pool.refs[0] += 1


def damage_free(pool: BlockPool) -> None:
    pool.free.append(pool.free[0])


def damage_state(pool: BlockPool) -> None:
    pool.free.append(0)


def damage_index(pool: BlockPool) -> None:
    pool.index[b"x"] = 0


def damage_name(pool: BlockPool) -> None:
    pool.hashes[0] = b"x"


def damage_evictable(pool: BlockPool) -> None:
    pool.evictable.add(pool.free.pop())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_refs, "Block 0 counts 2 holders and has 1"),
        (damage_free, "Block 2 is twice in the free list"),
        (damage_state, "Block 0 is not exactly one"),
        (damage_index, "index leads to block 0"),
        (damage_name, "Block 0 has a name"),
        (damage_evictable, "Block 1 is evictable but not published"),
    ],
)
def test_check_names_the_block(damage: Callable[[BlockPool], None], message: str) -> None:
    pool = BlockPool(3, 4)
    named(pool, b"a")
    pool.check({0: 1})
    damage(pool)
    with pytest.raises(IntegrityError, match=message):
        pool.check({0: 1})
