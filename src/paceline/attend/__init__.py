"""Attention of rows over their request's paged prefix and their own tree."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from paceline.attend.device import Device, tensors_on
from paceline.core.rows import Rows, RowsBuilder

log = logging.getLogger("paceline")


class Attend(Protocol):
    """One implementation serves one decoder and its pool; core/rows.py says which row sees which.

    The pool is [layers, 2, kv_heads, blocks, block_size, head_dim] in the storage dtype: keys then values; or with 1 in
    place of 2: keys that are the values, too. Heads come before blocks, so a request's keys are one strided matrix per
    head without a transpose.
    """

    slots: Tensor
    """The pool with blocks laid end to end: [layers, 2 or 1, kv_heads, blocks * block_size, head_dim]."""

    def prepare(self, rows: Rows) -> None:
        """Build what all layers share. Called once per forward pass, before its first layer."""

    def forward(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        """Write the rows' keys and values to their slots, then attend; None: they were written there in this pass.

        q [T, heads, head_dim] and kv [T, 2 or 1, kv_heads, head_dim], rotated, in the compute dtype; kv is rounded
        to the storage dtype before use, so that a row reads the same numbers as every later row. Returns
        [T, heads * head_dim] in the compute dtype. Each layer is written at most once after `prepare`.
        """

    def turned(self, layer: int, qkv: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """`forward` of queries, keys and values [T, heads + 2 kv_heads, head_dim] that are not rotated, which may be
        done in place; `turn`: cos and signed sin [T, 1, rotated] of the rows' positions."""


Make = Callable[[Tensor, Sequence[int | None], int, float, float | None], Attend]
"""From pool, window of each layer or None, heads, scale of the scores and their soft cap or None."""


def quickest(device: Device, dtype: torch.dtype) -> Make:
    """The implementations that work for a pool of this dtype on this device."""
    from paceline.attend.fused import Fused

    if not str(device).startswith("cuda") or dtype is torch.float64:
        return Fused
    try:
        from paceline.attend.triton import Triton

        if agree(Triton, Fused, tensors_on(device), dtype):
            return Triton
        log.warning("Attention's kernels are wrong on this device; it runs in PyTorch, slower. Please report it.")
    except ImportError:
        log.warning("Attention runs in PyTorch, slower than its kernels: Triton is not installed (pip install triton).")
    except Exception as error:  # what a compiler raises is not foreseen
        log.warning("Attention's kernels do not run on this device (%r); it runs in PyTorch, slower.", error)
    return Fused


@cache
def agree(one: Make, other: Make, device: torch.device, dtype: torch.dtype) -> bool:
    """Do both say the same of a prompt and of a tree behind a text?"""
    builder, stream = RowsBuilder(), torch.Generator().manual_seed(0)
    builder.add([0] * 4, [25, 26, 27, 28], [0, 2, 1], 41, depths=[1, 1, 2], words=[1, 2, 6])
    builder.add([0] * 20, [*range(48, 68)], [3, 4], 0)
    rows = builder.build(device)
    pool = torch.randn(1, 2, 2, 8, 16, 64, generator=stream).to(device, dtype)
    fused = torch.randn(rows.count, 8, 64, generator=stream).to(device, dtype)
    outs = []
    for make in (one, other):
        attend = make(pool.clone(), (None,), 4, 0.125, None)
        attend.prepare(rows)
        outs.append(attend.forward(0, fused.narrow(1, 0, 4), fused.narrow(1, 4, 4).view(-1, 2, 2, 64)).float())
    return torch.allclose(outs[0], outs[1], rtol=0.02, atol=0.02)
