"""Every tensor type against the `gguf` package's own reading of it, bit for bit, as floats and as whole numbers."""

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from paceline.model.gguf.types import DECODERS, decode
from paceline.model.groups import regrouped, stack
from tests.model.gguf.files import random_blocks

HALVES = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q6_K: (208,)} | dict.fromkeys(
    (Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K), (0, 2)
)
SHAPE = (6, 512)


def blocks(kind: Kind) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    block, size = GGML_QUANT_SIZES[kind]
    raw = random_blocks(kind, SHAPE[0] * SHAPE[1] // block, size, HALVES.get(kind, (0,) if kind != Kind.MXFP4 else ()))
    if kind == Kind.MXFP4:
        raw[:, 0] = 100 + raw[:, 0] % 50
    return raw.reshape(SHAPE[0], -1)


@pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.name)
def test_equals_the_package(kind: Kind) -> None:
    raw = blocks(kind)
    expected = torch.from_numpy(dequantize(raw, kind)).view(SHAPE)
    groups = decode(torch.from_numpy(raw.reshape(-1)), kind, *SHAPE)
    assert torch.equal(groups.floats(), expected) and len(expected.unique()) > 100
    codes, scale, minimum = groups.even()
    assert codes.dtype == torch.uint8 and int(codes.max()) < 1 << groups.plain().bits
    wide = codes.view(SHAPE[0], -1, groups.size).double() * scale[:, :, None] + minimum[:, :, None]
    assert torch.equal(wide.view(SHAPE).float(), expected)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q4_K], ids=lambda kind: kind.name)
def test_four_bits_lie_in_groups_of_32(kind: Kind) -> None:
    groups = decode(torch.from_numpy(blocks(kind).reshape(-1)), kind, *SHAPE)
    assert (groups.size, groups.bits) == (32, 4)


def test_rows_stack_and_split() -> None:
    groups = decode(torch.from_numpy(blocks(Kind.Q4_K).reshape(-1)), Kind.Q4_K, *SHAPE)
    turned = groups.rows(lambda it: it.flip(0))
    assert torch.equal(turned.floats(), groups.floats().flip(0))
    both = stack([groups, turned])
    assert both is not None and torch.equal(both.floats(), torch.cat((groups.floats(), turned.floats())))
    assert torch.equal(groups.split(16).floats(), groups.floats()) and groups.split(16).size == 16
    for kind, bits in ((Kind.Q4_0, 4), (Kind.Q8_0, 8)):  # without minimums; with codes of 8 bits
        other = decode(torch.from_numpy(blocks(kind).reshape(-1)), kind, *SHAPE)
        mixed = stack([groups, other])
        assert mixed is not None and (mixed.bits, mixed.size) == (bits, 32)
        assert torch.equal(mixed.floats(), torch.cat((groups.floats(), other.floats())))
    assert stack([groups, None]) is None


def test_groups_of_16_are_rounded_to_8_bits() -> None:
    """Q6_K beside another kind, in groups of 32: within half a step of the largest of each 32."""
    groups = decode(torch.from_numpy(blocks(Kind.Q6_K).reshape(-1)), Kind.Q6_K, *SHAPE)
    alone, mixed, rounded = stack([groups]), stack([groups, groups.split(8)]), regrouped(groups)
    assert alone is not None and (alone.size, alone.bits) == (16, 6) and torch.equal(alone.floats(), groups.floats())
    assert mixed is not None and (mixed.size, mixed.bits) == (32, 8)
    assert (rounded.size, rounded.bits, groups.size) == (32, 8, 16)
    exact = groups.floats().view(SHAPE[0], -1, 32)
    wrong = (rounded.floats().view(exact.shape) - exact).abs().amax(2)
    assert bool((wrong <= exact.abs().amax(2) / 127 / 2 * 1.02).all()) and float(wrong.max()) > 0
