"""A head over some of the tokens: what is taken has the bits that it had."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline.core.program import Program
from paceline.model.grouped import pack_groups
from paceline.model.linear import pack_plain
from paceline.model.load import load_model
from paceline.model.narrow import taken
from paceline.model.packed import pack_bfloat16, pack_int8
from paceline.native.build import library
from tests.model.test_grouped import CASES, Case, made
from tests.oracle.cases import text
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

needs_native = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
WORDS = torch.tensor([0, 3, 31, 32, 40, 63, 64, 95, 96, 111, 130, 131, 150, 159, 160, 180, 199])


@needs_native
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_of_groups(case: Case) -> None:
    stream = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 1 << case.bits, (200, 544), generator=stream).to(torch.uint8)
    bias = torch.randn(200, generator=stream)
    whole = pack_groups(codes, *made(case, 200, 544), bias, case.bits, case.each, case.table)
    x = torch.randn(3, 544, generator=stream)
    part = taken(whole, WORDS)
    assert part is not None
    assert torch.equal(part(x), whole(x)[:, WORDS])


@needs_native
@pytest.mark.parametrize("pack", [pack_bfloat16, pack_int8, pack_plain])
def test_outputs_of_tiles(pack: object) -> None:
    stream = torch.Generator().manual_seed(1)
    whole = pack(torch.randn(200, 130, generator=stream), torch.randn(200, generator=stream))  # type: ignore[operator]
    x = torch.randn(3, 130, generator=stream)
    part = taken(whole, WORDS)
    assert part is not None
    torch.testing.assert_close(part(x), whole(x)[:, WORDS], rtol=0, atol=0 if pack is not pack_plain else 1e-5)


@pytest.mark.parametrize("form", [
    pytest.param({}, marks=needs_native), pytest.param({"quantize": "int8"}, marks=needs_native),
    pytest.param({"quantize": "int4"}, marks=needs_native), {"fast": False, "dtype": "float32"},
])  # fmt: skip
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_of_a_pass(tmp_path: Path, form: dict[str, object], family: str) -> None:
    """Of a draft in every pass, of a target where its program says so; those of other tokens are -inf."""
    model = load_model(tiny_checkpoint(tmp_path, family), **form)  # type: ignore[arg-type]
    model.allocate(4, 16)
    words = torch.tensor(sorted({*range(0, 320, 3), 7, 319}))
    outside = torch.ones(320, dtype=torch.bool)
    outside[words] = False

    def logits(program: Program) -> torch.Tensor:
        rows = replace(lay_out([Chunk([0], 0, text(1, 9))], 16, want=[2, 5, 8]), program=program)
        return model.forward(rows).logits

    whole, narrow = logits(Program()), Program(narrow=True)
    assert torch.equal(logits(narrow), whole)  # no draft vocabulary yet
    for drafts in (False, True):
        model.narrow(words, drafts)
        found = logits(narrow)
        torch.testing.assert_close(found[:, words], whole[:, words], rtol=0, atol=1e-6 * (not model.packing.native))
        assert (found[:, outside] == float("-inf")).all()
        assert torch.equal(logits(Program()), found if drafts else whole)
    model.narrow(torch.arange(320), True)
    assert torch.equal(logits(narrow), whole)
