"""Layouts of joined texts: stretches, cuts, moves and names."""

import random

import pytest

from paceline.core.joined import Layout, Stretch, cut, end_of, joined, moved, named, pieces, stretch_at, tidy


def random_layout(rng: random.Random, length: int, depth: int = 2) -> tuple[int, Layout]:
    """(tokens, layout) of a text that begins with a number of tokens, with blocks of branches within branches."""
    layout: Layout = ()
    while depth and rng.random() < 0.7:
        fork, branches = length, []
        for _ in range(rng.randint(1, 3)):
            inner = random_layout(rng, fork + rng.randint(1, 4), depth - 1) if not layout else (fork + 2, layout)
            branches.append((inner[0] + 1, inner[1]))
        layout = joined(fork, branches)
        length = fork + sum(size - fork for size, _ in branches) + rng.randint(1, 3)
    return length, layout


@pytest.mark.parametrize("seed", range(60))
def test_invariants(seed: int) -> None:
    rng = random.Random(seed)
    length, layout = random_layout(rng, rng.randint(0, 6))
    assert tidy(layout) == layout and (not layout or not layout[-1].hidden)
    for place in range(length):
        stretch = stretch_at(layout, place)
        assert 0 <= stretch.shift <= place and place < end_of(layout, place, length) <= length
        assert all(a < b <= place for a, b in stretch.hidden)
        assert pieces(layout, place, place + 1) == [stretch._replace(start=place)]
        assert (named(layout, place, place + 1) == []) == (not stretch.shift and not stretch.hidden)
    assert moved(moved(layout, 5), -5) == layout
    for size in range(length + 1):
        rest = cut(layout, size)
        assert rest is None or all(stretch.start < size for stretch in rest)


def test_a_single_branch_is_a_plain_text() -> None:
    assert joined(4, [(9, ())]) == ()


def test_two_branches() -> None:
    assert joined(3, [(5, ()), (7, ())]) == (Stretch(5, 2, ((3, 5),)), Stretch(9, 2))
    assert cut(joined(3, [(5, ()), (7, ())]), 4) == () and cut(joined(3, [(5, ()), (7, ())]), 8) is None
