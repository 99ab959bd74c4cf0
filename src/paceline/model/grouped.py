"""Weights of 4, 5, 6 or 8 bits in groups of 32 along the input, as native/grouped.h reads them: weight = scale * code +
low, or scale * table[code].

Scales and lows lie in the smallest of the forms that keeps them exactly, so what another tool has quantised stays what
it was, in about the bits that it had (`ScaleForm`). Activations are rounded to int8 by group, or by record where scales
are whole. `twin` is the slow twin of the native product.
"""

from enum import IntEnum
from math import ceil

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model import pages
from paceline.model.groups import GROUP, TABLES, Groups, regrouped
from paceline.model.packed import BLOCK_OUTPUTS, Packed, address
from paceline.native.structs import CLinear

RECORD = 8
"""Groups of a record."""
MAX_SUPER_FACTOR = 63
"""Largest integer by which `SUPER` multiplies, in files of other tools (Q4_K: 6 bits)."""
TABLE_ZERO = 128
"""Added to what a table holds, so that no code is below 0."""


class ScaleForm(IntEnum):
    """What scale and low of a group are made of, by their bits for each weight (native/grouped.h). Z is the middle of
    the codes, 128 with a table."""

    ZEROS = 1
    """0.75. A half h and a byte z: h, -h z. GPTQ, AWQ."""
    PAIRS = 2
    """1. Halves h, k: h, k. Q4_1, Q5_1."""
    SUPER = 3
    """0.625. Halves h, k of 8 groups, bytes a, b of one: h a, k b. Q4_K, Q5_K."""
    FLOATS = 4
    """2. Two floats: whatever else there is."""
    HALF = 5
    """0.5. A half h: h, -h Z. Q4_0, Q5_0, Q8_0, IQ4_NL, compressed-tensors."""
    EXPONENT = 6
    """0.25. A byte e: 2^(e - 128), -Z times that. MXFP4."""
    SIXTEENS = 7
    """0.5625. A half h of 8 groups, a signed byte a of each 16 inputs: h a, -h a Z. Q6_K, Q3_K."""
    SIGNED = 8
    """0.3125. A half h of 8 groups, a signed byte a of one: h a, -h a Z. IQ4_XS."""


WHOLE_SCALES = (ScaleForm.SUPER, ScaleForm.SIXTEENS, ScaleForm.SIGNED)
"""Forms whose groups' scales are whole numbers: a record is added up in whole numbers."""


def planes(form: ScaleForm, groups: int, spread: int = 0) -> tuple[tuple[int, torch.dtype], ...]:
    """The head of a record of `groups` groups, in order: how many numbers of each output, and their type.
    2^spread groups share theirs."""
    scales = -(-groups >> spread) if spread else groups
    found: dict[ScaleForm, tuple[tuple[int, torch.dtype], ...]] = {
        ScaleForm.ZEROS: ((scales, torch.half), (scales, torch.uint8)),
        ScaleForm.PAIRS: ((scales, torch.half), (scales, torch.half)),
        ScaleForm.SUPER: ((1, torch.half), (1, torch.half), (groups, torch.uint8), (groups, torch.uint8)),
        ScaleForm.FLOATS: ((scales, torch.float), (scales, torch.float)),
        ScaleForm.HALF: ((scales, torch.half),),
        ScaleForm.EXPONENT: ((scales, torch.uint8),),
        ScaleForm.SIXTEENS: ((1, torch.half), (2 * groups, torch.int8)),
        ScaleForm.SIGNED: ((1, torch.half), (groups, torch.int8)),
    }
    return found[form]


def head_bytes(form: ScaleForm, groups: int, spread: int = 0) -> int:
    """Bytes that the scales and minimums of a record of `groups` groups take."""
    size = sum(number * BLOCK_OUTPUTS * kind.itemsize for number, kind in planes(form, groups, spread))
    return -(-size // 64) * 64


def block_bytes(inputs: int, bits: int, form: ScaleForm, spread: int = 0) -> int:
    groups = -(-inputs // GROUP)
    full, rest = divmod(groups, RECORD)
    heads = full * head_bytes(form, RECORD, spread) + (head_bytes(form, rest, spread) if rest else 0)
    return heads + groups * bits * 128


def size(outputs: int, inputs: int, bits: int, form: ScaleForm) -> int:
    """Bytes of a packed matrix with its bias."""
    return -(-outputs // BLOCK_OUTPUTS) * (block_bytes(inputs, bits, form) + 4 * BLOCK_OUTPUTS)


def size_of(outputs: int, inputs: int, bits: float) -> int:
    """Bytes of a packed matrix with its bias, from `bits` per weight with the scales included."""
    outputs, inputs = (-(-n // 32) * 32 for n in (outputs, inputs))
    return ceil(outputs * inputs * bits / 8) + 4 * outputs


# -- packing ----------------------------------------------------------------------------------------------------------


def pack_stored(groups: Groups, bias: Tensor | None = None) -> Packed:
    """A matrix that is quantised already, kept exactly, but for groups of 16 with a minimum (Q2_K), which are rounded
    to 8 bits. Raises CheckpointError where its scales are not finite."""
    if groups.size % GROUP and (groups.minimum is not None or sixteens(groups.scale) is None):
        groups = regrouped(groups)
    if groups.table:
        return pack_groups(
            groups.codes.view(torch.uint8), groups.scale, -TABLE_ZERO * groups.scale, bias, 4, groups.size, groups.table
        )
    codes, scale, low = groups.even()
    return pack_groups(codes, scale, low, bias, groups.bits, groups.size)


def pack_groups(
    codes: Tensor, scale: Tensor, low: Tensor, bias: Tensor | None = None, bits: int = 4, size: int = GROUP,
    table: int = 0,
) -> Packed:  # fmt: skip
    """A matrix that is quantised already: weight = scale * code + low.

    codes: uint8 [out, in], below 2^bits (4, 5, 6 or 8); scale, low: float32 [out, ceil(in / size)]; size: inputs of a
    group, 16 or a multiple of 32. table: codes of 4 bits stand for `groups.TABLES[table]`, plus 128. Raises
    CheckpointError where scales are not finite.
    """
    scale, low = scale.float(), low.float()
    if not (scale.isfinite().all() and low.isfinite().all()):
        raise CheckpointError("scales of a quantised tensor are not finite; download the checkpoint again.")
    zero = TABLE_ZERO if table else 1 << (bits - 1)
    even = bool((low == -zero * scale).all())
    if size < GROUP:
        found = sixteens(scale) if even and bits in (4, 6) else None
        assert found is not None, "groups of 16 are packed where their scales are whole and there is no minimum"
        return lay(codes, ScaleForm.SIXTEENS, found, bias, bits)
    spread, times = shared(size, codes.shape[1])
    if times > 1:
        scale, low = (x.repeat_interleave(times, 1)[:, : -(-codes.shape[1] // (GROUP << spread))] for x in (scale, low))
    form, parts, power = smallest(scale, low, bits, table, spread, even)
    if bits == 6:
        bits = 8
    return lay(codes, form, parts, bias, bits, table, spread, power)


def shared(size: int, inputs: int) -> tuple[int, int]:
    """(spread, times): groups of `size` as 2^spread groups of 32 that share a scale, each repeated `times` times."""
    groups = size // GROUP
    if groups in (1, 2, 4, 8):
        return groups.bit_length() - 1, 1
    if size >= inputs:
        return 3, -(-groups // 8)
    return (3, groups // 8) if groups % 8 == 0 else (0, groups)


Parts = tuple[Tensor, ...]


def smallest(
    scale: Tensor, low: Tensor, bits: int, table: int, spread: int, even: bool
) -> tuple[ScaleForm, Parts, int]:
    """The smallest form that holds them exactly, its parts, each [out, groups] (or records), and the power of two that
    its halves are times. `even`: low is -Z scale."""
    if even and bool((exponents(scale) >= 0).all()):
        return ScaleForm.EXPONENT, (exponents(scale),), 0
    power = halved(scale)
    if even:
        if table and not spread and power is None and (signed := factored(scale, RECORD, True)) is not None:
            return ScaleForm.SIGNED, signed, 0
        if power is not None:
            return ScaleForm.HALF, (scale * 2.0**-power,), power
    if power is not None and not table:
        zero = torch.where(scale == 0, 0, (-low / scale).round())
        if bool(((zero >= 0) & (zero <= 255) & (-scale * zero == low)).all()):
            return ScaleForm.ZEROS, (scale * 2.0**-power, zero), power
    elif bits in (4, 5) and not table and not spread:
        high, deep = factored(scale, RECORD), factored(low, RECORD)
        if high is not None and deep is not None:
            return ScaleForm.SUPER, (high[0], deep[0], high[1], deep[1]), 0
    power = halved(torch.cat((scale, low), 1))
    if power is not None:
        return ScaleForm.PAIRS, (scale * 2.0**-power, low * 2.0**-power), power
    return ScaleForm.FLOATS, (scale, low), 0


def sixteens(scale: Tensor) -> Parts | None:
    """The parts of `SIXTEENS`, or None."""
    return factored(scale, 2 * RECORD, True)


def halved(x: Tensor) -> int | None:
    """The power of two times which float16 holds all of it; None: there is none. 0 where it can be."""
    top = float(x.abs().max()) if x.numel() else 0.0
    for power in (0, torch.frexp(torch.tensor(top))[1].item() - 15):
        if -120 < power < 120 and bool(((x * 2.0**-power).half().float() == x * 2.0**-power).all()):
            return int(power)
    return None


def exponents(x: Tensor) -> Tensor:
    """e of 2^(e - 128), for 0 (and what is below the least normal number) 0; -1 where x is none of these."""
    mantissa, power = torch.frexp(x)
    e = power + 127
    fits = (mantissa == 0.5) & (e > 2) & (e < 255)
    return torch.where(fits, e, torch.where((x >= 0) & (x < 2.0**-126), 0, -1)).float()


def factored(x: Tensor, each: int, signed: bool = False) -> tuple[Tensor, Tensor] | None:
    """x [out, groups] as halves [out, records] times whole numbers [out, groups], up to 63, or -128 to 127 where they
    are `signed`; None: it is not. The largest of a record's `each` is some whole number of the half."""
    out, groups = x.shape
    wide = records(x, each)
    top = wide.gather(2, wide.abs().argmax(2, keepdim=True)).squeeze(2).reshape(-1)
    flat, half = wide.reshape(-1, each), torch.zeros_like(top)
    open_ = top.nonzero().squeeze(1)
    least, most = (-128, 127) if signed else (0, MAX_SUPER_FACTOR)
    wholes = (
        [-128, *(n for size in range(127, 0, -1) for n in (size, -size))] if signed else range(MAX_SUPER_FACTOR, 0, -1)
    )
    for whole in wholes:
        if not len(open_):
            break
        guess = top[open_] / whole
        times = flat[open_] / guess[:, None]
        fits = ((times == times.round()) & (times >= least) & (times <= most)).all(1) & (guess.half().float() == guess)
        half[open_[fits]] = guess[fits]
        open_ = open_[~fits]
    if len(open_):
        return None
    times = torch.where(half[:, None] == 0, 0, flat / half[:, None])
    return half.view(out, -1), times.view(out, -1)[:, :groups]


def records(x: Tensor, each: int = RECORD) -> Tensor:
    """[out, groups] -> [out, records, each], with zeros behind the end."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % each)).view(len(x), -1, each)


def lay(
    codes: Tensor, form: ScaleForm, parts: Parts, bias: Tensor | None, bits: int, table: int = 0, spread: int = 0,
    power: int = 0,
) -> Packed:  # fmt: skip
    """Codes [out, in] and the parts of their scales in memory, record by record."""
    outputs, inputs = codes.shape
    missing = -outputs % BLOCK_OUTPUTS
    codes = torch.nn.functional.pad(codes, (0, -inputs % GROUP, 0, missing))
    blocks, groups = len(codes) // BLOCK_OUTPUTS, codes.shape[1] // GROUP
    parts = tuple(torch.nn.functional.pad(part, (0, 0, 0, missing)).view(blocks, BLOCK_OUTPUTS, -1) for part in parts)
    quads = codes.view(blocks, 2, 16, groups, 8, 4)
    memory = pages.take(blocks * block_bytes(inputs, bits, form, spread)).view(blocks, -1)
    at = 0
    for first in range(0, groups, RECORD):
        count = min(RECORD, groups - first)
        lines = in_lines(quads[:, :, :, first : first + count].permute(0, 1, 3, 4, 2, 5), bits)
        head = torch.cat([plane.reshape(blocks, -1) for plane in heads(form, parts, first, count, spread)], 1)
        memory[:, at : at + head.shape[1]] = head
        at += head_bytes(form, count, spread)
        memory[:, at : at + count * bits * 128].view(lines.shape).copy_(lines)
        at += count * bits * 128
    bias = None if bias is None else torch.nn.functional.pad(bias.float(), (0, missing))
    c = CLinear(address(memory), None, None, address(bias), inputs, outputs, form, bits, table, spread, power)
    return Packed(memory, bias, None, None, c)


def in_lines(quads: Tensor, bits: int) -> Tensor:
    """Codes [.., quad, output, 4] as lines [.., line, output, 4]: grouped.h says how."""
    if bits == 8:
        return quads
    low = quads & 15
    lines = [low[:, :, :, 0::2] | low[:, :, :, 1::2] << 4]
    if bits > 4:
        each = bits - 4
        high = (quads >> 4).view(*quads.shape[:3], each, 8 // each, *quads.shape[4:])
        shifts = torch.arange(0, 8, each, dtype=torch.uint8).view(-1, 1, 1)
        lines.append((high << shifts).sum(4, dtype=torch.uint8))
    return torch.cat(lines, 3)


def of_lines(lines: Tensor, bits: int) -> Tensor:
    """What `in_lines` was given."""
    if bits == 8:
        return lines
    low = lines[:, :, :, :4]
    quads = torch.stack((low & 15, low >> 4), 4).flatten(3, 4)
    if bits > 4:
        each = bits - 4
        shifts = torch.arange(0, 8, each, dtype=torch.uint8).view(-1, 1, 1)
        quads = quads | ((lines[:, :, :, 4:, None] >> shifts & (1 << each) - 1) << 4).flatten(3, 4)
    return quads


def heads(form: ScaleForm, parts: Parts, first: int, count: int, spread: int) -> list[Tensor]:
    """The head of a record, bytes [blocks, ...] in their order."""
    record, scales = first // RECORD, (first >> spread, (first >> spread) + (-(-count >> spread) if spread else count))

    def of(part: Tensor, span: tuple[int, int], dtype: torch.dtype) -> Tensor:
        return part[:, :, span[0] : span[1]].transpose(1, 2).to(dtype).contiguous().view(torch.uint8)

    once, whole = (record, record + 1), (first, first + count)
    kinds = {
        ScaleForm.ZEROS: ((scales, torch.half), (scales, torch.uint8)),
        ScaleForm.PAIRS: ((scales, torch.half), (scales, torch.half)),
        ScaleForm.SUPER: ((once, torch.half), (once, torch.half), (whole, torch.uint8), (whole, torch.uint8)),
        ScaleForm.FLOATS: ((scales, torch.float), (scales, torch.float)),
        ScaleForm.HALF: ((scales, torch.half),),
        ScaleForm.EXPONENT: ((scales, torch.uint8),),
        ScaleForm.SIXTEENS: ((once, torch.half), ((2 * first, 2 * (first + count)), torch.int8)),
        ScaleForm.SIGNED: ((once, torch.half), (whole, torch.int8)),
    }[form]
    return [of(part, span, kind) for part, (span, kind) in zip(parts, kinds, strict=True)]


def unpack(packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, scale, low) as `pack_groups` takes them, from memory, of each 32 inputs, or 16."""
    codes, parts = parts_of(packed)
    scale, low = floats_of(packed, parts)
    return codes, scale, low


def parts_of(packed: Packed) -> tuple[Tensor, list[Tensor]]:
    """Codes [out, in] and the parts that `lay` was given, float32: what native/grouped.h reads."""
    c, blocks = packed.c, len(packed.weight)
    groups, form = -(-c.inputs // GROUP), ScaleForm(c.form)
    codes, found = [], list[list[Tensor]]()
    at = 0
    for first in range(0, groups, RECORD):
        count = min(RECORD, groups - first)
        found.append(of_head(form, packed.weight[:, at : at + head_bytes(form, count, c.spread)], count, c.spread))
        at += head_bytes(form, count, c.spread)
        lines = packed.weight[:, at : at + count * c.bits * 128].view(blocks, 2, count, c.bits, 16, 4)
        at += count * c.bits * 128
        codes.append(of_lines(lines, c.bits).permute(0, 1, 4, 2, 3, 5).reshape(blocks * BLOCK_OUTPUTS, -1))
    parts = [
        torch.cat(part, 1).transpose(1, 2).reshape(blocks * BLOCK_OUTPUTS, -1)[: c.outputs] for part in zip(*found)
    ]
    return torch.cat(codes, 1)[: c.outputs, : c.inputs], parts


def floats_of(packed: Packed, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and low [out, groups]: what native/grouped.h does in `decode`."""
    c, form = packed.c, ScaleForm(packed.c.form)
    groups = -(-c.inputs // GROUP)
    zero, by = float(TABLE_ZERO if c.table else 1 << (c.bits - 1)), 2.0**c.power

    def each(part: Tensor, times: int) -> Tensor:
        return part.repeat_interleave(times, 1)[:, : groups * (2 if form == ScaleForm.SIXTEENS else 1)]

    if form == ScaleForm.SUPER:
        return each(parts[0], RECORD) * parts[2], each(parts[1], RECORD) * parts[3]
    if form in (ScaleForm.SIXTEENS, ScaleForm.SIGNED):
        scale = each(parts[0], 2 * RECORD if form == ScaleForm.SIXTEENS else RECORD) * parts[1]
        return scale, -zero * scale
    scale = parts[0] * by
    if form == ScaleForm.EXPONENT:
        scale = torch.where(parts[0] == 0, 0, torch.exp2(parts[0] - 128))
    low = -zero * scale
    if form == ScaleForm.ZEROS:
        low = parts[1] * -scale
    elif form in (ScaleForm.PAIRS, ScaleForm.FLOATS):
        low = parts[1] * by
    return each(scale, 1 << c.spread), each(low, 1 << c.spread)


def of_head(form: ScaleForm, head: Tensor, count: int, spread: int) -> list[Tensor]:
    """The parts [blocks, groups, 32] of a record's head, float32."""
    at, parts = 0, []
    for number, kind in planes(form, count, spread):
        taken = head[:, at : at + number * BLOCK_OUTPUTS * kind.itemsize].contiguous().view(kind)
        parts.append(taken.view(len(head), number, BLOCK_OUTPUTS).float())
        at += number * BLOCK_OUTPUTS * kind.itemsize
    return parts


def meaning(packed: Packed, codes: Tensor) -> Tensor:
    """What codes are multiplied as, double."""
    if packed.c.table:
        return torch.tensor(TABLES[packed.c.table]).double()[codes.int()] + TABLE_ZERO
    return codes.double()


def looked_up(packed: Packed, outputs: Tensor) -> Tensor:
    """The weights [T, in] of some outputs [T], float32: of an embedding."""
    c = packed.c
    every = CLinear(
        None, None, None, None, c.inputs, len(outputs) * BLOCK_OUTPUTS, c.form, c.bits, c.table, c.spread, c.power
    )
    codes, scale, low = unpack(Packed(packed.weight[outputs // BLOCK_OUTPUTS], None, None, None, every))
    which = torch.arange(len(outputs)) * BLOCK_OUTPUTS + outputs % BLOCK_OUTPUTS
    each = 16 if c.form == ScaleForm.SIXTEENS else GROUP
    scale, low = (x[which].double().repeat_interleave(each, 1)[:, : c.inputs] for x in (scale, low))
    return (meaning(packed, codes[which]) * scale + low).float()


def twin(packed: Packed, x: Tensor) -> Tensor:
    """[T, in] -> [T, out], float32: group by group, or record by record where scales are whole, each step rounded as a
    fused multiplication and addition is."""
    c, form = packed.c, ScaleForm(packed.c.form)
    codes, parts = parts_of(packed)
    x = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % GROUP))
    w = torch.nn.functional.pad(meaning(packed, codes), (0, -codes.shape[1] % GROUP))
    share = GROUP * RECORD if form in WHOLE_SCALES else GROUP
    parts_of_x = torch.nn.functional.pad(x, (0, -x.shape[1] % share)).view(len(x), -1, share)
    by = parts_of_x.abs().amax(2) / 127
    whole = (parts_of_x * torch.where(by > 0, 1 / by, 0)[:, :, None]).round().flatten(1)[:, : x.shape[1]].double()
    total = torch.zeros(len(x), len(codes))

    def add(to: Tensor, number: Tensor, times: Tensor) -> Tensor:
        return (to + number * times.double()).float()

    if form in WHOLE_SCALES:
        each = 16 if form == ScaleForm.SIXTEENS else GROUP
        zero = TABLE_ZERO if c.table else 1 << (c.bits - 1)
        a = parts[2] if form == ScaleForm.SUPER else parts[1]
        b = parts[3] if form == ScaleForm.SUPER else a
        for first in range(0, x.shape[1], GROUP * RECORD):
            high, deep = torch.zeros(2, len(x), len(codes), dtype=torch.double)
            for at in range(first, min(first + GROUP * RECORD, x.shape[1]), each):
                some, group = slice(at, at + each), at // each
                high += whole[:, some] @ w[:, some].T * a[:, group].double()
                deep += whole[:, some].sum(1, keepdim=True) * b[:, group].double()
            record = first // (GROUP * RECORD)
            if form == ScaleForm.SUPER:
                y = add(high.float() * parts[0][:, record], deep.float().double(), parts[1][:, record])
            else:
                y = (high - zero * deep).float() * parts[0][:, record]
            total = add(total, y.double(), by[:, record, None])
    else:
        scale, low = floats_of(packed, parts)
        for g in range(scale.shape[1]):
            some = slice(g * GROUP, g * GROUP + GROUP)
            y = (whole[:, some] @ w[:, some].T).float() * scale[:, g]
            y = add(y, whole[:, some].sum(1, keepdim=True), low[:, g])
            total = add(total, y.double(), by[:, g, None])
    bias = 0 if packed.bias is None else packed.bias[: len(codes)].double()
    return (total.double() + bias).float()
