"""Rows of logits in chunks: what is computed beside them is bounded, whatever the rows of a pass and the vocabulary."""

from collections.abc import Iterator

from torch import Tensor

CHUNK_NUMBERS = 1 << 18
"""Of one chunk, where a row has fewer: a megabyte, which a core's cache holds."""
ON_DEVICE = 1 << 24
"""The same where every operation is a launch."""


def chunks(rows: Tensor) -> Iterator[slice]:
    """Consecutive rows of a matrix, at least one a chunk; nothing where it has none."""
    count, width = rows.shape
    step = max(1, (CHUNK_NUMBERS if rows.is_cpu else ON_DEVICE) // max(width, 1))
    return (slice(start, start + step) for start in range(0, count, step))
