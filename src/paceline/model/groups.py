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

    codes: int8 [out, in], below 2**bits, or about zero where `minimum` is None. scale, minimum: float32
    [out, in / size]. bits: 4 or 8, what an unsigned code needs.
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
        wide = self.codes.reshape(*self.scale.shape, self.size).float()
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


def stack(parts: Sequence[Groups]) -> Groups | None:
    """Matrices of one input above one another; None: they are of different kinds."""
    if len({(part.size, part.minimum is None, part.bits) for part in parts}) > 1:
        return None
    first = parts[0]
    minimum = None if first.minimum is None else torch.cat([part.minimum for part in parts if part.minimum is not None])
    return Groups(
        torch.cat([part.codes for part in parts]), torch.cat([part.scale for part in parts]), minimum, first.bits
    )
