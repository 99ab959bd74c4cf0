"""Packings of a GPU: matrices in floats, in int8 with a scale for each output, and in 4 bits by groups."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.model.gpu.product import (
    FILLING_FLOAT_PROGRAMS,
    FOUR_BIT_OUTPUTS,
    GROUP_INPUTS,
    RECORD_GROUPS,
    parts_of,
    product,
    product4,
)
from paceline.model.rounding import GROUPED_ROUNDING_OUTPUTS, round4

ROUNDED_OUTPUTS = 4096
"""Outputs that a GPU rounds at once."""
RECORD_INPUTS = GROUP_INPUTS * RECORD_GROUPS
"""Inputs of a record of 4-bit codes; a matrix is filled up to whole ones."""
SUPER_BITS = 4.75
"""Bits of a weight in groups: its code, and its share of two scales in 8 bits and of their two factors."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KernelMatrix:
    """weight [out, in] in floats, or int8 with `scale` float32 [out]; bias [out]."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None
    parts: int
    """Parts that its inputs are added up in; some of its outputs have those of the whole."""

    @property
    def bytes(self) -> int:
        """Bytes that one pass reads."""
        return sum(it.nbytes for it in (self.weight, self.scale, self.bias) if it is not None)

    def __call__(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.scale, self.bias, self.parts)

    def twin(self, x: Tensor) -> Tensor:
        """Reference form of the product, in PyTorch."""
        weight = self.weight.float() if self.scale is None else self.weight.float() * self.scale[:, None]
        return F.linear(x.float(), weight, None if self.bias is None else self.bias.float()).to(x.dtype)

    def outputs(self, at: Tensor) -> "KernelMatrix":
        """These outputs alone."""
        scale, bias = (None if it is None else it[at] for it in (self.scale, self.bias))
        return KernelMatrix(self.weight[at], scale, bias, self.parts)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GroupedMatrix:
    """Codes of 4 bits; see `product._multiply4`."""

    words: Tensor
    halves: Tensor
    times: Tensor
    inputs: int
    bias: Tensor | None
    parts: int

    @property
    def bytes(self) -> int:
        """Bytes that one pass reads."""
        return sum(it.nbytes for it in (self.words, self.halves, self.times, self.bias) if it is not None)

    def __call__(self, x: Tensor) -> Tensor:
        return product4(x, self.words, self.halves, self.times, self.inputs, self.bias, self.parts)

    def twin(self, x: Tensor) -> Tensor:
        """Reference form of the product, in PyTorch."""
        codes = torch.stack([self.words >> 4 * i & 15 for i in range(RECORD_GROUPS)], 2).float()
        scale, low = (self.times * self.halves.repeat_interleave(RECORD_GROUPS, 1)).transpose(1, 2)
        shape = len(codes), -1, GROUP_INPUTS
        weight = (codes.view(shape) * scale[:, :, None] + low[:, :, None]).flatten(1)[:, : self.inputs]
        return F.linear(x.float(), weight, None if self.bias is None else self.bias.float()).to(x.dtype)

    def outputs(self, at: Tensor) -> "GroupedMatrix":
        """These outputs alone."""
        bias = None if self.bias is None else self.bias[at]
        halves, times = self.halves[:, :, at], self.times[:, :, at]
        return replace(self, words=self.words[at], halves=halves, times=times, bias=bias)


def pack_floats(weight: Tensor, bias: Tensor | None) -> KernelMatrix:
    outputs, inputs = weight.shape
    return KernelMatrix(weight.contiguous(), None, bias, parts_of(outputs, inputs, FILLING_FLOAT_PROGRAMS))


def pack_bytes(weight: Tensor, bias: Tensor | None) -> KernelMatrix:
    """Symmetric, each output by its largest weight; activations stay as they are."""
    wide = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(len(weight), device=weight.device)
    for first in range(0, len(weight), ROUNDED_OUTPUTS):
        rows = slice(first, first + ROUNDED_OUTPUTS)
        part = weight[rows].float()
        scale[rows] = part.abs().amax(1) / 127
        wide[rows] = part.div_(scale[rows].clamp(min=1e-30)[:, None]).round_().to(torch.int8)
    return KernelMatrix(wide, scale, bias, parts_of(*weight.shape))


def pack_fours(weight: Tensor, bias: Tensor | None) -> GroupedMatrix:
    """Rounded as on a CPU (rounding.py)."""
    outputs, inputs = weight.shape
    each = GROUPED_ROUNDING_OUTPUTS if weight.is_cpu else ROUNDED_OUTPUTS
    padded = F.pad(weight, (0, -inputs % RECORD_INPUTS))
    found = [round4(rows.float()) for rows in torch.split(padded, each)]
    codes, half, deep, a, b = (torch.cat([one[i] for one in found]) for i in range(5))
    groups = codes.view(outputs, -1, RECORD_GROUPS, GROUP_INPUTS)
    words = groups.new_zeros(outputs, groups.shape[1], GROUP_INPUTS, dtype=torch.int32)
    for i in range(RECORD_GROUPS):
        words |= groups[:, :, i].int() << 4 * i
    halves, times = torch.stack((half, deep)).transpose(1, 2), torch.stack((a, b)).to(torch.uint8).transpose(1, 2)
    parts = parts_of(outputs, inputs, tile=FOUR_BIT_OUTPUTS)
    return GroupedMatrix(words, halves.contiguous(), times.contiguous(), inputs, bias, parts)


def bytes_of(outputs: int, inputs: int, bits: float, itemsize: int) -> int:
    """Most bytes of a matrix and its bias."""
    padded = -(-inputs // RECORD_INPUTS) * RECORD_INPUTS
    return int(outputs * (padded * bits / 8 + 16 + itemsize))
