"""Least-recently-used against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.cache.eviction import LRU


def park(lru: LRU, *blocks: int) -> None:
    for block in blocks:
        lru.touch(block)
        lru.offer(block)


def test_the_oldest_use_goes_first() -> None:
    lru = LRU()
    park(lru, 1, 2, 3, 1)
    assert [lru.victim({1, 2, 3}), lru.victim({1, 3}), lru.victim({1})] == [2, 3, 1]


def test_blocks_in_use_are_passed_over() -> None:
    lru = LRU()
    park(lru, 1, 2)
    assert lru.victim({2}) == 2
    park(lru, 1)
    assert lru.victim({1}) == 1


def test_a_block_offered_late_keeps_its_age() -> None:
    lru = LRU()
    lru.touch(1)
    park(lru, 2, 3)
    assert lru.victim({2, 3}) == 2
    lru.offer(1)
    assert lru.victim({1, 3}) == 1


@given(st.lists(st.tuples(st.sampled_from(["park", "use", "evict"]), st.integers(0, 5))))
def test_agrees_with_a_list(steps: list[tuple[str, int]]) -> None:
    lru, parked = LRU(), list[int]()
    for what, block in steps:
        if what == "evict" and parked:
            assert lru.victim(set(parked)) == parked.pop(0)
        elif what == "park" and block not in parked:
            park(lru, block)
            parked.append(block)
        elif what == "use" and block in parked:
            lru.ask(block, b"", b"")
            parked.remove(block)


def test_what_is_remembered_does_not_grow_with_use() -> None:
    lru = LRU()
    for i in range(1000):
        park(lru, i % 5)
    assert len(lru._heap) <= 11
    assert [lru.victim(set(range(5))) for _ in range(5)] == list(range(5))
