"""Kernels of linear layers: x [rows, in] times a matrix [out, in].

Bits of a row do not depend on the other rows: a tile has a fixed number of inputs, added in their order, and where the
inputs are cut into parts so that few outputs fill a device, the number of parts is fixed by the matrix's shape and the
parts are added in their order. 1 to 32 rows are one tile of 16 or 32, whose rows a tensor core multiplies alike.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.attend.device import interpreted

TILE_ROWS = 32
"""Most rows of a tile: up to here each weight is read once."""
TILE_OUTPUTS, TILE_INPUTS = 64, 128
FILLING_PROGRAMS = 256
"""Programs that fill a device, roughly."""
MIN_PART_INPUTS = 512
GROUP_INPUTS, RECORD_GROUPS = 32, 8
"""Inputs of a group of 4-bit codes, and groups whose scales share a factor."""


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    x, weight, scale, bias, out, rows, outputs, inputs, stride, each,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, PARTS: tl.constexpr,
    SCALED: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """PARTS parts of `each` inputs for a tile of outputs and of rows. With one part of several, which program 1 counts,
    `out` [parts, rows, outputs] float32 is its sum; with all of them `out` [rows, outputs] is the result."""
    row, output = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane, mine, real = tl.arange(0, INPUTS), row < rows, output < outputs
    line = output.to(tl.int64)[None, :] * inputs
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for part in range(PARTS):
        begin = (tl.program_id(1) + part) * each
        added = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for at in range(begin, tl.minimum(begin + each, inputs), INPUTS):
            place = at + lane
            inside = place < inputs
            a = tl.load(x + row[:, None] * stride + place[None, :], mask=mine[:, None] & inside[None, :], other=0.0)
            w = tl.load(weight + line + place[:, None], mask=inside[:, None] & real[None, :], other=0)
            if WIDE:
                a, w = a.to(tl.float32), w.to(tl.float32)
            added = tl.dot(a, w.to(a.dtype), added, input_precision="ieee")
        total += added
    if SCALED:
        total *= tl.load(scale + output, mask=real, other=0.0)[None, :]
    if BIASED:
        total += tl.load(bias + output, mask=real, other=0.0).to(tl.float32)[None, :]
    place = (tl.program_id(1) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + place, total, mask=mine[:, None] & real[None, :])


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _multiply4(  # type: ignore[no-untyped-def]
    x, weight, halves, times, bias, out, rows, outputs, inputs, stride, each, pairs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, RECORD: tl.constexpr, PARTS: tl.constexpr,
    BIASED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As `_multiply`, of codes in groups: byte i of pair p of `weight` [out, pairs, 32] has code i of group 2 p in its
    low half and that of group 2 p + 1 in its high one. A value is code * scale + low, and scale and low are `times`
    [2, out, 2 pairs] uint8 times `halves` [2, out, records] float32."""
    row, output = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane, mine, real = tl.arange(0, GROUP), row < rows, output < outputs
    wide, records = output.to(tl.int64), (2 * pairs + RECORD - 1) // RECORD
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for part in range(PARTS):
        begin = (tl.program_id(1) + part) * each
        added = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for pair in range(begin, tl.minimum(begin + each, pairs)):
            both = tl.load(weight + (wide * pairs + pair)[None, :] * GROUP + lane[:, None], mask=real[None, :], other=0)
            for side in tl.static_range(2):
                group = 2 * pair + side
                place = group * GROUP + lane
                seen = mine[:, None] & (place < inputs)[None, :]
                a = tl.load(x + row[:, None] * stride + place[None, :], mask=seen, other=0.0)
                if WIDE:
                    a = a.to(tl.float32)
                codes = ((both >> (4 * side)) & 15).to(a.dtype)
                at, half = wide * 2 * pairs + group, wide * records + group // RECORD
                scale = tl.load(times + at, mask=real, other=0).to(tl.float32) * tl.load(halves + half, mask=real)
                at, half = at + outputs * 2 * pairs, half + outputs * records
                low = tl.load(times + at, mask=real, other=0).to(tl.float32) * tl.load(halves + half, mask=real)
                added += tl.dot(a, codes, input_precision="ieee") * scale[None, :]
                added += tl.sum(a.to(tl.float32), 1)[:, None] * low[None, :]
        total += added
    if BIASED:
        total += tl.load(bias + output, mask=real, other=0.0).to(tl.float32)[None, :]
    place = (tl.program_id(1) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + place, total, mask=mine[:, None] & real[None, :])


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _add_up(  # type: ignore[no-untyped-def]
    parts, scale, bias, out, rows, outputs,
    PARTS: tl.constexpr, OUTPUTS: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The parts of one row, in their order."""
    row, output = tl.program_id(1).to(tl.int64), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    real = output < outputs
    total = tl.zeros([OUTPUTS], tl.float32)
    for part in range(PARTS):
        total += tl.load(parts + (part * rows + row) * outputs + output, mask=real, other=0.0)
    if SCALED:
        total *= tl.load(scale + output, mask=real, other=0.0)
    if BIASED:
        total += tl.load(bias + output, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + output, total, mask=real)


def parts_of(outputs: int, inputs: int) -> int:
    """Parts that the inputs of a matrix are cut into, by its shape alone."""
    tiles, parts = -(-outputs // TILE_OUTPUTS), 1
    while tiles * parts < FILLING_PROGRAMS and inputs >= 2 * parts * MIN_PART_INPUTS:
        parts *= 2
    return parts


def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, parts: int) -> Tensor:
    """x [T, in] times weight [out, in], floats or int8 with a scale for each output: [T, out] in the dtype of x. The
    inputs are added up in `parts`."""
    x, (outputs, inputs) = rowwise(x), weight.shape
    each = -(-inputs // (parts * TILE_INPUTS)) * TILE_INPUTS
    none = x  # never read

    def launch(out: Tensor, here: int, grid: Any) -> None:
        last = here == parts
        _multiply[grid](
            x, weight, none if scale is None else scale, none if bias is None else bias, out,
            len(x), outputs, inputs, x.stride(0), each,
            ROWS=tile_rows(len(x)), OUTPUTS=TILE_OUTPUTS, INPUTS=TILE_INPUTS, PARTS=here,
            SCALED=last and scale is not None, BIASED=last and bias is not None, WIDE=interpreted(),
            num_stages=stages(x), enable_fp_fusion=False,
        )  # fmt: skip

    return in_parts(x, outputs, parts, launch, scale, bias)


def product4(
    x: Tensor, weight: Tensor, halves: Tensor, times: Tensor, inputs: int, bias: Tensor | None, parts: int
) -> Tensor:
    """x [T, in] times codes of 4 bits in groups; see `_multiply4`."""
    x, (outputs, pairs, group) = rowwise(x), weight.shape
    each = -(-pairs // parts)

    def launch(out: Tensor, here: int, grid: Any) -> None:
        _multiply4[grid](
            x, weight, halves, times, x if bias is None else bias, out,
            len(x), outputs, inputs, x.stride(0), each, pairs,
            ROWS=tile_rows(len(x)), OUTPUTS=TILE_OUTPUTS, GROUP=group, RECORD=RECORD_GROUPS, PARTS=here,
            BIASED=here == parts and bias is not None, WIDE=interpreted(), num_stages=stages(x), enable_fp_fusion=False,
        )  # fmt: skip

    return in_parts(x, outputs, parts, launch, None, bias)


def in_parts(x: Tensor, outputs: int, parts: int, launch: Any, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """Few rows: a program for each part, and their sums added up. Many: a program adds its parts up itself, alike."""
    out, rows = x.new_empty(len(x), outputs), len(x)
    tiles = -(-outputs // TILE_OUTPUTS)
    if parts == 1 or rows > TILE_ROWS:
        launch(out, parts, (tiles, 1, -(-rows // tile_rows(rows))))
        return out
    sums = torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    launch(sums, 1, (tiles, parts, 1))
    _add_up[(tiles, rows)](
        sums, x if scale is None else scale, x if bias is None else bias, out, rows, outputs,
        PARTS=parts, OUTPUTS=TILE_OUTPUTS, SCALED=scale is not None, BIASED=bias is not None, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def stages(x: Tensor) -> int:
    """Tiles of weights on their way at a time: as many as fit next to one another."""
    return 4 if x.itemsize == 2 else 2


def tile_rows(rows: int) -> int:
    return 16 if rows <= 16 else TILE_ROWS


def rowwise(x: Tensor) -> Tensor:
    """With the numbers of a row side by side."""
    return x if x.stride(1) == 1 else x.contiguous()
