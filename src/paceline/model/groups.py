"""Weights as small whole numbers: one matrix in groups along its inputs, each with a scale and perhaps a minimum."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST = {4: -8, 8: -128}
"""The least code of a matrix without minimums, by bits."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [out, in] of which each value is scale * code + minimum.

    codes: int8 [out, in], about zero where `minimum` is None, else the bits of uint8 below 2**bits. scale, minimum:
    float32 [out, in / size]. bits: 4 or 8, what an unsigned code needs.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    bits: int

    @property
    def size(self) -> int:
        """Inputs of a group."""
        return self.codes.shape[1] // self.scale.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.codes.shape
        return outputs, inputs

    def floats(self) -> Tensor:
        """float32 [out, in], each value rounded as its format's own reader does."""
        codes = self.codes if self.minimum is None else self.codes.view(torch.uint8)
        wide = codes.reshape(*self.scale.shape, self.size).float()
        wide.mul_(self.scale[:, :, None])
        if self.minimum is not None:
            wide.add_(self.minimum[:, :, None])
        return wide.view(self.shape)

    def even(self) -> tuple[Tensor, Tensor, Tensor]:
        """(codes uint8 in 0 .. 2**bits - 1, scale, minimum), which stand for the same values: the lowest code is moved
        to 0, by a power of two times the scale, without rounding."""
        if self.minimum is not None:
            return self.codes.view(torch.uint8), self.scale, self.minimum
        lowest = LOWEST[self.bits]
        return (self.codes.to(torch.int16) - lowest).to(torch.uint8), self.scale, self.scale * lowest

    def rows(self, order: Callable[[Tensor], Tensor]) -> "Groups":
        """With its outputs in another order, or more of them."""
        minimum = None if self.minimum is None else order(self.minimum)
        return Groups(order(self.codes), order(self.scale), minimum, self.bits)

    def split(self, size: int) -> "Groups":
        """In smaller groups: `size` divides the present one."""
        times = self.size // size
        minimum = None if self.minimum is None else self.minimum.repeat_interleave(times, 1)
        return Groups(self.codes, self.scale.repeat_interleave(times, 1), minimum, self.bits)


GROUP = 32
"""Inputs of a group in memory."""


def regrouped(groups: Groups) -> Groups:
    """In groups of 32: of larger ones exactly, of smaller ones (Q6_K: 16) rounded to 8 bits by each 32's largest."""
    if groups.size % GROUP == 0:
        return groups.split(GROUP)
    wide = groups.floats().view(len(groups.codes), -1, GROUP)
    scale = wide.abs().amax(2) / 127
    codes = (wide / scale.clamp(min=1e-30)[:, :, None]).round_().to(torch.int8)
    return Groups(codes.flatten(1), scale, None, 8)


def stack(parts: Sequence[Groups | None]) -> Groups | None:
    """Matrices of one input above one another in groups of 32; None: not all of them are in groups, or a row of theirs
    is no whole number of 32."""
    found = [part for part in parts if part is not None and part.codes.shape[1] % GROUP == 0]
    if len(found) < len(parts):
        return None
    found = [regrouped(part) for part in found]
    bits, alike = max(part.bits for part in found), len({part.minimum is None for part in found}) == 1
    if not alike or len({part.bits for part in found}) > 1:
        found = [Groups(codes.view(torch.int8), scale, low, bits) for codes, scale, low in (p.even() for p in found)]
    lows = [part.minimum for part in found if part.minimum is not None]
    return Groups(
        torch.cat([part.codes for part in found]),
        torch.cat([part.scale for part in found]),
        torch.cat(lows) if lows else None,
        bits,
    )
