"""The combiner against the better of its two policies."""

import random
from collections.abc import Set as AbstractSet

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cache.eviction import LRU
from paceline.cache.marking import Det, MarkPredict
from paceline.cache.shadow import Ghost, Shadow
from paceline.core.noise import EvictionNoise

from .paging import Given, belady, faulting
from .test_marking import flipped, instances


@settings(max_examples=300, derandomize=True, deadline=None)
@given(instances(), st.booleans())
def test_at_most_twice_the_better_and_k(case: tuple[list[int], int, list[bool]], swapped: bool) -> None:
    pages, k, where = case
    bits = flipped(belady(pages, k)[1], where)
    alone = min(sum(faulting(pages, k, LRU())), sum(faulting(pages, k, Det(Given(bits)))))
    pair = [LRU(), Det(Given(bits))]
    assert sum(faulting(pages, k, Shadow(k, *(pair[::-1] if swapped else pair)))) <= 2 * alone + k


@settings(max_examples=150, derandomize=True, deadline=None)
@given(instances())
def test_of_two_alike_it_is_the_one(case: tuple[list[int], int, list[bool]]) -> None:
    pages, k, where = case
    bits = flipped(belady(pages, k)[1], where)
    assert faulting(pages, k, Shadow(k, LRU(), LRU())) == faulting(pages, k, LRU())
    twins = [MarkPredict(Given(bits), EvictionNoise(1)) for _ in range(3)]
    assert faulting(pages, k, Shadow(k, twins[0], twins[1])) == faulting(pages, k, twins[2])


class Watched(Shadow):
    """Checks each choice by going through all candidates."""

    def victim(self, candidates: AbstractSet[int]) -> int:
        first, second = self._ghosts
        better = second if second.faults < first.faults else first
        names = dict(self._names)
        victim = super().victim(candidates)
        assert all(names[block] in better for block in candidates) or names[victim] not in better
        return victim


@settings(max_examples=150, derandomize=True, deadline=None)
@given(instances())
def test_what_the_better_would_not_hold_goes_first(case: tuple[list[int], int, list[bool]]) -> None:
    pages, k, where = case
    faulting(pages, k, Watched(k, LRU(), Det(Given(flipped(belady(pages, k)[1], where)))))


def test_it_follows_one_then_the_other() -> None:
    """On cycles Det is better, on random pages with inverted bits LRU: notes grow old."""
    rng = random.Random(0)
    pages = [p for _ in range(8) for p in (*(i % 9 for i in range(60)), *(rng.randrange(14) for _ in range(300)))]
    truth = belady(pages, 8)[1]
    bits = [bit ^ (i % 360 >= 60) for i, bit in enumerate(truth)]
    for turn in (1, -1):
        pair = [LRU(), Det(Given(bits))]
        faulting(pages, 8, Watched(8, *pair[::turn]))


def test_it_leaves_the_worse_one() -> None:
    """LRU faults at each page of a cycle; good bits do not, whichever policy comes first."""
    pages = [i % 9 for i in range(900)]
    best, truth = belady(pages, 8)
    for turn in (1, -1):
        pair = [LRU(), Det(Given(truth))]
        assert sum(faulting(pages, 8, Shadow(8, *pair[::turn]))) <= 2 * best


def test_a_ghost_changes_its_mind() -> None:
    """What a ghost has decided to forget may be asked for first."""
    ghost = Ghost(2, LRU())
    for name in (b"a", b"b"):
        assert ghost.ask(name, b"") is None
    assert ghost.full and ghost.peek() == b"a" == ghost.peek()
    assert ghost.ask(b"a", b"") is None and ghost.peek() == b"b"
    ghost.touch(b"b")
    assert ghost.ask(b"c", b"") == b"b" and b"b" not in ghost and b"a" in ghost and ghost.faults == 3
