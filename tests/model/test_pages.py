"""Memory of packed weights and of the pool."""

from itertools import pairwise

import pytest

from paceline.model import pages


def test_pieces_begin_with_a_cache_line_and_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ARENA_BYTES", 4096)
    sizes = [1, 64, 65, 5000, 4000, 200, 63]
    taken = [pages.take(size) for size in sizes]
    for number, piece in enumerate(taken):
        assert piece.data_ptr() % pages.CACHE_LINE_BYTES == 0
        piece.fill_(number + 1)
    for number, (size, piece) in enumerate(zip(sizes, taken)):
        assert len(piece) == size and bool((piece == number + 1).all())
    spans = sorted((piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in taken)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_zeros_begin_with_a_cache_line() -> None:
    for size in 1, 100, 5 << 20:
        found = pages.zeros(size)
        assert found.data_ptr() % pages.CACHE_LINE_BYTES == 0 and len(found) == size and not bool(found.any())
