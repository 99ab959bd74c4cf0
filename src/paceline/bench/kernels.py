"""Cycles of the kernels of weights in groups, in the caches and from memory, with the bound of the CPU's ports."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from paceline.bench.files import save_json
from paceline.bench.limit import read_speed
from paceline.core.errors import RefusalError
from paceline.model import pages
from paceline.model.grouped import ScaleForm, lay
from paceline.model.groups import FP4, GROUP, IQ4
from paceline.model.packed import Packed
from paceline.native.build import WIDE, library, machine_flags, unit
from paceline.native.structs import CModel

if TYPE_CHECKING:
    from rich.table import Table

KERNEL_ROWS = (1, 2, 4, 8, 16)
CACHED_INPUTS = 1024
"""Inputs of the matrix with 32 outputs whose cycles are counted: some 20 to 35 KB."""
CACHED_COPIES = 4
"""Copies of this matrix, of which the first is multiplied: fetching ahead must find memory, as it does in a model."""
CACHE_REPEATS = 1000
"""Runs in each place of which the quickest counts."""
PLACE_BYTES = 1024
"""From place to place in a page of memory: what else lies in the same lines of the first cache differs by place, and
takes up to half of a kernel's time again."""
COPIED_BYTES = 192 << 20
"""Size of the matrix that is read from memory, beyond most third caches."""
MEMORY_INPUTS = 2048
WEIGHTS_COUNTED = 256
"""Weights that figures are for, of one output."""
KERNELS: dict[str, tuple[ScaleForm, int, int]] = {
    "Q4_K": (ScaleForm.SUPER, 4, 0), "Q5_K": (ScaleForm.SUPER, 5, 0), "Q6_K": (ScaleForm.SIXTEENS, 6, 0),
    "Q4_0": (ScaleForm.HALF, 4, 0), "Q5_0": (ScaleForm.HALF, 5, 0), "Q8_0": (ScaleForm.HALF, 8, 0),
    "Q4_1": (ScaleForm.PAIRS, 4, 0), "Q5_1": (ScaleForm.PAIRS, 5, 0), "GPTQ 4": (ScaleForm.ZEROS, 4, 0),
    "Q3_K": (ScaleForm.SIXTEENS, 4, 0), "IQ4_NL": (ScaleForm.HALF, 4, IQ4), "IQ4_XS": (ScaleForm.SIGNED, 4, IQ4),
    "MXFP4": (ScaleForm.EXPONENT, 4, FP4),
}  # fmt: skip
"""Form, bits and table by a type that is packed so."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel. cycles: by rows, of 256 weights of one output, by the time-stamp counter. gb_s: bytes of weights a
    second from memory, by rows."""

    name: str
    bits: float
    bound: dict[int, float]
    cycles: dict[int, float]
    gb_s: dict[int, float]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Every kernel on this machine."""

    unit: str
    read_gb_s: float
    threads: int
    found: list[KernelTime]

    def table(self) -> "Table":
        """Cycles and speeds for a terminal."""
        from rich import box
        from rich.table import Table

        table = Table("kernel", "bits", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for rows in KERNEL_ROWS:
            table.add_column(f"{rows} row{'s' * (rows > 1)}", justify="right", no_wrap=True)
        for rows in KERNEL_ROWS:
            table.add_column(f"GB/s {rows}", justify="right", no_wrap=True)
        for it in self.found:
            cycles = (f"{it.cycles[n]:.1f} ({it.bound[n]:.0f})" for n in KERNEL_ROWS)
            speeds = (f"{it.gb_s[n]:.1f}" if it.gb_s else "" for n in KERNEL_ROWS)
            table.add_row(it.name, f"{it.bits:.3g}", *cycles, *speeds)
        return table

    def summary(self) -> str:
        """What the figures are."""
        return (
            f"Cycles of the time-stamp counter for {WEIGHTS_COUNTED} weights of one output, in the caches, one thread, "
            f"least of {CACHE_REPEATS} runs, unit {self.unit}; in brackets the products alone, two instructions a "
            f"cycle.\nGB/s of weights from memory with {self.threads} thread{'s' * (self.threads > 1)}; this machine "
            f"reads {self.read_gb_s:.1f} GB/s."
        )

    def write(self, path: Path) -> None:
        """As JSON. Raises InputError when it cannot be written."""
        save_json(path, {"kernels": asdict(self)})


def random_matrix(form: ScaleForm, bits: int, table: int, outputs: int, inputs: int) -> Packed:
    """A packed matrix of this kind with arbitrary content."""
    stream = torch.Generator().manual_seed(0)
    groups = inputs // GROUP

    def some(most: int, count: int) -> torch.Tensor:
        return torch.randint(1, most, (outputs, count), generator=stream).float()

    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=stream, dtype=torch.uint8)
    half = some(100, groups) / 4096
    parts: tuple[torch.Tensor, ...] = {
        ScaleForm.SUPER: (half[:, ::8], -half[:, ::8], some(64, groups), some(64, groups)),
        ScaleForm.SIXTEENS: (half[:, ::8], some(100, 2 * groups)),
        ScaleForm.SIGNED: (half[:, ::8], some(32, groups)),
        ScaleForm.ZEROS: (half, some(1 << bits, groups)),
        ScaleForm.PAIRS: (half, -half),
        ScaleForm.EXPONENT: (some(10, groups) + 110,),
        ScaleForm.HALF: (half,),
        ScaleForm.FLOATS: (half, -half),
    }[form]
    return lay(codes, form, parts, None, bits, table)


def products(bits: int, table: int, rows: int) -> float:
    """Cycles that the products alone of 256 weights and `rows` rows take where two start in each: eight of 32 bytes
    with AVX2, and twice as many where codes of 8 bits are split; half as many of 64 bytes."""
    flags = machine_flags() or ()
    split = 2 if (bits == 8 or table) and flags != WIDE and "-mavxvnni" not in flags else 1
    return rows * 8 * split / 2 / (2 if flags == WIDE else 1)


def measure_kernels(memory: bool = True) -> Kernels:
    """Time every kernel. Raises RefusalError where there is no native library. `memory`: also from memory."""
    it = library()
    if it is None:
        raise RefusalError(
            "bench --kernels times the native decoder, which needs Linux, a CPU with AVX2 (or NEON with its dot "
            "product) and a C++ compiler."
        )
    threads, found = torch.get_num_threads(), []
    for name, (form, bits, table) in KERNELS.items():
        small = repeated(random_matrix(form, bits, table, 32, CACHED_INPUTS), CACHED_COPIES, 32)
        counted, cycles = 32 * CACHED_INPUTS / WEIGHTS_COUNTED, dict.fromkeys(KERNEL_ROWS, math.inf)
        for placed in places(small):
            model = CModel(int8=2, threads=1, unit=unit(), head=placed.c)
            cycles = {n: min(best, it.paceline_ticks(model, n, CACHE_REPEATS) / counted) for n, best in cycles.items()}
        bound = {n: products(bits, table, n) for n in KERNEL_ROWS}
        stored = small.bytes * 8 / (32 * CACHED_INPUTS * CACHED_COPIES)
        found.append(KernelTime(name, stored, bound, cycles, from_memory(form, bits, table) if memory else {}))
    read = read_speed(COPIED_BYTES, torch.device("cpu")) / 1e9
    return Kernels(unit().name, read, threads, found)


def repeated(block: Packed, copies: int, outputs: int) -> Packed:
    """Copies of a block one behind the other, in such memory as weights are served from."""
    size = block.weight.nbytes
    weight = pages.zeros(copies * size).view(copies, size)
    weight[:] = block.weight.reshape(-1).view(torch.uint8)
    c = type(block.c).from_buffer_copy(block.c)
    c.weight, c.outputs = weight.data_ptr(), outputs
    return Packed(weight, None, None, None, c)


def places(block: Packed) -> Iterator[Packed]:
    """A matrix at places apart in a page."""
    size, page = block.weight.nbytes, 4096
    memory = torch.empty(size + 2 * page, dtype=torch.uint8)
    begin = -memory.data_ptr() % page
    for place in range(begin, begin + page, PLACE_BYTES):
        weight = memory[place : place + size].view(block.weight.shape).copy_(block.weight)
        c = type(block.c).from_buffer_copy(block.c)
        c.weight = weight.data_ptr()
        yield Packed(weight, None, None, None, c)


def from_memory(form: ScaleForm, bits: int, table: int) -> dict[int, float]:
    """GB of weights a second by rows: the best of some products with a matrix that no cache holds."""
    block = random_matrix(form, bits, table, 32, MEMORY_INPUTS)
    copies = max(1, COPIED_BYTES // block.weight.nbytes)
    large = repeated(block, copies, 32 * copies)
    speeds = {}
    for rows in KERNEL_ROWS:
        x, best = torch.ones(rows, MEMORY_INPUTS), float("inf")
        for _ in range(5):
            started = perf_counter()
            large(x)
            best = min(best, perf_counter() - started)
        speeds[rows] = large.weight.nbytes / best / 1e9
    return speeds


def ratios(found: Kernels) -> dict[str, Any]:
    """One row over two, by kernel: more than 1 tells that something stalls."""
    return {it.name: it.cycles[1] / it.cycles[2] for it in found.found}
