"""Weights of 4 or 8 bits in groups of 32 along the input, as native/grouped.h reads them: weight = scale * code + low.

Scales and lows lie in the smallest of four forms that keeps them exactly, so what another tool has quantised stays what
it was (`ScaleForm`). Activations are rounded to int8 by row. `twin` is the slow twin of the native product.
"""

from enum import IntEnum
from math import ceil

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model import pages
from paceline.model.groups import GROUP
from paceline.model.packed import BLOCK_OUTPUTS, Packed, address
from paceline.native.structs import CLinear

RECORD = 8
"""Groups of a record."""
MAX_SUPER_FACTOR = 63
"""Largest integer by which `SUPER` multiplies, in files of other tools (Q4_K: 6 bits)."""


class ScaleForm(IntEnum):
    """What scale and low of a group are made of, by their bits for each weight (native/grouped.h)."""

    ZEROS = 1
    """0.75. A half h and a byte z: h, -h z. Q4_0, GPTQ, AWQ."""
    PAIRS = 2
    """1. Halves h, k: h, k. Q4_1."""
    SUPER = 3
    """0.625. Halves h, k of 8 groups, bytes a, b of one: h a, k b. Q4_K."""
    FLOATS = 4
    """2. Two floats: whatever else there is."""


def head_bytes(form: ScaleForm, groups: int) -> int:
    """Bytes that the scales and minimums of a record of `groups` groups take."""
    whole = {ScaleForm.PAIRS: 128 * groups, ScaleForm.SUPER: 128 + 64 * groups, ScaleForm.FLOATS: 256 * groups}
    return whole.get(form, -(-96 * groups // 64) * 64)


def block_bytes(inputs: int, bits: int, form: ScaleForm) -> int:
    groups = -(-inputs // GROUP)
    full, rest = divmod(groups, RECORD)
    heads = full * head_bytes(form, RECORD) + (head_bytes(form, rest) if rest else 0)
    return heads + groups * bits * 128


def size(outputs: int, inputs: int, bits: int, form: ScaleForm) -> int:
    """Bytes of a packed matrix with its bias."""
    return -(-outputs // BLOCK_OUTPUTS) * (block_bytes(inputs, bits, form) + 4 * BLOCK_OUTPUTS)


def size_of(outputs: int, inputs: int, bits: float) -> int:
    """Bytes of a packed matrix with its bias, from `bits` per weight with the scales included."""
    outputs, inputs = (-(-n // 32) * 32 for n in (outputs, inputs))
    return ceil(outputs * inputs * bits / 8) + 4 * outputs


# -- packing ----------------------------------------------------------------------------------------------------------


def pack_groups(codes: Tensor, scale: Tensor, low: Tensor, bias: Tensor | None = None, bits: int = 4) -> Packed:
    """A matrix that is quantised already, kept exactly: weight = scale * code + low.

    codes: uint8 [out, in], below 2^bits (4 or 8); scale, low: float32 [out, ceil(in / 32)]; of larger groups repeat
    them. Raises CheckpointError where they are not finite.
    """
    scale, low = scale.float(), low.float()
    if not (scale.isfinite().all() and low.isfinite().all()):
        raise CheckpointError("scales of a quantised tensor are not finite; download the checkpoint again.")
    form, parts = smallest(scale, low)
    return lay(codes, form, parts, bias, bits)


def smallest(scale: Tensor, low: Tensor) -> tuple[ScaleForm, tuple[Tensor, ...]]:
    """The smallest form that holds them exactly, and its parts, each [out, groups] (or records)."""
    scaled = halved(scale)
    if scaled:
        zero = torch.where(scale == 0, 0, (-low / scale).round())
        if bool(((zero >= 0) & (zero <= 255) & (-scale * zero == low)).all()):
            return ScaleForm.ZEROS, (scale, zero)
    elif (high := factored(scale)) is not None and (deep := factored(low)) is not None:
        return ScaleForm.SUPER, (high[0], deep[0], high[1], deep[1])
    if scaled and halved(low):
        return ScaleForm.PAIRS, (scale, low)
    return ScaleForm.FLOATS, (scale, low)


def halved(x: Tensor) -> bool:
    """Whether float16 holds all of it."""
    return bool((x.half().float() == x).all())


def factored(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """x [out, groups] as halves [out, records] times whole numbers up to 63 [out, groups], or None: a record's largest
    is some whole number of the half."""
    out, groups = x.shape
    wide = records(x)
    top = wide.gather(2, wide.abs().argmax(2, keepdim=True)).squeeze(2).reshape(-1)
    flat, half = wide.reshape(-1, RECORD), torch.zeros_like(top)
    open_ = top.nonzero().squeeze(1)
    for whole in range(MAX_SUPER_FACTOR, 0, -1):
        if not len(open_):
            break
        guess = top[open_] / whole
        times = flat[open_] / guess[:, None]
        fits = ((times == times.round()) & (times >= 0)).all(1) & (guess.half().float() == guess)
        half[open_[fits]] = guess[fits]
        open_ = open_[~fits]
    if len(open_):
        return None
    times = torch.where(half[:, None] == 0, 0, flat / half[:, None])
    return half.view(out, -1), times.view(out, -1)[:, :groups]


def records(x: Tensor) -> Tensor:
    """[out, groups] -> [out, records, 8], with zeros behind the end."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % RECORD)).view(len(x), -1, RECORD)


def lay(codes: Tensor, form: ScaleForm, parts: tuple[Tensor, ...], bias: Tensor | None, bits: int) -> Packed:
    """Codes [out, in] and the parts of their scales in memory, record by record."""
    outputs, inputs = codes.shape
    missing = -outputs % BLOCK_OUTPUTS
    codes = torch.nn.functional.pad(codes, (0, -inputs % GROUP, 0, missing))
    blocks, groups = len(codes) // BLOCK_OUTPUTS, codes.shape[1] // GROUP
    parts = tuple(torch.nn.functional.pad(part, (0, 0, 0, missing)).view(blocks, BLOCK_OUTPUTS, -1) for part in parts)
    fours = codes.view(blocks, 2, 16, groups, 8, 4)
    memory = pages.take(blocks * block_bytes(inputs, bits, form)).view(blocks, -1)
    at = 0
    for first in range(0, groups, RECORD):
        count = min(RECORD, groups - first)
        of = fours[:, :, :, first : first + count].permute(0, 1, 3, 4, 2, 5)
        if bits == 4:
            of = of[:, :, :, 0::2] | of[:, :, :, 1::2] << 4
        head = torch.cat([plane.reshape(blocks, -1) for plane in heads(form, parts, first, count)], 1)
        memory[:, at : at + head.shape[1]] = head
        at += head_bytes(form, count)
        memory[:, at : at + count * bits * 128].view(of.shape).copy_(of)
        at += count * bits * 128
    bias = None if bias is None else torch.nn.functional.pad(bias.float(), (0, missing))
    c = CLinear(address(memory), None, None, address(bias), inputs, outputs, form, bits)
    return Packed(memory, bias, None, None, c)


def heads(form: ScaleForm, parts: tuple[Tensor, ...], first: int, count: int) -> list[Tensor]:
    """The head of a record, bytes [blocks, ...] in their order."""

    def of(part: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        return part[:, :, begin:end].transpose(1, 2).to(dtype).contiguous().view(torch.uint8)

    kinds = {
        ScaleForm.ZEROS: (torch.half, torch.uint8),
        ScaleForm.PAIRS: (torch.half, torch.half),
        ScaleForm.SUPER: (torch.half, torch.half, torch.uint8, torch.uint8),
        ScaleForm.FLOATS: (torch.float, torch.float),
    }[form]
    record, whole = first // RECORD, (first, first + count)
    spans = [(record, record + 1)] * 2 + [whole] * 2 if form == ScaleForm.SUPER else [whole] * 2
    return [of(part, *span, kind) for part, span, kind in zip(parts, spans, kinds)]


def unpack(packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, scale, low) as `pack_groups` takes them, from memory."""
    c, blocks = packed.c, len(packed.weight)
    groups, form = -(-c.inputs // GROUP), ScaleForm(c.form)
    codes, scale, low = [], [], []
    at = 0
    for first in range(0, groups, RECORD):
        count = min(RECORD, groups - first)
        high, deep = of_head(form, packed.weight[:, at : at + head_bytes(form, count)], count)
        at += head_bytes(form, count)
        lines = packed.weight[:, at : at + count * c.bits * 128].view(blocks, 2, count, c.bits, 16, 4)
        if c.bits == 4:
            lines = torch.stack((lines & 15, lines >> 4), 4).view(blocks, 2, count, 8, 16, 4)
        at += count * c.bits * 128
        codes.append(lines.permute(0, 1, 4, 2, 3, 5).reshape(blocks * BLOCK_OUTPUTS, -1))
        scale.append(high.transpose(1, 2).reshape(blocks * BLOCK_OUTPUTS, -1))
        low.append(deep.transpose(1, 2).reshape(blocks * BLOCK_OUTPUTS, -1))
    whole, high, deep = (torch.cat(found, 1)[: c.outputs] for found in (codes, scale, low))
    return whole[:, : c.inputs], high, deep


def looked_up(packed: Packed, outputs: Tensor) -> Tensor:
    """The weights [T, in] of some outputs [T], float32: of an embedding."""
    c = packed.c
    every = CLinear(None, None, None, None, c.inputs, len(outputs) * BLOCK_OUTPUTS, c.form, c.bits)
    codes, scale, low = unpack(Packed(packed.weight[outputs // BLOCK_OUTPUTS], None, None, None, every))
    which = torch.arange(len(outputs)) * BLOCK_OUTPUTS + outputs % BLOCK_OUTPUTS
    scale, low = (x[which].double().repeat_interleave(GROUP, 1)[:, : c.inputs] for x in (scale, low))
    return (codes[which] * scale + low).float()


def of_head(form: ScaleForm, head: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Scale and low [blocks, groups, 32] of a record's head: what native/grouped.h does in `decode`."""

    def part(first: int, groups: int, dtype: torch.dtype) -> Tensor:
        each = BLOCK_OUTPUTS * dtype.itemsize
        taken = head[:, first : first + groups * each].contiguous().view(dtype)
        return taken.view(len(head), groups, BLOCK_OUTPUTS).float()

    if form == ScaleForm.ZEROS:
        scale = part(0, count, torch.half)
        return scale, part(64 * count, count, torch.uint8) * -scale
    if form == ScaleForm.PAIRS:
        return part(0, count, torch.half), part(64 * count, count, torch.half)
    if form == ScaleForm.SUPER:
        return (
            part(0, 1, torch.half) * part(128, count, torch.uint8),
            part(64, 1, torch.half) * part(128 + 32 * count, count, torch.uint8),
        )
    return part(0, count, torch.float), part(128 * count, count, torch.float)


def twin(packed: Packed, x: Tensor) -> Tensor:
    """[T, in] -> [T, out], float32: group by group, each step rounded as a fused multiplication and addition is."""
    codes, scale, low = unpack(packed)
    x = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % GROUP))
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % GROUP)).double()
    by = x.abs().amax(1) / 127
    whole = (x * torch.where(by > 0, 1 / by, 0)[:, None]).round().double()
    total = torch.zeros(len(x), len(codes))
    for g in range(scale.shape[1]):
        some = slice(g * GROUP, g * GROUP + GROUP)
        total = (total + whole[:, some] @ codes[:, some].T * scale[:, g]).float()
        total = (total + whole[:, some].sum(1, keepdim=True) * low[:, g].double()).float()
    bias = 0 if packed.bias is None else packed.bias[: len(codes)].double()
    return (total * by[:, None].double() + bias).float()


# -- rounding ---------------------------------------------------------------------------------------------------------

SHRUNK = (1.0, 0.93, 0.86, 0.79)
"""Parts of a group's range that are tried for its scale."""
GROUPED_ROUNDING_OUTPUTS = 64
"""Outputs that are rounded at once: what is computed of them stays in the caches."""


def pack_int4(weight: Tensor, bias: Tensor | None) -> Packed:
    """Round to nearest, in 4.625 bits a weight."""
    found = [round4(rows.float()) for rows in torch.split(weight, GROUPED_ROUNDING_OUTPUTS)]
    codes, *parts = (torch.cat([one[i] for one in found]) for i in range(5))
    return lay(codes, ScaleForm.SUPER, tuple(parts), bias, 4)


def round4(weight: Tensor) -> tuple[Tensor, ...]:
    """Codes [out, in] and the four parts of `SUPER` of weights [out, in]. Large weights count more: their product with
    an activation does."""
    outputs, inputs = weight.shape
    w = torch.nn.functional.pad(weight, (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    worth = w.abs() + w.square().mean(2, keepdim=True).sqrt()
    high, deep = w.amax(2, keepdim=True).clamp_(min=0), w.amin(2, keepdim=True).clamp_(max=0)
    best, scale, low = torch.full_like(high, float("inf")), torch.zeros_like(high), torch.zeros_like(high)
    for part in SHRUNK:
        by, from_ = fitted(w, worth, (high - deep) * (part / 15), deep * part)
        wrong = (worth * (nearest(w, by, from_) * by + from_ - w).square()).sum(2, keepdim=True)
        better = wrong < best
        best, scale, low = (torch.where(better, a, b) for a, b in ((wrong, best), (by, scale), (from_, low)))
    (half, a), (deep_half, b) = (wholes(each.squeeze(2)) for each in (scale, low))
    kept = [
        (records(n) * h[:, :, None]).view(outputs, -1)[:, : n.shape[1], None] for h, n in ((half, a), (deep_half, b))
    ]
    codes = nearest(w, *kept).to(torch.uint8).view(outputs, -1)[:, :inputs]
    return codes, half, deep_half, a, b


def nearest(w: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    return ((w - low) * torch.where(scale > 0, 1 / scale, 0)).round_().clamp_(0, 15)


def fitted(w: Tensor, worth: Tensor, scale: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and low (at most 0) with the least squares for the codes that these two give."""
    codes = nearest(w, scale, low)

    def total(x: Tensor) -> Tensor:
        return (worth * x).sum(2, keepdim=True)

    ones, c, cc, x, xc = worth.sum(2, keepdim=True), total(codes), total(codes * codes), total(w), total(w * codes)
    room = ones * cc - c * c
    by, from_ = (ones * xc - c * x) / room, (cc * x - c * xc) / room
    by, from_ = torch.where(from_ > 0, xc / cc, by), from_.clamp(max=0)
    good = by.isfinite() & from_.isfinite() & (by > 0)
    return torch.where(good, by, scale), torch.where(good, from_, low)


def wholes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [out, groups], of one sign, as a half for each record times whole numbers up to 255."""
    wide = records(x)
    top = wide.gather(2, wide.abs().argmax(2, keepdim=True)).squeeze(2)
    half = (top / 254.5).half().float()
    times = torch.where(half[:, :, None] == 0, 0, wide / half[:, :, None]).round_().clamp_(0, 255)
    return half, times.view(len(x), -1)[:, : x.shape[1]]


def pack_bytes(weight: Tensor, bias: Tensor | None) -> Packed:
    """Round to nearest in 8.75 bits a weight, for embeddings and heads: each group by its largest weight."""
    found = [round8(rows.float()) for rows in torch.split(weight, GROUPED_ROUNDING_OUTPUTS)]
    codes, scale, zero = (torch.cat([one[i] for one in found]) for i in range(3))
    return lay(codes, ScaleForm.ZEROS, (scale, zero), bias, 8)


def round8(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, in] and the parts of `ZEROS`."""
    outputs, inputs = weight.shape
    w = torch.nn.functional.pad(weight, (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    scale = (w.abs().amax(2) / 127).half().float()
    codes = (w * torch.where(scale > 0, 1 / scale, 0)[:, :, None]).round_().clamp_(-128, 127).add_(128)
    return codes.to(torch.uint8).view(outputs, -1)[:, :inputs], scale, torch.where(scale > 0, 128.0, 0.0)
