"""Rotation of queries and keys, and the way of keys and values into their slots: in PyTorch, and as one kernel."""

from typing import Any

from torch import Tensor


def rotate_(x: Tensor, turn: tuple[Tensor, Tensor]) -> None:
    """Rotate x [T, heads, head_dim] in place: (a, b) -> (a cos - b sin, b cos + a sin), halves being pairs."""
    cos, sin = turn
    x = x.narrow(-1, 0, cos.shape[-1])
    swapped = x.roll(cos.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)


def turn_and_write(qkv: Tensor, turn: tuple[Tensor, Tensor], slot: Tensor, pool: Tensor) -> None:
    """Rotate queries in place; write rotated keys, and values, of qkv [T, heads + 2 kv_heads, head_dim] to their slots
    [T] of a layer's pool [2, kv_heads, slots, head_dim]. A slot below 0 marks a row that nothing reads."""
    from paceline.attend.turn_kernel import turn_rows

    rows, heads, dim = qkv.shape
    cos, sin = turn
    grid: Any = (rows, heads)
    turn_rows[grid](
        qkv, cos, sin, slot, pool, qkv.stride(0), cos.stride(0), sin.stride(0), pool.shape[2],
        heads - 2 * pool.shape[1], pool.shape[1], DIM=dim, LANES=max(16, 1 << (dim - 1).bit_length()),
        TURNED=cos.shape[-1], enable_fp_fusion=False,
    )  # fmt: skip
