"""Least-recently-used against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.cache.eviction import LRU


def test_the_oldest_touch_goes_first() -> None:
    lru = LRU()
    for block in (1, 2, 3, 1):
        lru.touch(block)
    assert [lru.victim({1, 2, 3}), lru.victim({1, 3}), lru.victim({1})] == [2, 3, 1]


def test_blocks_in_use_are_passed_over() -> None:
    lru = LRU()
    for block in (1, 2):
        lru.touch(block)
    assert lru.victim({2}) == 2
    lru.touch(1)
    assert lru.victim({1}) == 1


@given(st.lists(st.tuples(st.sampled_from(["park", "use", "evict"]), st.integers(0, 5))))
def test_agrees_with_a_list(steps: list[tuple[str, int]]) -> None:
    lru, parked = LRU(), list[int]()
    for what, block in steps:
        if what == "evict" and parked:
            assert lru.victim(set(parked)) == parked.pop(0)
        elif what == "park" and block not in parked:
            lru.touch(block)
            parked.append(block)
        elif what == "use" and block in parked:
            lru.touch(block)
            parked.remove(block)
