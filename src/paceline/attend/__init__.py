"""Attention of rows over their request's paged prefix and their own tree."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.rows import Rows

log = logging.getLogger("paceline")


class Attend(Protocol):
    """One implementation serves one decoder and its pool; who sees what is written in core/rows.py.

    The pool is [layers, 2, kv_heads, blocks, block_size, head_dim] in the storage dtype: keys then values.
    Heads come before blocks, so a request's keys are one strided matrix per head without a transpose.
    """

    slots: Tensor
    """The pool with blocks laid end to end: [layers, 2, kv_heads, blocks * block_size, head_dim]."""

    def prepare(self, rows: Rows) -> None:
        """Build what all layers share. Called once per forward pass, before its first layer."""

    def forward(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        """Write the rows' keys and values to their slots, then attend.

        q [T, heads, head_dim] and kv [T, 2, kv_heads, head_dim], rotated, in the compute dtype; kv is rounded
        to the storage dtype before use, so that a row reads the same numbers as every later row. Returns
        [T, heads * head_dim] in the compute dtype. Each layer is called at most once after `prepare`.
        """


Make = Callable[[Tensor, Sequence[int | None], int, float, float | None], Attend]
"""From pool, window of each layer or None, heads, scale of the scores and their soft cap or None."""


def quickest(device: torch.device, dtype: torch.dtype) -> Make:
    """What there is for a pool of this dtype on this device."""
    from paceline.attend.fused import Fused

    if device.type != "cuda" or dtype is torch.float64:
        return Fused
    try:
        from paceline.attend.triton import Triton
    except ImportError:
        log.warning("Attention runs without a kernel of its own: Triton is not installed (pip install triton).")
        return Fused
    return Triton
