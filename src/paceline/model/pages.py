"""Memory for what is read in every pass: by whole cache lines, and in huge pages where the system has them."""

import math

import numpy as np
import torch
from torch import Tensor

LINE = 64
"""Bytes of a cache line."""
PIECE = 64 << 20
"""Bytes taken at once for small matrices: NumPy asks the system for huge pages from 4 MB on."""

rest = torch.empty(0, dtype=torch.uint8)


def zeros(size: int) -> Tensor:
    """`size` bytes of the system's own zero pages: memory is taken as they are first written, not before. They begin
    with a cache line; NumPy's large arrays begin 16 bytes after one."""
    pages = np.zeros(size + LINE, dtype=np.uint8)
    first = -pages.ctypes.data % LINE
    return torch.from_numpy(pages[first : first + size])


def take(size: int) -> Tensor:
    """`size` bytes for good, side by side with what others take."""
    global rest
    room = -(-size // LINE) * LINE
    if room > len(rest):
        rest = zeros(max(room, PIECE))
    taken, rest = rest[:size], rest[room:]
    return taken


def tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not garbage: a masked key has weight 0, and 0 times a stray NaN would be NaN. On a CPU memory is taken as
    blocks are first used, not all of the budget at start."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
