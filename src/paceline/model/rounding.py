"""Rounding of weights that are floats to small whole numbers in groups (grouped.py)."""

import torch
from torch import Tensor

from paceline.model.grouped import RECORD, ScaleForm, lay, records
from paceline.model.groups import GROUP
from paceline.model.packed import Packed

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
    """Round to nearest in 8.5 bits a weight, for embeddings and heads: each group by its largest weight."""
    found = [round8(rows.float()) for rows in torch.split(weight, GROUPED_ROUNDING_OUTPUTS)]
    codes, scale = (torch.cat([one[i] for one in found]) for i in range(2))
    return lay(codes, ScaleForm.HALF, (scale,), bias, 8)


def round8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [out, in] and the part of `HALF`."""
    outputs, inputs = weight.shape
    w = torch.nn.functional.pad(weight, (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    scale = (w.abs().amax(2) / 127).half().float()
    codes = (w * torch.where(scale > 0, 1 / scale, 0)[:, :, None]).round_().clamp_(-128, 127).add_(128)
    return codes.to(torch.uint8).view(outputs, -1)[:, :inputs], scale


def pack_sixes(weight: Tensor, bias: Tensor | None) -> Packed:
    """Round to nearest in 6.5625 bits a weight, for embeddings and heads: each 16 by their largest weight."""
    found = [round6(rows.float()) for rows in torch.split(weight, GROUPED_ROUNDING_OUTPUTS)]
    codes, half, times = (torch.cat([one[i] for one in found]) for i in range(3))
    return lay(codes, ScaleForm.SIXTEENS, (half, times), bias, 6)


def round6(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, in] and the parts of `SIXTEENS`. The largest weight of 16 becomes -32, whatever its sign."""
    outputs, inputs = weight.shape
    w = torch.nn.functional.pad(weight, (0, -inputs % GROUP)).view(outputs, -1, 16)
    scale = w.gather(2, w.abs().argmax(2, keepdim=True)).squeeze(2) / -32
    wide = records(scale, 2 * RECORD)
    half = (wide.gather(2, wide.abs().argmax(2, keepdim=True)).squeeze(2) / -128).half().float()
    times = torch.where(half[:, :, None] == 0, 0, wide / half[:, :, None]).round_().clamp_(-128, 127)
    kept = (times * half[:, :, None]).view(outputs, -1)[:, : scale.shape[1], None]
    codes = (w * torch.where(kept == 0, 0, 1 / kept)).round_().clamp_(-32, 31).add_(32)
    return codes.to(torch.uint8).view(outputs, -1)[:, :inputs], half, times.view(outputs, -1)[:, : scale.shape[1]]
