"""Attention of rows over their request's paged prefix and their own tree."""

from typing import Protocol

from torch import Tensor

from paceline.core.rows import Rows


class Attend(Protocol):
    """One implementation serves one decoder and its pool; who sees what is written in core/rows.py.

    The pool is [layers, 2, kv_heads, blocks, block_size, head_dim] in the storage dtype: keys then values.
    Heads come before blocks, so a request's keys are one strided matrix per head without a transpose.
    """

    def prepare(self, rows: Rows) -> None:
        """Build what all layers share. Called once per forward pass, before its first layer."""

    def forward(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        """Write the rows' keys and values to their slots, then attend.

        q [T, heads, head_dim] and kv [T, 2, kv_heads, head_dim], rotated, in the compute dtype; kv is rounded
        to the storage dtype before use, so that a row reads the same numbers as every later row. Returns
        [T, heads * head_dim] in the compute dtype. Each layer is called at most once after `prepare`.
        """
