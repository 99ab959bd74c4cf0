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
FILLING_PROGRAMS, FILLING_FLOAT_PROGRAMS = 256, 192
"""Programs that fill a device, roughly; for matrices in floats, whose programs read more."""
MIN_PART_INPUTS = 512
FOUR_BIT_OUTPUTS, FOUR_BIT_WARPS, FOUR_BIT_STAGES = 128, 8, 3
"""Tile of outputs for codes of 4 bits, the warps that compute it, and the records on their way at a time."""
GROUP_INPUTS, RECORD_GROUPS = 32, 8
"""Inputs of a group of 4-bit codes, and groups whose scales share a factor."""


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    x, weight, scale, bias, out, rows, outputs, inputs, stride, each,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, PARTS: tl.constexpr,
    SCALED: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """PARTS parts of `each` inputs for a tile of outputs and of rows. With one part of several, which program 1 counts,
    `out` [parts, rows, outputs] float32 is its sum; with all of them `out` [rows, outputs] is the result. TURNED: the
    outputs are the rows of a tensor core's tile, so that weights go to it straight from shared memory (bf16 on an H200:
    3.93 ms in place of 4.53 for the matrices of 8 B; int8, which is converted on the way, takes 3.70 in place of 2.62)
    """
    row, output = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane, mine, real = tl.arange(0, INPUTS), row < rows, output < outputs
    line = output.to(tl.int64)[None, :] * inputs
    total = tl.zeros([OUTPUTS, ROWS] if TURNED else [ROWS, OUTPUTS], tl.float32)
    for part in range(PARTS):
        begin = (tl.program_id(1) + part) * each
        added = tl.zeros([OUTPUTS, ROWS] if TURNED else [ROWS, OUTPUTS], tl.float32)
        for at in range(begin, tl.minimum(begin + each, inputs), INPUTS):
            place = at + lane
            inside = place < inputs
            a = tl.load(x + row[:, None] * stride + place[None, :], mask=mine[:, None] & inside[None, :], other=0.0)
            w = tl.load(weight + line + place[:, None], mask=inside[:, None] & real[None, :], other=0)
            if WIDE:
                a, w = a.to(tl.float32), w.to(tl.float32)
            if TURNED:
                added = tl.dot(tl.trans(w), tl.trans(a), added, input_precision="ieee")
            else:
                added = tl.dot(a, w.to(a.dtype), added, input_precision="ieee")
        total += added
    if TURNED:
        total = tl.trans(total)
    if SCALED:
        total *= tl.load(scale + output, mask=real, other=0.0)[None, :]
    if BIASED:
        total += tl.load(bias + output, mask=real, other=0.0).to(tl.float32)[None, :]
    place = (tl.program_id(1) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + place, total, mask=mine[:, None] & real[None, :])


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _multiply4(  # type: ignore[no-untyped-def]
    x, words, times, halves, bias, out, rows, outputs, inputs, stride, each, records,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As `_multiply`, TURNED, of codes of 4 bits: half byte i of `words` [outputs, records, 32] int32 at j is input
    32 i + j of a record of 8 groups, worth code * scale + low. Scale and low are `times` [2, 8 records, outputs] uint8
    times `halves` [2, records, outputs] float32. A part has `each` records. A code goes into the upper bits of a
    float's fraction, which takes no conversion."""
    row, output = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane, mine, real = tl.arange(0, 32), row < rows, output < outputs
    line = output.to(tl.int64) * records
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for part in range(PARTS):
        begin = (tl.program_id(1) + part) * each
        added = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for record in range(begin, tl.minimum(begin + each, records)):
            word = tl.load(words + (line + record)[:, None] * 32 + lane[None, :], mask=real[:, None], other=0)
            half = tl.load(halves + record * outputs + output, mask=real, other=0.0)
            deep = tl.load(halves + (records + record) * outputs + output, mask=real, other=0.0)
            for i in tl.static_range(8):
                group = record * 8 + i
                scale = tl.load(times + group * outputs + output, mask=real, other=0).to(tl.float32) * half
                low = tl.load(times + (records * 8 + group) * outputs + output, mask=real, other=0).to(tl.float32)
                low *= deep
                place = group * 32 + lane
                seen = mine[None, :] & (place < inputs)[:, None]
                a = tl.load(x + row[None, :] * stride + place[:, None], mask=seen, other=0.0)
                if WIDE:
                    a = a.to(tl.float32)
                moved = word << (19 - 4 * i) if i < 5 else word >> (4 * i - 19)
                code = ((moved & 0x780000) | 0x3F800000).to(tl.float32, bitcast=True)  # 1 + code / 16
                w = tl.fma(code, (16 * scale)[:, None], (low - 16 * scale)[:, None]).to(a.dtype)
                added = tl.dot(w, a, added, input_precision="ieee")
        total += added
    total = tl.trans(total)
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


def parts_of(outputs: int, inputs: int, programs: int = FILLING_PROGRAMS, tile: int = TILE_OUTPUTS) -> int:
    """Parts that the inputs of a matrix are cut into, by its shape alone. `tile`: outputs of a program."""
    tiles, parts = -(-outputs // tile), 1
    while tiles * parts < programs and inputs >= 2 * parts * MIN_PART_INPUTS:
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
            TURNED=scale is None, num_stages=stages(x), enable_fp_fusion=False,
        )  # fmt: skip

    return in_parts(x, outputs, parts, launch, scale, bias)


def product4(
    x: Tensor, words: Tensor, halves: Tensor, times: Tensor, inputs: int, bias: Tensor | None, parts: int
) -> Tensor:
    """x [T, in] times codes of 4 bits in groups; see `_multiply4`."""
    x, (outputs, records, _) = rowwise(x), words.shape
    each = -(-records // parts)

    def launch(out: Tensor, here: int, grid: Any) -> None:
        _multiply4[grid](
            x, words, times, halves, x if bias is None else bias, out,
            len(x), outputs, inputs, x.stride(0), each, records,
            ROWS=tile_rows(len(x)), OUTPUTS=FOUR_BIT_OUTPUTS, PARTS=here, BIASED=here == parts and bias is not None,
            WIDE=interpreted(), num_stages=FOUR_BIT_STAGES, num_warps=FOUR_BIT_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return in_parts(x, outputs, parts, launch, None, bias, FOUR_BIT_OUTPUTS)


def in_parts(
    x: Tensor, outputs: int, parts: int, launch: Any, scale: Tensor | None, bias: Tensor | None,
    tile: int = TILE_OUTPUTS,
) -> Tensor:  # fmt: skip
    """Few rows: a program for each part, and their sums added up. Many: a program adds its parts up itself, alike."""
    out, rows = x.new_empty(len(x), outputs), len(x)
    tiles = -(-outputs // tile)
    if parts == 1 or rows > TILE_ROWS:
        launch(out, parts, (tiles, 1, -(-rows // tile_rows(rows))))
        return out
    sums = torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    launch(sums, 1, (tiles, parts, 1))
    _add_up[(-(-outputs // TILE_OUTPUTS), rows)](
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
