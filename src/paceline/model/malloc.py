"""How glibc's malloc treats large buffers while a model is loaded."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
SMALL_BUFFER_BYTES, LARGE_BUFFER_BYTES = 1 << 16, 1 << 25
"""Bytes from which a buffer gets pages of its own, which go back to the system when it is freed."""


@contextmanager
def exact() -> Iterator[None]:
    """Within it, what is freed is given back at once. By default the threshold rises to the largest buffer freed yet,
    and matrices that were converted leave holes between those that stay: a 120 MB model then takes 220 MB. Afterwards
    the threshold is the largest that the default reaches, so that a pass gets the pages of the last one again."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):  # musl has none, and no such threshold
        yield
        return
    libc.mallopt(MMAP_THRESHOLD, SMALL_BUFFER_BYTES)
    try:
        yield
    finally:
        libc.malloc_trim(0)
        libc.mallopt(MMAP_THRESHOLD, LARGE_BUFFER_BYTES)
        libc.mallopt(TRIM_THRESHOLD, 2 * LARGE_BUFFER_BYTES)
