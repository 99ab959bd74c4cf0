"""`bench --kernels`: figures of every kernel, and the sign of a stall."""

import pytest
import torch

from paceline.bench import kernels
from paceline.bench.kernels import KERNEL_ROWS, KERNELS, measure_kernels, random_matrix, ratios
from paceline.model.grouped import twin
from paceline.native.build import library

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no native library")


def test_every_kernel_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CACHE_REPEATS", 3)
    monkeypatch.setattr(kernels, "COPIED_BYTES", 1 << 18)
    found = measure_kernels()
    assert [it.name for it in found.found] == [*KERNELS]
    for it in found.found:
        assert all(it.cycles[n] > 0 and it.gb_s[n] > 0 and it.bound[n] > 0 for n in KERNEL_ROWS)
        assert it.bound[16] == 16 * it.bound[1]
    bits = {it.name: it.bits for it in found.found}
    assert bits == {
        "Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625, "Q4_0": 4.5, "Q5_0": 5.5, "Q8_0": 8.5, "Q4_1": 5, "Q5_1": 6,
        "GPTQ 4": 4.75, "Q3_K": 4.5625, "IQ4_NL": 4.5, "IQ4_XS": 4.3125, "MXFP4": 4.25,
    }  # fmt: skip
    assert len(found.table().rows) == len(KERNELS) and "GB/s" in found.summary()


@pytest.mark.parametrize("name", KERNELS)
def test_the_matrices_are_real_ones(name: str) -> None:
    form, bits, table = KERNELS[name]
    it = random_matrix(form, bits, table, 32, 256)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    assert torch.equal(it(x), twin(it, x))


@pytest.mark.full
def test_one_row_takes_no_longer_than_two() -> None:
    """Least of many runs in the caches, by the CPU's counter. A row that is dearer than two tells of a stall, such as
    that of a load that follows narrower stores."""
    found = measure_kernels(memory=False)
    assert {name: ratio for name, ratio in ratios(found).items() if ratio > 1.05} == {}
