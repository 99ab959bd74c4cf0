"""Weights in groups: what comes in is kept, the native product is its slow twin's, and rounding loses little."""

import pytest
import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model import packed
from paceline.model.grouped import (
    ScaleForm,
    block_bytes,
    looked_up,
    pack_bytes,
    pack_groups,
    pack_int4,
    size,
    twin,
    unpack,
)
from paceline.native import build
from paceline.native.build import Unit, library
from tests.model.units import compiled, narrow

SHAPES = ((200, 96), (33, 130), (96, 576), (64, 256))


def made(form: ScaleForm, outputs: int, groups: int, bits: int) -> tuple[Tensor, Tensor]:
    """Scales and lows of a form, as the format that it is for has them."""
    stream = torch.Generator().manual_seed(form)

    def halves(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=stream) * 0.02 + 0.001).half().float()

    scale = halves(outputs, groups)
    if form == ScaleForm.ZEROS:
        return scale, -scale * torch.randint(0, 2**bits, scale.shape, generator=stream)
    if form == ScaleForm.PAIRS:
        return scale, -7 * halves(outputs, groups).half().float()
    if form == ScaleForm.SUPER:
        whole = torch.randint(0, 64, (2, outputs, groups), generator=stream)
        records = halves(2, outputs, -(-groups // 8)).repeat_interleave(8, 2)[:, :, :groups] * whole
        return records[0], -records[1]
    return torch.rand(outputs, groups, generator=stream), torch.randn(outputs, groups, generator=stream)


def expand(codes: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    """The weights, float64."""
    inputs = codes.shape[1]
    scale, low = (x.double().repeat_interleave(32, 1)[:, :inputs] for x in (scale, low))
    return codes * scale + low


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", ScaleForm, ids=lambda form: form.name)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_what_another_tool_has_quantised_is_kept(outputs: int, inputs: int, form: ScaleForm, bits: int) -> None:
    codes = torch.randint(0, 2**bits, (outputs, inputs), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    scale, low = made(form, outputs, -(-inputs // 32), bits)
    if form == ScaleForm.PAIRS:
        low = low.half().float()
    it = pack_groups(codes, scale, low, bits=bits)
    assert it.c.form == form
    assert all(torch.equal(ours, given) for ours, given in zip(unpack(it), (codes, scale, low)))
    assert it.bytes <= size(outputs, inputs, bits, form)


def test_looking_up_an_embedding() -> None:
    it = pack_bytes(torch.randn(70, 130, generator=torch.Generator().manual_seed(5)), None)
    tokens = torch.tensor([69, 0, 33, 33])
    assert torch.equal(looked_up(it, tokens), expand(*unpack(it)).float()[tokens])


def test_bits_of_a_weight() -> None:
    each = {form.name: 8 * block_bytes(4096, 4, form) / (32 * 4096) for form in ScaleForm}
    assert each == {"ZEROS": 4.75, "PAIRS": 5.0, "SUPER": 4.625, "FLOATS": 6.0}


def test_scales_that_are_no_numbers_are_refused() -> None:
    codes, scale = torch.zeros(4, 64, dtype=torch.uint8), torch.ones(4, 2)
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(CheckpointError, match="not finite"):
            pack_groups(codes, scale, torch.full((4, 2), wrong))


@pytest.mark.parametrize("method", [pack_int4, pack_bytes])
def test_rounding(method: object) -> None:
    """To within half a step of a group's range, and at most 8 % of the whole for normal weights in 4 bits; zeros stay
    zeros, whatever lies beside them."""
    pack = pack_int4 if method is pack_int4 else pack_bytes
    weight = torch.randn(70, 300, generator=torch.Generator().manual_seed(2)) * 0.02
    weight[3], weight[5, 32:64], weight[6, :32] = 0, 0, 1e-3
    ours = expand(*unpack(pack(weight, None)))
    wrong = (ours - weight).norm() / weight.norm()
    assert wrong < (0.08 if pack is pack_int4 else 0.006)
    assert not ours[3].any() and not ours[5, 32:64].any()
    torch.testing.assert_close(ours[6, :32], weight[6, :32].double(), rtol=0.2, atol=0)


@pytest.mark.skipif(library() is None, reason="this machine has no native library")
@pytest.mark.parametrize("unit", Unit, ids=lambda unit: unit.name)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_native_product_is_that_of_the_twin(monkeypatch: pytest.MonkeyPatch, bits: int, unit: Unit) -> None:
    """To the bit, with any number of rows."""
    monkeypatch.setattr(packed, "unit", lambda: unit)
    monkeypatch.setattr(packed, "library", lambda: compiled(unit))
    stream = torch.Generator().manual_seed(3)
    for form, (outputs, inputs) in zip(ScaleForm, SHAPES):
        codes = torch.randint(0, 2**bits, (outputs, inputs), generator=stream, dtype=torch.uint8)
        bias = torch.randn(outputs, generator=stream)
        it = pack_groups(codes, *made(form, outputs, -(-inputs // 32), bits), bias, bits)
        x = torch.randn(45, inputs, generator=stream)
        x[4] = 0
        expected = twin(it, x)
        for rows in 1, 2, 7, 8, 16, 17, 45:
            torch.testing.assert_close(it(x[:rows]), expected[:rows], rtol=0, atol=0)
        exact = x.double() @ expand(*unpack(it)).T + bias
        assert (expected - exact).norm() < 0.02 * exact.norm()  # activations are rounded


@pytest.mark.skipif(not build.abilities() >= build.NEEDED, reason="this CPU has no VNNI to stand in for AVX-VNNI")
@pytest.mark.parametrize("bits", [4, 8])
def test_the_product_of_avx_vnni(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Its code with the same instructions of AVX-512's, on 256 bits; in groups and by output."""
    vnni = narrow("-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=256")
    stream = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 2**bits, (70, 130), generator=stream, dtype=torch.uint8)
    it, x = pack_groups(codes, *made(ScaleForm.PAIRS, 70, 5, bits), bits=bits), torch.randn(11, 130, generator=stream)
    by_output = packed.pack_int8(torch.randn(70, 130, generator=stream), None)
    monkeypatch.setattr(packed, "unit", lambda: Unit.SHORT)
    monkeypatch.setattr(packed, "library", lambda: compiled(Unit.SHORT))
    expected = by_output(x)
    monkeypatch.setattr(packed, "library", lambda: vnni)
    torch.testing.assert_close(it(x), twin(it, x), rtol=0, atol=0)
    torch.testing.assert_close(by_output(x), expected, rtol=0, atol=0)
