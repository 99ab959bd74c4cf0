"""Products of every unit at hand at sizes that fit no block: odd rows, odd columns, every form of groups, one row to
33. Inputs and outputs lie in buffers of exactly their size, so that under AddressSanitizer (test_asan.py) an access
beyond them is reported; here the numbers are compared with PyTorch's."""

from operator import attrgetter

import pytest
import torch
from torch import Tensor

from paceline.model import packed
from paceline.model.grouped import twin
from paceline.native.build import Unit, library
from tests.model.test_grouped import CASES, Case, packed_as
from tests.model.units import compiled

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
SHAPES = ((1, 1), (1, 33), (31, 1), (33, 31), (33, 65), (65, 127), (97, 129), (200, 96))
ROWS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)


def rows_of(inputs: int, count: int) -> Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(count))


@pytest.fixture(params=Unit, ids=attrgetter("name"))
def unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Unit:
    own: Unit = request.param
    found = compiled(own)
    monkeypatch.setattr(packed, "unit", lambda: own)
    monkeypatch.setattr(packed, "library", lambda: found)
    return own


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_bfloat16_and_int8_at_odd_sizes(unit: Unit, outputs: int, inputs: int) -> None:
    stream = torch.Generator().manual_seed(outputs)
    weight, bias = torch.randn(outputs, inputs, generator=stream), torch.randn(outputs, generator=stream)
    for pack in (packed.pack_bfloat16, packed.pack_int8):
        layer = pack(weight.clone(), bias.clone())  # packing works in place
        for count in ROWS:
            x = rows_of(inputs, count)
            expected = x @ weight.T + bias
            slack = 0.03 * float((x.abs() @ weight.abs().T).max()) + 0.05
            assert float((layer(x) - expected).abs().max()) <= slack, (pack.__name__, count)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (33, 31), (31, 33), (65, 130), (33, 288)])
def test_groups_at_odd_sizes(unit: Unit, outputs: int, inputs: int, case: Case) -> None:
    layer = packed_as(case, outputs, inputs)
    for count in ROWS:
        x = rows_of(inputs, count)
        expected = twin(layer, x)
        slack = 0.03 * float(expected.abs().max()) + 0.05
        assert float((layer(x) - expected).abs().max()) <= slack, count
