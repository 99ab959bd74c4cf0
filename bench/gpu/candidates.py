"""Other forms of the products of `model/gpu/product.py`, for `bench/gpu/tiles.py`, which says what each would gain."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _float(word, MASK: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 plus bits of a fraction, in one instruction; the compiler alone makes two of it."""
    bits = tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, " + MASK + ", 0x3F800000, 0xEA;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
    )
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["rows", "each", "records"])  # type: ignore[untyped-decorator]
def by_groups(  # type: ignore[no-untyped-def]
    x, words, times, halves, out, rows, outputs, inputs, each, records,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """`out` [parts, rows, outputs] float32 from x [rows, inputs] and codes of 4 bits: half byte i of `words` [records,
    outputs, 8, 4] int32 at (g, j) is input 32 g + 8 j + i of a record, worth code * scale + low; scale and low of a
    group are `times` [records, outputs, 2, 8] uint8 times `halves` [records, outputs, 2]. The words that a thread loads
    at once are one group, whose scale it computes alone, and a record is one product of 256 inputs."""
    row, output = tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    group, quad, lane = tl.arange(0, 8), tl.arange(0, 4), tl.arange(0, INPUTS)
    mine, real, begin = row < rows, output < outputs, tl.program_id(1) * each
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for record in range(begin, tl.minimum(begin + each, records)):
        at = record.to(tl.int64) * outputs + output
        inner = group[None, :, None] * 4 + quad[None, None, :]
        word = tl.load(words + at[:, None, None] * 32 + inner, mask=real[:, None, None], other=0)
        scale = tl.load(times + at[:, None] * 16 + group[None, :], mask=real[:, None], other=0).to(tl.float32)
        scale *= tl.load(halves + at * 2, mask=real, other=0.0)[:, None]
        low = tl.load(times + at[:, None] * 16 + 8 + group[None, :], mask=real[:, None], other=0).to(tl.float32)
        low *= tl.load(halves + at * 2 + 1, mask=real, other=0.0)[:, None]
        s, t, u = (scale * 4096)[:, :, None], (scale * 256)[:, :, None], (scale * 16)[:, :, None]
        low = low[:, :, None]
        under, over, most = word << 11, word >> 1, word >> 13  # a code in bits 11, 15 or 19 and up
        a0 = tl.fma(_float(under, "0x7800"), s, low - s).to(tl.bfloat16)
        a1 = tl.fma(_float(under, "0x78000"), t, low - t).to(tl.bfloat16)
        a2 = tl.fma(_float(under, "0x780000"), u, low - u).to(tl.bfloat16)
        a3 = tl.fma(_float(over, "0x7800"), s, low - s).to(tl.bfloat16)
        a4 = tl.fma(_float(over, "0x78000"), t, low - t).to(tl.bfloat16)
        a5 = tl.fma(_float(over, "0x780000"), u, low - u).to(tl.bfloat16)
        a6 = tl.fma(_float(most, "0x7800"), s, low - s).to(tl.bfloat16)
        a7 = tl.fma(_float(most, "0x78000"), t, low - t).to(tl.bfloat16)
        w = tl.join(tl.join(tl.join(a0, a4), tl.join(a2, a6)), tl.join(tl.join(a1, a5), tl.join(a3, a7)))
        place = record * INPUTS + lane
        a = tl.load(x + row[None, :] * inputs + place[:, None], mask=mine[None, :], other=0.0)
        total = tl.dot(tl.reshape(w, [OUTPUTS, INPUTS]), a, total)
    place = (tl.program_id(1) * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + place, total, mask=mine[None, :] & real[:, None])
