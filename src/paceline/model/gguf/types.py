"""The tensor types of GGUF as PyTorch reads them: small whole numbers with a scale, and a minimum, for each group.

`gguf.quants.dequantize` is the slow twin. The layouts are those of ggml-common.h (block_q4_0 and so on).
"""

from collections.abc import Callable

import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from torch import Tensor

from paceline.model.groups import FP4, IQ4, Groups

FLOAT_KINDS = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16, Kind.F64: torch.float64}
Parts = tuple[Tensor, Tensor, Tensor | None]
"""Content of n blocks: codes int8 [n, groups, size], scale float32 [n, groups], minimum or None. A value is scale *
code + minimum."""


def half(raw: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, [n, 1]."""
    return raw[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(raw: Tensor, at: int, size: int, run: int) -> Tensor:
    """4-bit codes of each block [n, 2 * size]: of every `run` bytes the low halves, then the high ones."""
    bytes_ = raw[:, at : at + size].reshape(len(raw), -1, 1, run)
    return torch.cat((bytes_ & 15, bytes_ >> 4), 2).flatten(1)


def shifted(raw: Tensor, at: int, size: int, run: int, bits: int) -> Tensor:
    """Codes of 1 or 2 bits [n, 8 / bits * size]: of every `run` bytes the lowest bits, then the next, ..."""
    bytes_ = raw[:, at : at + size].reshape(len(raw), -1, 1, run)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return ((bytes_ >> shifts) & (1 << bits) - 1).reshape(len(raw), -1)


def grouped(codes: Tensor, size: int) -> Tensor:
    return codes.to(torch.int8).reshape(len(codes), -1, size)


def q4_0(raw: Tensor) -> Parts:
    return grouped(nibbles(raw, 2, 16, 16).to(torch.int8) - 8, 32), half(raw, 0), None


def q4_1(raw: Tensor) -> Parts:
    return grouped(nibbles(raw, 4, 16, 16), 32), half(raw, 0), half(raw, 2)


def fifth(raw: Tensor, at: int) -> Tensor:
    """The fifth bits of 32 codes, one after the other in four bytes, at their place."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((raw[:, at : at + 4, None] >> shifts) & 1).flatten(1) << 4


def q5_0(raw: Tensor) -> Parts:
    codes = nibbles(raw, 6, 16, 16) | fifth(raw, 2)
    return grouped(codes.to(torch.int8) - 16, 32), half(raw, 0), None


def q5_1(raw: Tensor) -> Parts:
    return grouped(nibbles(raw, 8, 16, 16) | fifth(raw, 4), 32), half(raw, 0), half(raw, 2)


def q8_0(raw: Tensor) -> Parts:
    return grouped(raw[:, 2:].contiguous().view(torch.int8), 32), half(raw, 0), None


def q2_k(raw: Tensor) -> Parts:
    scales = raw[:, :16]
    return (
        grouped(shifted(raw, 16, 64, 32, 2), 16),
        half(raw, 80) * (scales & 15),
        -half(raw, 82) * (scales >> 4),
    )


def q3_k(raw: Tensor) -> Parts:
    low, high = raw[:, 96:104, None], raw[:, 104:108, None]
    low = torch.cat((low & 15, low >> 4), 1).flatten(1)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], 1).flatten(1)
    scale = (low | high << 4).to(torch.int8) - 32
    codes = shifted(raw, 32, 64, 32, 2).to(torch.int8) - 4 * (1 - shifted(raw, 0, 32, 32, 1).to(torch.int8))
    return grouped(codes, 16), half(raw, 108) * scale, None


def sixes(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of 6 bits, packed in the 12 bytes from byte 4 on: [n, 8] each."""
    d, m, both = raw[:, 4:16].reshape(len(raw), 3, 4).unbind(1)
    scale = torch.cat((d & 63, both & 15 | d >> 2 & 48), 1)
    return scale, torch.cat((m & 63, both >> 4 | m >> 2 & 48), 1)


def q4_k(raw: Tensor) -> Parts:
    scale, least = sixes(raw)
    return grouped(nibbles(raw, 16, 128, 32), 32), half(raw, 0) * scale, -half(raw, 2) * least


def q5_k(raw: Tensor) -> Parts:
    scale, least = sixes(raw)
    codes = nibbles(raw, 48, 128, 32) | shifted(raw, 16, 32, 32, 1) << 4
    return grouped(codes, 32), half(raw, 0) * scale, -half(raw, 2) * least


def q6_k(raw: Tensor) -> Parts:
    codes = (nibbles(raw, 0, 128, 64) | shifted(raw, 128, 64, 32, 2) << 4).to(torch.int8) - 32
    return grouped(codes, 16), half(raw, 208) * raw[:, 192:208].contiguous().view(torch.int8), None


def iq4_nl(raw: Tensor) -> Parts:
    return grouped(nibbles(raw, 2, 16, 16), 32), half(raw, 0), None


def iq4_xs(raw: Tensor) -> Parts:
    low = raw[:, 4:8, None]
    low = torch.cat((low & 15, low >> 4), 2).flatten(1)
    high = ((raw[:, 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3).flatten(1)
    scale = (low | high << 4).to(torch.int8) - 32
    return grouped(nibbles(raw, 8, 128, 16), 32), half(raw, 0) * scale, None


def mxfp4(raw: Tensor) -> Parts:
    scale = torch.exp2(raw[:, :1].float() - 128)
    return grouped(nibbles(raw, 1, 16, 16), 32), scale, None


DECODERS: dict[Kind, tuple[Callable[[Tensor], Parts], int]] = {
    Kind.Q4_0: (q4_0, 4),
    Kind.Q4_1: (q4_1, 4),
    Kind.Q5_0: (q5_0, 5),
    Kind.Q5_1: (q5_1, 5),
    Kind.Q8_0: (q8_0, 8),
    Kind.Q2_K: (q2_k, 4),
    Kind.Q3_K: (q3_k, 4),
    Kind.Q4_K: (q4_k, 4),
    Kind.Q5_K: (q5_k, 5),
    Kind.Q6_K: (q6_k, 6),
    Kind.IQ4_NL: (iq4_nl, 4),
    Kind.IQ4_XS: (iq4_xs, 4),
    Kind.MXFP4: (mxfp4, 4),
}
"""Reader of each type, and the bits of its codes."""
LOOKED_UP = {Kind.IQ4_NL: IQ4, Kind.IQ4_XS: IQ4, Kind.MXFP4: FP4}
"""Table of the types whose codes stand for the numbers of one."""
SERVED = (*FLOAT_KINDS, *DECODERS)
PACKED = {
    Kind.Q4_0: 4.5, Kind.Q4_1: 5, Kind.Q4_K: 4.625, Kind.Q8_0: 8.5, Kind.Q5_0: 5.5, Kind.Q5_1: 6, Kind.Q5_K: 5.625,
    Kind.Q6_K: 6.5625, Kind.Q3_K: 4.5625, Kind.IQ4_NL: 4.5, Kind.IQ4_XS: 4.3125, Kind.MXFP4: 4.25, Kind.Q2_K: 8.5,
}  # fmt: skip
"""Bits per weight, its scale included, where it is packed (`grouped.ScaleForm`): as it is, but for Q2_K, which is
rounded."""


def decode(raw: Tensor, kind: Kind, outputs: int, inputs: int) -> Groups:
    """raw: the bytes of a matrix [outputs, inputs] of a quantised kind, uint8 in one row."""
    _, size = GGML_QUANT_SIZES[kind]
    read, bits = DECODERS[kind]
    codes, scale, minimum = read(raw.view(-1, size))
    groups = codes.shape[1] * len(codes) // outputs
    shape = (outputs, groups)
    return Groups(
        codes.reshape(outputs, inputs),
        scale.expand(len(codes), codes.shape[1]).reshape(shape),
        None if minimum is None else minimum.expand(len(codes), codes.shape[1]).reshape(shape),
        bits,
        LOOKED_UP.get(kind, 0),
    )
