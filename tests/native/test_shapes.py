"""Products of every unit at hand at sizes that fit no block: odd rows, odd columns, every form of groups, one row to
33. Weights, inputs and outputs end before a page that nothing may touch, so an access beyond them ends the process, and
the sanitizer (test_asan.py) sees those of other memory. The numbers are compared with PyTorch's."""

import ctypes
import faulthandler
import os
import resource
import signal
from operator import attrgetter

import pytest
import torch
from torch import Tensor

from paceline.model import packed
from paceline.model.grouped import twin
from paceline.native.build import Unit, library
from tests.model.test_grouped import CASES, Case, packed_as
from tests.model.units import compiled
from tests.native import fence
from tests.native.fence import Fence, FencedLinear

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
    for module in (packed, fence):
        monkeypatch.setattr(module, "library", lambda: found)
    monkeypatch.setattr(fence, "unit", lambda: own)
    return own


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_bfloat16_and_int8_at_odd_sizes(unit: Unit, outputs: int, inputs: int) -> None:
    stream = torch.Generator().manual_seed(outputs)
    weight, bias = torch.randn(outputs, inputs, generator=stream), torch.randn(outputs, generator=stream)
    for pack in (packed.pack_bfloat16, packed.pack_int8):
        layer = FencedLinear(pack(weight.clone(), bias.clone()), max(ROWS))  # packing works in place
        for count in ROWS:
            x = rows_of(inputs, count)
            expected = x @ weight.T + bias
            slack = 0.03 * float((x.abs() @ weight.abs().T).max()) + 0.05
            assert float((layer(x) - expected).abs().max()) <= slack, (pack.__name__, count)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (33, 31), (31, 33), (65, 130), (33, 288)])
def test_groups_at_odd_sizes(unit: Unit, outputs: int, inputs: int, case: Case) -> None:
    layer = packed_as(case, outputs, inputs)
    fenced = FencedLinear(layer, max(ROWS))
    for count in ROWS:
        x = rows_of(inputs, count)
        expected = twin(layer, x)
        slack = 0.03 * float(expected.abs().max()) + 0.05
        assert float((fenced(x) - expected).abs().max()) <= slack, count


def test_a_fence_ends_a_process_that_crosses_it() -> None:
    """One byte behind it is read."""
    memory = Fence(64)
    end = memory.room((64,), torch.uint8).data_ptr()
    assert len(ctypes.string_at(end, 64)) == 64
    pid = os.fork()
    if pid == 0:
        try:
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.string_at(end + 1, 64)
        finally:
            os._exit(0)
    sanitizer = 77  # the status with which a sanitizer ends a process
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (-signal.SIGSEGV, -signal.SIGBUS, sanitizer)
