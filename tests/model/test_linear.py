"""Every packing that works on this machine against F.linear, at the row counts of a step."""

import pytest
import torch
import torch.nn.functional as F

from paceline.model import linear
from paceline.model.linear import Packing, available, choose, plain, tiled, works

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
PACKINGS = [packing for dtype in DTYPES for packing in available(dtype, CPU)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-12}

HALF = {"fbgemm": 5e-4, "native": 1e-2}
"""Packings that take float32 activations and round them to half precision."""


def example(packing: Packing) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(1)
    weight = torch.randn(200, 96, generator=stream).div(96**0.5).to(packing.dtype)
    return weight, torch.randn(200, generator=stream).to(packing.dtype)


@pytest.mark.parametrize("packing", PACKINGS, ids=Packing.describe)
@pytest.mark.parametrize("biased", [True, False])
def test_equals_linear(packing: Packing, biased: bool) -> None:
    weight, bias = example(packing)
    packed = packing.pack(weight, bias if biased else None)
    for rows in (1, 2, 6, 8, 17, 64):
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(rows)).to(packing.compute)
        expected = F.linear(x.double(), weight.double(), bias.double() if biased else None)
        out = packed(x)
        assert out.dtype == packing.compute
        tolerance = max(TOLERANCE[packing.compute], HALF.get(packing.name, 0))
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("packing", PACKINGS, ids=Packing.describe)
def test_a_row_hardly_depends_on_its_companions(packing: Packing) -> None:
    """Verification compares a token computed among several rows with one computed alone."""
    weight, _ = example(packing)
    packed = packing.pack(weight, None)
    x = torch.randn(17, 96, generator=torch.Generator().manual_seed(2)).to(packing.compute)
    alone = torch.cat([packed(row[None]) for row in x])
    for rows in (2, 6, 8, 17):
        torch.testing.assert_close(packed(x[:rows]), alone[:rows], rtol=TOLERANCE[packing.compute], atol=1e-5)


def test_plain_is_always_there_and_last() -> None:
    for dtype in DTYPES:
        assert [*available(dtype, CPU)][-1] == plain(dtype, CPU)
    assert [p.name for p in available(torch.float64, CPU)] == ["plain"]
    assert choose(torch.bfloat16, torch.device("meta")) == plain(torch.bfloat16, torch.device("meta"))


def test_a_packing_that_miscounts_is_not_chosen() -> None:
    def wrong(weight: torch.Tensor, bias: torch.Tensor | None) -> linear.Linear:
        return lambda x: F.linear(x, weight, bias) * 1.1

    assert not works(Packing("wrong", torch.float32, torch.float32, wrong, tiled, 0, 1))
    assert works(plain(torch.float32, CPU))


def test_a_packing_whose_op_is_missing_is_not_chosen() -> None:
    def missing(weight: torch.Tensor, bias: torch.Tensor | None) -> linear.Linear:
        return torch.ops.mkldnn._no_such_op(weight)  # type: ignore[no-any-return]

    assert not works(Packing("missing", torch.float32, torch.float32, missing, tiled, 0, 1))


def test_a_weight_beyond_float16_stays_plain() -> None:
    if "fbgemm" not in [p.name for p in available(torch.bfloat16, CPU)]:
        pytest.skip("this machine does not use fbgemm")
    weight = torch.ones(4, 4, dtype=torch.bfloat16)
    weight[1, 2] = 1e6
    out = linear.pack_fbgemm(weight, None)(torch.ones(1, 4))
    torch.testing.assert_close(out, weight.float().sum(1)[None])
