"""Chunks of rows of logits: they bound the memory of intermediate results, whatever the rows of a pass and the
vocabulary."""

from collections.abc import Iterator

from torch import Tensor

CHUNK_NUMBERS = 1 << 18
"""Numbers per chunk, unless a single row has more: one megabyte, which fits into a core's cache."""
ON_DEVICE = 1 << 24
"""Numbers per chunk on a device, where every operation is a launch."""


def chunks(rows: Tensor) -> Iterator[slice]:
    """Consecutive rows of a matrix, at least one a chunk; nothing where it has none."""
    count, width = rows.shape
    step = max(1, (CHUNK_NUMBERS if rows.is_cpu else ON_DEVICE) // max(width, 1))
    return (slice(start, start + step) for start in range(0, count, step))
