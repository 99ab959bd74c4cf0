"""Operations between the linear layers as one kernel each. Their reference forms in PyTorch: `model/blocks.py`."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.model.norms import LayerNorm, Norm

GATE_LANES = 1024
"""Numbers that one program gates."""
GATED_KINDS = {"silu": 0, "gelu_tanh": 1}


@triton.jit  # type: ignore[untyped-decorator]
def _norm(  # type: ignore[no-untyped-def]
    x, y, weight, bias, floor, out, x_row, x_part, out_row, out_part, width,
    LANES: tl.constexpr, ADDED: tl.constexpr, CENTRED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """One row, or one head of a row: x + y into x where ADDED, and the norm of that into `out`."""
    lane, part = tl.arange(0, LANES), tl.program_id(1)
    inside = lane < width
    at = x + tl.program_id(0).to(tl.int64) * x_row + part * x_part + lane
    value = tl.load(at, mask=inside, other=0.0)
    if ADDED:
        more = tl.load(y + tl.program_id(0).to(tl.int64) * width + lane, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(at, value, mask=inside)
    wide = value.to(tl.float32)
    if CENTRED:
        wide = tl.where(inside, wide - tl.sum(wide, 0) / width, 0.0)
    length = tl.sqrt(tl.sum(wide * wide, 0) + tl.load(floor) * tl.load(floor))
    normed = wide * tl.load(weight + part * width + lane, mask=inside, other=0.0) / length
    if BIASED:
        normed += tl.load(bias + part * width + lane, mask=inside, other=0.0)
    tl.store(out + tl.program_id(0).to(tl.int64) * out_row + part * out_part + lane, normed, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(both, out, width, KIND: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Activated gates times what is gated: `both` [T, 2 width], `out` [T, width]."""
    row, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = lane < width
    raw = tl.load(both + row * 2 * width + lane, mask=inside, other=0.0)
    gate = raw.to(tl.float32)
    up = tl.load(both + row * 2 * width + width + lane, mask=inside, other=0.0)
    if KIND == 0:
        gate = gate * tl.sigmoid(gate)
    else:
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out + row * width + lane, gate.to(raw.dtype).to(tl.float32) * up.to(tl.float32), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _look_up(table, token, out, width, factor, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of an embedding, times a factor."""
    row, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = lane < width
    x = tl.load(table + tl.load(token + row) * width + lane, mask=inside, other=0.0)
    tl.store(out + row * width + lane, x.to(tl.float32) * factor, mask=inside)


def norm(norm: Norm, x: Tensor, y: Tensor | None, out: Tensor) -> Tensor:
    """The norm of x [T, n], or of each head of x [T, heads, n], into `out`, which may be x. With y [T, n], of x + y,
    which x becomes."""
    heads = x.shape[1] if x.dim() == 3 else 1
    part = (x.stride(1), out.stride(1)) if x.dim() == 3 else (0, 0)
    grid: Any = (len(x), heads)
    _norm[grid](
        x, x if y is None else y, norm.weight, x if norm.bias is None else norm.bias, norm.floor, out,
        x.stride(0), part[0], out.stride(0), part[1], x.shape[-1], LANES=triton.next_power_of_2(x.shape[-1]),
        ADDED=y is not None, CENTRED=isinstance(norm, LayerNorm), BIASED=norm.bias is not None,
    )  # fmt: skip
    return out


class Kernelled:
    """A norm whose calls are one kernel."""

    def __call__(self: Any, x: Tensor) -> Tensor:
        return norm(self, x, None, torch.empty(x.shape, dtype=x.dtype, device=x.device))

    def joined(self: Any, x: Tensor, y: Tensor) -> Tensor:
        return norm(self, x, y.contiguous(), torch.empty_like(x))

    def over_(self: Any, x: Tensor) -> None:
        norm(self, x, None, x)


class KernelNorm(Kernelled, Norm):
    pass


class KernelLayerNorm(Kernelled, LayerNorm):
    pass


KERNEL_NORMS: dict[type[Norm], type[Norm]] = {Norm: KernelNorm, LayerNorm: KernelLayerNorm}


def kernelled(norm: Norm | None) -> Norm | None:
    """Norm by kernels; of another kind than RMS and layer norms, as it is."""
    if norm is None or type(norm) not in KERNEL_NORMS:
        return norm
    made: Norm = object.__new__(KERNEL_NORMS[type(norm)])
    made.__dict__.update(norm.__dict__)
    return made


def gated(activation: str, both: Tensor) -> Tensor:
    """Gates and what they gate [T, 2 width] -> [T, width]."""
    both = both.contiguous()
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    grid: Any = (rows, -(-width // GATE_LANES))
    _gate[grid](both, out, width, KIND=GATED_KINDS[activation], LANES=GATE_LANES)
    return out


def looked_up(table: Tensor, token: Tensor, dtype: torch.dtype, factor: float) -> Tensor:
    """Rows `token` [T] of an embedding [V, H], times a factor."""
    width = table.shape[1]
    out = torch.empty(len(token), width, dtype=dtype, device=table.device)
    grid: Any = (len(token), -(-width // GATE_LANES))
    _look_up[grid](table, token.contiguous(), out, width, factor, LANES=GATE_LANES)
    return out
