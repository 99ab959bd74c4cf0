"""Memory for what is read in every pass: by whole cache lines, and in huge pages where the system has them."""

import ctypes
import math
import mmap
import sys

import numpy as np
import torch
from torch import Tensor

CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""
ARENA_BYTES = 64 << 20
"""Bytes taken at once for small matrices: NumPy asks the system for huge pages from 4 MB on."""

rest = torch.empty(0, dtype=torch.uint8)


def zeros(size: int) -> Tensor:
    """`size` bytes of the system's own zero pages: memory is taken as they are first written, not before. They begin
    with a cache line; NumPy's large arrays begin 16 bytes after one."""
    pages = np.zeros(size + CACHE_LINE_BYTES, dtype=np.uint8)
    first = -pages.ctypes.data % CACHE_LINE_BYTES
    return torch.from_numpy(pages[first : first + size])


def take(size: int) -> Tensor:
    """Memory of `size` bytes, never freed, next to what others take."""
    global rest
    room = -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    if room > len(rest):
        rest = zeros(max(room, ARENA_BYTES))
    taken, rest = rest[:size], rest[room:]
    return taken


DONTNEED = 4
"""madvise's MADV_DONTNEED, which loses nothing of a mapped file whose pages are not written: they are read again.
Unlike MADV_PAGEOUT it also works on a file that belongs to someone else or that another process has mapped."""


def give_back(tensor: Tensor) -> None:
    """The memory of the whole pages of a mapped file that it lies in; a later read makes the system read
    them again."""
    page = mmap.PAGESIZE
    first, last = -(-tensor.data_ptr() // page), (tensor.data_ptr() + tensor.nbytes) // page
    if last > first and sys.platform == "linux":
        size = ctypes.c_size_t((last - first) * page)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first * page), size, DONTNEED)


def tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not garbage: a masked key has weight 0, and 0 times a stray NaN would be NaN. On a CPU memory is taken as
    blocks are first used, not all of the budget at start."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
