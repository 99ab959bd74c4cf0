"""A mixture's products on a GPU: all experts of a pass in one kernel, without waiting for the host."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.attend.device import interpreted
from paceline.attend.triton import tiles_of
from paceline.model.blocks import Mixture, routes
from paceline.model.gpu.matrices import KernelMatrix, pack_floats
from paceline.model.gpu.product import TILE_INPUTS, TILE_OUTPUTS
from paceline.model.linear import Linear, WideMatrix

EXPERT_ROWS = 16
"""Rows of a tile."""


@triton.jit  # type: ignore[untyped-decorator]
def _multiply_experts(  # type: ignore[no-untyped-def]
    x, weights, biases, tiles, counts, starts, order, out, share, outputs, inputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Rows of one expert times its matrix of `weights` [E, out, in]: `tiles[i]` = (expert, its first row); its rows are
    `order[starts[expert] ...]`, numbers of lines of `out`; a line's input is row line // share of x."""
    expert, first = tl.load(tiles + tl.program_id(0) * 2), tl.load(tiles + tl.program_id(0) * 2 + 1)
    if expert < 0:
        return
    rank = first + tl.arange(0, ROWS)
    mine = rank < tl.load(counts + expert)
    line = tl.load(order + tl.load(starts + expert) + rank, mask=mine, other=0)
    output, lane = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    real = output < outputs
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for at in range(0, inputs, INPUTS):
        place = at + lane
        inside = place < inputs
        a = tl.load(
            x + (line // share)[:, None] * inputs + place[None, :], mask=mine[:, None] & inside[None, :], other=0.0
        )
        w = tl.load(
            weights + (expert * outputs + output)[None, :] * inputs + place[:, None],
            mask=inside[:, None] & real[None, :],
            other=0.0,
        )
        if WIDE:
            a, w = a.to(tl.float32), w.to(tl.float32)
        total = tl.dot(a, w, total, input_precision="ieee")
    if BIASED:
        total += tl.load(biases + expert * outputs + output, mask=real, other=0.0).to(tl.float32)[None, :]
    tl.store(out + line[:, None] * outputs + output[None, :], total, mask=mine[:, None] & real[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(parts, shares, out, width, ACTIVE: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The products of a row's experts [T, ACTIVE, width] times their shares, added in the order of the experts."""
    row, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = lane < width
    total = tl.zeros([LANES], tl.float32)
    for rank in range(ACTIVE):
        part = tl.load(parts + (row * ACTIVE + rank) * width + lane, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(shares + row * ACTIVE + rank).to(tl.float32)
    tl.store(out + row * width + lane, total, mask=inside)


@dataclass(slots=True)
class Stack:
    """One matrix of every expert, [E, out, in], and biases [E, out]."""

    weights: Tensor
    biases: Tensor | None

    @classmethod
    def of(cls, matrices: "list[Any]") -> "Stack | None":
        """None where they are no matrices of floats."""
        if not all(isinstance(it, KernelMatrix) and it.scale is None for it in matrices):
            return None
        biases = None if matrices[0].bias is None else torch.stack([it.bias for it in matrices])
        return cls(torch.stack([it.weight for it in matrices]), biases)

    def times(self, x: Tensor, plan: "tuple[Tensor, Tensor, Tensor, Tensor]", lines: int, share: int) -> Tensor:
        tiles, counts, starts, order = plan
        outputs, inputs = self.weights.shape[1:]
        out = x.new_empty(lines, outputs)
        grid: Any = (len(tiles), -(-outputs // TILE_OUTPUTS))
        _multiply_experts[grid](
            x.contiguous(), self.weights, x if self.biases is None else self.biases, tiles, counts, starts, order, out,
            share, outputs, inputs, ROWS=EXPERT_ROWS, OUTPUTS=TILE_OUTPUTS, INPUTS=TILE_INPUTS,
            BIASED=self.biases is not None, WIDE=interpreted(), enable_fp_fusion=False,
        )  # fmt: skip
        return out


@dataclass(slots=True)
class GroupedMixture(Mixture):
    """A mixture whose experts' matrices are stacked. Its reference form is `Mixture`, which asks the host which experts
    there are. `experts` keeps the first alone, for how its gates are mixed; reads are not counted."""

    inner: Stack | None = None
    outer: Stack | None = None

    def __call__(self, x: Tensor, told: Tensor | None = None) -> Tensor:
        assert self.inner is not None and self.outer is not None
        weights, chosen = routes(self.form, self.router(x if told is None else told), self.correction)
        if self.factors is not None:
            weights = weights * self.factors[chosen]
        chosen, by_number = chosen.sort(-1)
        weights = weights.gather(-1, by_number)
        if self.record is not None:
            self.record(chosen)
        flat, experts = chosen.flatten(), self.form.count
        counts = torch.zeros(experts, dtype=torch.int64, device=x.device).scatter_add_(0, flat, torch.ones_like(flat))
        order, starts = flat.argsort(stable=True), counts.cumsum(0) - counts
        plan = (tiles_of(counts, len(flat), EXPERT_ROWS), counts, starts, order)
        hidden = self.experts[0].mixed(self.inner.times(x, plan, len(flat), self.form.active))
        parts = self.outer.times(hidden, plan, len(flat), 1)
        y, width = torch.empty_like(x), x.shape[1]
        grid: Any = (len(x), -(-width // 1024))
        _weigh[grid](parts, weights.to(x.dtype).contiguous(), y, width, ACTIVE=self.form.active, LANES=1024)
        return self.add_shared(x, y)


@dataclass(frozen=True, slots=True)
class WideKernelMatrix:
    """`WideMatrix` by a kernel: a row's experts do not depend on the other rows."""

    matrix: KernelMatrix

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix(x.to(self.matrix.weight.dtype))


def by_kernel(matrix: Linear | None) -> Linear | None:
    return WideKernelMatrix(pack_floats(matrix.weight, matrix.bias)) if isinstance(matrix, WideMatrix) else matrix


def grouped(mixture: Mixture) -> Mixture:
    """Mixture with its router by a kernel and, where its experts are in floats, these stacked."""
    mixture.router, mixture.shared_gate = by_kernel(mixture.router) or mixture.router, by_kernel(mixture.shared_gate)
    first = mixture.experts[0]
    inner, outer = (Stack.of([getattr(it, name) for it in mixture.experts]) for name in ("gate_up", "down"))
    if inner is None or outer is None or mixture.form.weighs_inputs:
        return mixture
    return GroupedMixture(
        mixture.form, mixture.router, [first], mixture.shared, mixture.shared_gate, mixture.correction,
        factors=mixture.factors, inner=inner, outer=outer,
    )  # fmt: skip
