"""Weights as small whole numbers: one matrix in groups along its inputs, each with a scale and perhaps a minimum."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST = {4: -8, 5: -16, 6: -32, 8: -128}
"""The least code of a matrix without minimums, by bits."""
IQ4, FP4 = 1, 2
TABLES = {
    IQ4: (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    FP4: (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}
"""What the 16 codes of IQ4, and of MXFP4 (doubled), stand for (native/grouped.h: `table_of`)."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [out, in] of which each value is scale * code + minimum.

    codes: int8 [out, in], about zero where `minimum` is None, else the bits of uint8 below 2**bits. scale, minimum:
    float32 [out, in / size]. bits: 4, 5, 6 or 8, what an unsigned code needs. table: codes 0 to 15 stand for
    TABLES[table].
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    bits: int
    table: int = 0

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
        if self.table:
            return self.plain().floats()
        codes = self.codes if self.minimum is None else self.codes.view(torch.uint8)
        wide = codes.reshape(*self.scale.shape, self.size).float()
        wide.mul_(self.scale[:, :, None])
        if self.minimum is not None:
            wide.add_(self.minimum[:, :, None])
        return wide.view(self.shape)

    def even(self) -> tuple[Tensor, Tensor, Tensor]:
        """(codes uint8 in 0 .. 2**bits - 1, scale, minimum), which stand for the same values: the lowest code is moved
        to 0, by a power of two times the scale, without rounding."""
        if self.table:
            return self.plain().even()
        if self.minimum is not None:
            return self.codes.view(torch.uint8), self.scale, self.minimum
        lowest = LOWEST[self.bits]
        return (self.codes.to(torch.int16) - lowest).to(torch.uint8), self.scale, self.scale * lowest

    def plain(self) -> "Groups":
        """Without a table, in 8 bits."""
        if not self.table:
            return self
        return Groups(torch.tensor(TABLES[self.table], dtype=torch.int8)[self.codes.int()], self.scale, None, 8)

    @property
    def kind(self) -> tuple[int, int, int, bool]:
        """Matrices alike in this can be stacked as they are."""
        return self.size, self.bits, self.table, self.minimum is None

    def rows(self, order: Callable[[Tensor], Tensor]) -> "Groups":
        """With its outputs in another order, or more of them."""
        minimum = None if self.minimum is None else order(self.minimum)
        return Groups(order(self.codes), order(self.scale), minimum, self.bits, self.table)

    def split(self, size: int) -> "Groups":
        """In smaller groups: `size` divides the present one."""
        times = self.size // size
        minimum = None if self.minimum is None else self.minimum.repeat_interleave(times, 1)
        return Groups(self.codes, self.scale.repeat_interleave(times, 1), minimum, self.bits, self.table)


GROUP = 32
"""Inputs of a group in memory."""


def regrouped(groups: Groups) -> Groups:
    """In groups of 32: of larger ones exactly, of smaller ones (Q2_K: 16) rounded to 8 bits by each 32's largest."""
    if groups.size % GROUP == 0:
        return groups.split(GROUP)
    wide = groups.floats().view(len(groups.codes), -1, GROUP)
    scale = (wide.abs().amax(2) / 127).half().float()
    codes = (wide / scale.clamp(min=1e-30)[:, :, None]).round_().clamp_(-128, 127).to(torch.int8)
    return Groups(codes.flatten(1), scale, None, 8)


def stack(parts: Sequence[Groups | None]) -> Groups | None:
    """Matrices of one input above one another, those of different kinds in groups of 32 of the widest; None: not all of
    them are in groups, or a row of theirs is no whole number of 32."""
    found = [part for part in parts if part is not None and part.codes.shape[1] % GROUP == 0]
    if len(found) < len(parts):
        return None
    bits, table = max(part.bits for part in found), found[0].table
    if len({part.kind for part in found}) > 1:
        found = [regrouped(part.plain()) for part in found]
        bits, table = max(part.bits for part in found), 0
        if len({part.kind for part in found}) > 1:
            found = [
                Groups(codes.view(torch.int8), scale, low, bits) for codes, scale, low in (p.even() for p in found)
            ]
    lows = [part.minimum for part in found if part.minimum is not None]
    return Groups(
        torch.cat([part.codes for part in found]),
        torch.cat([part.scale for part in found]),
        torch.cat(lows) if lows else None,
        bits,
        table,
    )
