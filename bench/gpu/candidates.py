"""Other forms of the products of `model/gpu/product.py`, for `bench/gpu/tiles.py`, which says what each would gain."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def by_outputs(  # type: ignore[no-untyped-def]
    x, weight, out, rows, outputs, inputs, each, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr
):
    """`out` [parts, rows, outputs] float32 from x [rows, inputs] and weight [outputs, inputs], as `_multiply`; here the
    outputs are the rows of a tensor core's tile, of which Hopper's instruction needs 64."""
    row, output = tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane, mine, real = tl.arange(0, INPUTS), row < rows, output < outputs
    line, begin = output.to(tl.int64)[:, None] * inputs, tl.program_id(1) * each
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for at in range(begin, tl.minimum(begin + each, inputs), INPUTS):
        place = at + lane
        inside = place < inputs
        a = tl.load(x + row[None, :] * inputs + place[:, None], mask=mine[None, :] & inside[:, None], other=0.0)
        w = tl.load(weight + line + place[None, :], mask=inside[None, :] & real[:, None], other=0)
        total = tl.dot(w.to(a.dtype), a, total)
    place = (tl.program_id(1) * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + place, total, mask=mine[None, :] & real[:, None])


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def by_words(  # type: ignore[no-untyped-def]
    x, words, times, halves, out, rows, outputs, inputs, each, records,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    """Codes of 4 bits: half byte i of `words` [outputs, records, 32] int32 at j is input 32 i + j of a record, worth
    code * scale + low; scale and low are `times` [2, 8 records, outputs] uint8 times `halves` [2, records, outputs].
    A code goes into the upper bits of a float's fraction, which costs no conversion. Parts of `each` records."""
    row, output = tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane, mine, real = tl.arange(0, 32), row < rows, output < outputs
    begin, line = tl.program_id(1) * each, output.to(tl.int64) * records
    total = tl.zeros([OUTPUTS, ROWS] if SWAPPED else [ROWS, OUTPUTS], tl.float32)
    for record in range(begin, tl.minimum(begin + each, records)):
        word = tl.load(words + (line + record)[:, None] * 32 + lane[None, :], mask=real[:, None], other=0)
        half = tl.load(halves + record * outputs + output, mask=real, other=0.0)
        deep = tl.load(halves + (records + record) * outputs + output, mask=real, other=0.0)
        for i in tl.static_range(8):
            group = record * 8 + i
            scale = tl.load(times + group * outputs + output, mask=real, other=0).to(tl.float32) * half
            low = tl.load(times + (records * 8 + group) * outputs + output, mask=real, other=0).to(tl.float32) * deep
            place = group * 32 + lane
            seen = mine[None, :] & (place < inputs)[:, None]
            a = tl.load(x + row[None, :] * inputs + place[:, None], mask=seen, other=0.0)
            moved = word << (19 - 4 * i) if i < 5 else word >> (4 * i - 19)
            code = ((moved & 0x780000) | 0x3F800000).to(tl.float32, bitcast=True)  # 1 + code / 16
            w = (code * (16 * scale)[:, None] + (low - 16 * scale)[:, None]).to(a.dtype)
            if SWAPPED:
                total = tl.dot(w, a, total)
            else:
                total = tl.dot(tl.trans(a), tl.trans(w), total)
    if SWAPPED:
        total = tl.trans(total)
    place = (tl.program_id(1) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + place, total, mask=mine[:, None] & real[None, :])
