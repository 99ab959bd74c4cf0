"""Weights in groups: what comes in is kept, the native product is its slow twin's, and rounding loses little."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model import packed
from paceline.model.grouped import RECORD, ScaleForm, block_bytes, looked_up, meaning, pack_groups, size, twin, unpack
from paceline.model.groups import GROUP
from paceline.model.packed import Packed
from paceline.model.rounding import pack_bytes, pack_int4, pack_sixes
from paceline.native import build
from paceline.native.build import Unit, library
from tests.model.units import compiled, narrow

SHAPES = ((200, 96), (33, 130), (96, 576), (64, 256))


@dataclass(frozen=True)
class Case:
    """One kernel: bits, what scales are made of, the table, and how many groups of 32 share a scale."""

    form: ScaleForm
    bits: int
    table: int = 0
    spread: int = 0

    def __str__(self) -> str:
        return (
            f"{self.form.name}-{self.bits}{'-table' * (self.table > 0)}{f'-{GROUP << self.spread}' * (self.spread > 0)}"
        )

    @property
    def each(self) -> int:
        return 16 if self.form == ScaleForm.SIXTEENS else GROUP << self.spread


CASES = [
    *(
        Case(form, bits)
        for form in (ScaleForm.ZEROS, ScaleForm.PAIRS, ScaleForm.FLOATS, ScaleForm.HALF)
        for bits in (4, 5, 8)
    ),
    *(Case(ScaleForm.SUPER, bits) for bits in (4, 5)),
    *(Case(ScaleForm.SIXTEENS, bits) for bits in (4, 6)),
    *(Case(form, 4, table) for form, table in ((ScaleForm.HALF, 1), (ScaleForm.SIGNED, 1), (ScaleForm.EXPONENT, 2))),
    *(Case(form, 4, 0, spread) for form in (ScaleForm.ZEROS, ScaleForm.HALF) for spread in (1, 2, 3)),
]


def made(case: Case, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Scales and lows of a form, as the format that it is for has them."""
    stream = torch.Generator().manual_seed(case.form)
    shape = outputs, -(-inputs // case.each)

    def halves(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=stream) * 0.02 + 0.001).half().float()

    def whole(least: int, most: int, each: int) -> Tensor:
        times = torch.randint(least, most + 1, shape, generator=stream)
        return halves(outputs, -(-shape[1] // each)).repeat_interleave(each, 1)[:, : shape[1]] * times

    zero = 128 if case.table else 1 << (case.bits - 1)
    scale = halves(*shape)
    if case.form == ScaleForm.ZEROS:
        return scale, -scale * torch.randint(0, 2**case.bits, shape, generator=stream)
    if case.form == ScaleForm.PAIRS:
        return scale, -7 * halves(*shape).half().float()
    if case.form == ScaleForm.SUPER:
        return whole(0, 63, RECORD), -whole(0, 63, RECORD)
    if case.form == ScaleForm.FLOATS:
        return torch.rand(shape, generator=stream), torch.randn(shape, generator=stream)
    if case.form == ScaleForm.EXPONENT:
        scale = torch.exp2(torch.randint(-9, -4, shape, generator=stream).float())
        scale[0, 0] = 0
    if case.form == ScaleForm.SIXTEENS:
        scale = whole(-128, 127, 2 * RECORD)
    if case.form == ScaleForm.SIGNED:
        scale = whole(-32, 31, RECORD)
    return scale, -zero * scale


def codes_of(case: Case, outputs: int, inputs: int, seed: int = 1) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**case.bits, (outputs, inputs), generator=stream, dtype=torch.uint8)
    codes[0], codes[-1] = 0, 2**case.bits - 1
    return codes


def packed_as(case: Case, outputs: int, inputs: int, bias: Tensor | None = None) -> Packed:
    scale, low = made(case, outputs, inputs)
    if case.form == ScaleForm.PAIRS:
        low = low.half().float()
    return pack_groups(codes_of(case, outputs, inputs), scale, low, bias, case.bits, case.each, case.table)


def expand(it: Packed) -> Tensor:
    """The weights, float64."""
    codes, scale, low = unpack(it)
    each = 16 if it.c.form == ScaleForm.SIXTEENS else GROUP
    scale, low = (x.double().repeat_interleave(each, 1)[:, : codes.shape[1]] for x in (scale, low))
    return meaning(it, codes) * scale + low


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_what_another_tool_has_quantised_is_kept(outputs: int, inputs: int, case: Case) -> None:
    it = packed_as(case, outputs, inputs)
    scale, low = made(case, outputs, inputs)
    low = low.half().float() if case.form == ScaleForm.PAIRS else low
    assert it.c.form == case.form and it.c.bits == case.bits and it.c.spread == case.spread
    groups = -(-inputs // (16 if case.form == ScaleForm.SIXTEENS else GROUP))
    given = (x.repeat_interleave(1 << case.spread, 1)[:, :groups] for x in (scale, low))
    if case.form == ScaleForm.SIXTEENS and scale.shape[1] < 2 * -(-inputs // GROUP):  # half of the last group is empty
        given = (torch.nn.functional.pad(x, (0, 1)) for x in (scale, low))
    codes, *ours = unpack(it)
    assert torch.equal(codes, codes_of(case, outputs, inputs))
    assert all(torch.equal(a[:, :groups], b[:, :groups]) for a, b in zip(ours, given))
    assert it.bytes <= size(outputs, inputs, case.bits, case.form)


@pytest.mark.parametrize("power", [-12, 0, 9])
def test_scales_beyond_half_precision_are_times_a_power_of_two(power: int) -> None:
    """Such as those in bfloat16 of compressed-tensors."""
    case = Case(ScaleForm.HALF, 4)
    scale, low = (x * 2.0**power for x in made(case, 40, 128))
    it = pack_groups(codes_of(case, 40, 128), scale, low)
    assert it.c.form == ScaleForm.HALF
    assert all(torch.equal(a, b) for a, b in zip(unpack(it)[1:], (scale, low)))


def test_looking_up_an_embedding() -> None:
    it = pack_bytes(torch.randn(70, 130, generator=torch.Generator().manual_seed(5)), None)
    tokens = torch.tensor([69, 0, 33, 33])
    assert torch.equal(looked_up(it, tokens), expand(it).float()[tokens])


def test_bits_of_a_weight() -> None:
    each = {form.name: 8 * block_bytes(4096, 4, form) / (32 * 4096) for form in ScaleForm}
    assert each == {
        "ZEROS": 4.75, "PAIRS": 5.0, "SUPER": 4.625, "FLOATS": 6.0, "HALF": 4.5, "EXPONENT": 4.25, "SIXTEENS": 4.5625,
        "SIGNED": 4.3125,
    }  # fmt: skip
    assert 8 * block_bytes(4096, 4, ScaleForm.ZEROS, 2) / (32 * 4096) == 4.1875  # a scale for 128 inputs


def test_scales_that_are_no_numbers_are_refused() -> None:
    codes, scale = torch.zeros(4, 64, dtype=torch.uint8), torch.ones(4, 2)
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(CheckpointError, match="not finite"):
            pack_groups(codes, scale, torch.full((4, 2), wrong))


@pytest.mark.parametrize(("pack", "most"), [(pack_int4, 0.08), (pack_sixes, 0.022), (pack_bytes, 0.006)])
def test_rounding(pack: Callable[[Tensor, None], Packed], most: float) -> None:
    """To within half a step of a group's range, and at most 8 % of the whole for normal weights in 4 bits; zeros stay
    zeros, whatever lies beside them."""
    weight = torch.randn(70, 300, generator=torch.Generator().manual_seed(2)) * 0.02
    weight[3], weight[5, 32:64], weight[6, :32] = 0, 0, 1e-3
    ours = expand(pack(weight, None))
    wrong = (ours - weight).norm() / weight.norm()
    assert wrong < most
    assert not ours[3].any() and not ours[5, 32:64].any()
    torch.testing.assert_close(ours[6, :32], weight[6, :32].double(), rtol=0.2, atol=0)


@pytest.mark.skipif(library() is None, reason="this machine has no native library")
@pytest.mark.parametrize("unit", Unit, ids=lambda unit: unit.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_native_product_is_that_of_the_twin(monkeypatch: pytest.MonkeyPatch, case: Case, unit: Unit) -> None:
    """To the bit, with any number of rows."""
    monkeypatch.setattr(packed, "unit", lambda: unit)
    monkeypatch.setattr(packed, "library", lambda: compiled(unit))
    stream = torch.Generator().manual_seed(3)
    for outputs, inputs in SHAPES[1:3]:
        bias = torch.randn(outputs, generator=stream)
        it = packed_as(case, outputs, inputs, bias)
        x = torch.randn(140, inputs, generator=stream)
        x[4], x[5], x[6] = 0, 1, -1  # the largest sums
        expected = twin(it, x)
        for rows in (*range(1, 10), 15, 16, 17, 24, 25, 31, 32, 33, 45, 140):
            torch.testing.assert_close(it(x[:rows]), expected[:rows], rtol=0, atol=0)
        exact = x.double() @ expand(it).T + bias
        assert (expected - exact).norm() < 0.02 * exact.norm()  # activations are rounded


@pytest.mark.skipif(library() is None, reason="this machine has no native library")
@pytest.mark.parametrize("pack", [pack_int4, pack_sixes, pack_bytes])
def test_a_huge_activation_costs_the_precision_of_its_record_alone(pack: Callable[..., Packed]) -> None:
    """Models have some: one scale for a whole row would round all else to 0."""
    stream = torch.Generator().manual_seed(5)
    weight, x = torch.randn(64, 512, generator=stream), torch.randn(40, 512, generator=stream)
    weight[:, :256], x[:, 7] = 0, 1e5
    it = pack(weight, None)
    exact = x[:, 256:].double() @ expand(it)[:, 256:].T
    for rows in 1, 40:
        assert (it(x[:rows]) - exact[:rows]).norm() < 0.02 * exact[:rows].norm()


@pytest.mark.skipif(not build.abilities() >= build.NEEDED, reason="this CPU has no VNNI to stand in for AVX-VNNI")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_product_of_avx_vnni(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Its code with the same instructions of AVX-512's, on 256 bits."""
    vnni = narrow("-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=256")
    it, x = packed_as(case, 70, 130), torch.randn(11, 130, generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(packed, "unit", lambda: Unit.SHORT)
    monkeypatch.setattr(packed, "library", lambda: vnni)
    for rows in 1, 2, 3, 4, 11:
        torch.testing.assert_close(it(x[:rows]), twin(it, x[:rows]), rtol=0, atol=0)


@pytest.mark.skipif(not build.abilities() >= build.NEEDED, reason="this CPU has no VNNI to stand in for AVX-VNNI")
def test_the_product_by_output_of_avx_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    vnni = narrow("-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=256")
    stream = torch.Generator().manual_seed(4)
    x, by_output = (
        torch.randn(11, 130, generator=stream),
        packed.pack_int8(torch.randn(70, 130, generator=stream), None),
    )
    monkeypatch.setattr(packed, "unit", lambda: Unit.SHORT)
    monkeypatch.setattr(packed, "library", lambda: compiled(Unit.SHORT))
    expected = by_output(x)
    monkeypatch.setattr(packed, "library", lambda: vnni)
    torch.testing.assert_close(by_output(x), expected, rtol=0, atol=0)
