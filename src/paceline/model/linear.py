"""Linear layers packed once at load, in the form this machine multiplies fastest at a few rows.

A pass over few rows is bound by reading the weights, and plain `F.linear` on a CPU is not: it repacks or
converts them at every call. Which packing is chosen depends on what the machine can do, found by trying:

    dtype             machine                        packing   activations
    bfloat16          AVX2 or NEON and a compiler    native    float32, the whole decoder is one native call
    quantize int8     the same                       native    the same, rounded to int8 by row
    quantize int4     the same                       native    the same; head and embedding in 6 bits
    stored in groups  the same                       native    the same; each matrix in its own 4 to 8 bits
    not float64       CUDA with Triton               triton    as the weights, in int8 and int4, too
    the last three    layers that are PyTorch's      products  the same; each matrix is a native call
    float32           oneDNN                         mkldnn    float32
    bfloat16/float16  computes it natively           mkldnn    as the weights
    bfloat16/float16  other CPUs with FBGEMM         fbgemm    float32, weights held in float16
    any               else (CUDA, float64, no op)    plain     as the weights
"""

import logging
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.attend.device import Device, kernels_on, tensors_on
from paceline.core.errors import RefusalError
from paceline.model import grouped, rounding
from paceline.model.groups import Groups
from paceline.model.packed import pack_bfloat16, pack_int8, size
from paceline.native.build import Unit, library, unit

log = logging.getLogger("paceline")
Linear = Callable[[Tensor], Tensor]
"""[T, in] -> [T, out], both in the packing's compute dtype; T >= 1."""

HALF_DTYPES = (torch.bfloat16, torch.float16)
STORED = "native as stored"
"""The packing of what is quantised already."""
ROWS_TRIED = ((0, 1), (5, 8), (7, 16), (0, 17), (8, 32))
"""(first, count) of rows that are computed alone and among others."""
ROWS_HINT = 8
"""oneDNN lays weights out for a batch size; 8 rows is a typical tree, and costs nothing at 1."""


@dataclass(frozen=True, slots=True)
class Packing:
    """A way to hold weights. `pack(weight [out, in], bias [out] or None)` may keep no reference to either."""

    name: str
    dtype: torch.dtype
    compute: torch.dtype
    pack: Callable[[Tensor, Tensor | None], Linear]
    size: Callable[[int, int], int] = field(compare=False)
    """Most bytes that a packed matrix [out, in] and its bias take."""
    working: int
    """Most bytes for each of its weights while a matrix is fused, converted and packed, in addition to file and
    result."""
    free_rows: int
    """Rows up to which a pass costs little more than one of a single row: draft nodes within it are cheap."""
    row: float = 0.0
    """What each row beyond the first costs, in passes of one row, where that is not little."""
    head: "Packing | None" = field(default=None, compare=False)
    """How head and embedding lie where not as the rest. The embedding is then looked up as it lies, and where the two
    are tied they are one."""
    kv: str | None = None
    """"int8": keys and values in 8 bits, each 32 numbers of a head with a scale; None: as `dtype`."""
    native: bool = False
    """Whether `pack` gives `packed.Packed`, for the decoder that is one native call."""
    groups: Callable[[Groups, Tensor | None], Linear] | None = None
    """Packs what is quantised already as it is, with its bias."""
    kernels: bool = False
    """Whether the decoder computes with the kernels of a GPU (`model/gpu/`)."""

    def describe(self) -> str:
        kv = "" if self.kv is None else f", K/V {self.kv}"
        return f"{self.name}, weights {short(self.dtype)}, activations {short(self.compute)}{kv}"

    def slot(self, heads: int, head_dim: int) -> int:
        """Bytes of one token's keys and values in one layer."""
        dims = -(-head_dim // 32) * 32 if self.native else head_dim
        return 2 * heads * (dims + dims // 16 if self.kv == "int8" else dims * self.dtype.itemsize)


def choose(dtype: torch.dtype, device: Device) -> Packing:
    """The first packing that works here, checked against `F.linear` on a small random matrix."""
    return next(packing for packing in available(dtype, device))


def available(dtype: torch.dtype, device: Device) -> Iterator[Packing]:
    """Every packing that works here, the preferred first; `plain` is always among them and comes last."""
    if kernels_on(device) and dtype is not torch.float64:
        try:
            yield on_gpu(None, dtype, str(device))
        except Exception as error:  # what a compiler raises is not foreseen
            log.warning("Linear layers run in PyTorch, and a text may depend on its batch: %s", error)
    if str(device) == "cpu":
        if dtype is torch.bfloat16 and library() is not None:
            whole = partial(size, quantised=False)
            row = {Unit.DOT: 0.06, Unit.FUSED: 0.09, Unit.SHORT: 0.16}.get(unit(), 0.0)
            native = Packing("native", dtype, torch.float32, pack_bfloat16, whole, 8, 16, row, native=True)
            yield from filter(works, [native])
        if dtype in (torch.float32, *HALF_DTYPES):
            free = 16 if dtype in HALF_DTYPES else 8
            yield from filter(
                works,
                [
                    Packing(
                        "mkldnn",
                        dtype,
                        dtype,
                        pack_mkldnn,
                        partial(tiled, itemsize=dtype.itemsize),
                        3 * dtype.itemsize,
                        free,
                    )
                ],
            )
        if dtype in HALF_DTYPES:
            yield from filter(
                works, [Packing("fbgemm", dtype, torch.float32, pack_fbgemm, partial(tiled, itemsize=2), 14, 6)]
            )
    yield plain(dtype, device)


def unfused(dtype: torch.dtype) -> Packing:
    """The first packing on a CPU whose layers are computed one by one, in PyTorch."""
    return next(packing for packing in available(dtype, "cpu") if not packing.native)


def quantised(method: str, dtype: torch.dtype, device: Device) -> Packing:
    """int8: weights and activations in int8 (W8A8, activations by row), K/V in bfloat16. int4: weights in 4 bits by
    groups (W4A8), head and embedding in 6. RefusalError where that cannot run: another precision would be another
    model."""
    if method not in ("int8", "int4"):
        raise RefusalError(f"quantize is {method!r}, which is not known; use int8, int4 or none.")
    if kernels_on(device):
        return on_gpu(method, dtype, str(device))
    if dtype is not torch.bfloat16:
        raise RefusalError(
            f"quantize {method} keeps everything else in bfloat16; use dtype bfloat16, not {short(dtype)}."
        )
    whole = partial(size, quantised=True)
    row = {Unit.DOT: 0.06, Unit.FUSED: 0.075, Unit.SHORT: 0.16}.get(unit(), 0.0)
    packing = Packing("native int8", dtype, torch.float32, pack_int8, whole, 14, 16, row, native=True)
    if method == "int4":
        packing = in_groups(dtype)
    if str(device) != "cpu" or library() is None or not works(packing, 0.3 if method == "int8" else 2):
        raise RefusalError(
            f"quantize {method} needs Linux, a CPU with AVX2 and FMA (or NEON with its dot product), and a C++ "
            "compiler, or a GPU with Triton (pip install triton), which are not all here; leave quantize out."
        )
    return packing


@cache
def on_gpu(method: str | None, dtype: torch.dtype, device: str) -> Packing:
    """The packing whose products are kernels of a GPU: weights as they are, or in int8 or int4; activations as
    they are. RefusalError where the kernels do not run there, or a row's bits depend on the other rows."""
    from paceline.model.gpu import matrices

    def sized(bits: float) -> Callable[[int, int], int]:
        return partial(matrices.bytes_of, bits=bits, itemsize=dtype.itemsize)

    def form(name: str, pack: Callable[[Tensor, Tensor | None], Linear], bits: float, working: int) -> Packing:
        return Packing(name, dtype, dtype, pack, sized(bits), working, 32, kernels=True)

    bits = 8.0 * dtype.itemsize
    if method is None:
        packing, error = form("triton", matrices.pack_floats, bits, 2 * dtype.itemsize), 0.05
    elif method == "int8":
        packing, error = form("triton int8", matrices.pack_bytes, 8.0, 8), 0.3
    else:
        packing, error = form("triton int4", matrices.pack_fours, matrices.SUPER_BITS, 8), 2.0
        packing = replace(packing, head=form("triton int8", matrices.pack_bytes, 8.0, 8))
    if dtype is torch.float64:
        raise RefusalError("A GPU's kernels have no float64; use dtype bfloat16, float16 or float32.")
    if not (works(packing, error, tensors_on(device)) and invariant(packing, tensors_on(device))):
        raise RefusalError(f"The kernels of {packing.name} do not run on {device}; use dtype float32 or device cpu.")
    return packing


def invariant(packing: Packing, device: torch.device) -> bool:
    """Has a row the same bits whatever the other rows are?"""
    stream = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 1100, generator=stream).to(device, packing.dtype) for n in (80, 40))
    matrix = packing.pack(weight, None)
    whole = matrix(x)
    return all(torch.equal(matrix(x[first : first + n]), whole[first : first + n]) for first, n in ROWS_TRIED)


def in_groups(dtype: torch.dtype) -> Packing:
    """The packing of `quantize int4`."""
    fine = partial(grouped.size, bits=6, form=grouped.ScaleForm.SIXTEENS)
    coarse = partial(grouped.size, bits=4, form=grouped.ScaleForm.SUPER)
    row = {Unit.SHORT: 0.2, Unit.DOT: 0.2}.get(unit(), 0.06)
    head = Packing("native int6", dtype, torch.float32, rounding.pack_sixes, fine, 8, 8, native=True)
    return Packing(
        "native int4", dtype, torch.float32, rounding.pack_int4, coarse, 8, 8, row, head=head, native=True,
        groups=grouped.pack_stored,
    )  # fmt: skip


def alone(packing: Packing) -> Packing:
    """A packing of the native decoder's for a decoder in PyTorch: the same matrices, each product a call."""
    head = None if packing.head is None else replace(packing.head, native=False)
    return replace(packing, name=f"{packing.name} products", head=head, native=False)


def as_stored(bits: float, dtype: torch.dtype, device: Device) -> Packing | None:
    """The packing of a checkpoint that is quantised already, whose matrices take `bits` for each weight as they are;
    the few that are stored as floats are rounded to 8 bits in groups. None where the native decoder cannot run."""
    if str(device) != "cpu" or dtype is not torch.bfloat16 or library() is None:
        return None
    own = partial(grouped.size_of, bits=bits)
    fine = partial(grouped.size, bits=8, form=grouped.ScaleForm.HALF)
    head = Packing("native int8", dtype, torch.float32, rounding.pack_bytes, fine, 8, 8, native=True)
    packing = replace(in_groups(dtype), name=STORED, pack=rounding.pack_bytes, size=own, head=head)
    return packing if works(packing, 0.3) else None


def plain(dtype: torch.dtype, device: Device) -> Packing:
    """The reference form of every packing. Half precision that a CPU lacks is multiplied row by row: no row is free."""
    free_rows = 64 if str(device).startswith("cuda") else 1 if dtype in HALF_DTYPES else 16
    whole = partial(tiled, tile=1, itemsize=dtype.itemsize)
    return Packing("plain", dtype, dtype, pack_plain, whole, 2 * dtype.itemsize, free_rows)


def tiled(outputs: int, inputs: int, itemsize: int, tile: int = 64) -> int:
    """Bytes of a matrix whose outputs and inputs are padded to tiles, and of its bias."""
    outputs, inputs = (-(-n // tile) * tile for n in (outputs, inputs))
    return outputs * (inputs + 1) * itemsize


def works(packing: Packing, error: float = 0.05, device: torch.device | str = "cpu") -> bool:
    stream = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 40, generator=stream).to(device, packing.dtype)
    bias = torch.randn(48, generator=stream).to(device, packing.dtype)
    x = torch.randn(3, 40, generator=stream).to(device, packing.compute)
    try:
        ours = packing.pack(weight, bias)(x)
    except (RuntimeError, AttributeError):  # what torch raises where the op or the instruction set is missing
        return False
    expected = F.linear(x.float(), weight.float(), bias.float())
    return torch.allclose(ours.float(), expected, rtol=0.02, atol=error)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PlainMatrix:
    """A matrix as it is."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def outputs(self, at: Tensor) -> "PlainMatrix":
        """These outputs alone."""
        return PlainMatrix(self.weight[at], None if self.bias is None else self.bias[at])


@dataclass(frozen=True, slots=True)
class WideMatrix:
    """A small matrix in float32 or wider, whatever its input is in: a router's, whose rounding would send a row to
    another expert."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


def pack_plain(weight: Tensor, bias: Tensor | None) -> Linear:
    return PlainMatrix(weight, bias)


def pack_mkldnn(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def pack_fbgemm(weight: Tensor, bias: Tensor | None) -> Linear:
    weight, bias = weight.float(), None if bias is None else bias.float()
    if not weight.abs().max() < torch.finfo(torch.float16).max:  # beyond float16, which bfloat16 allows
        return pack_plain(weight, bias)
    module = copy(half_linear())
    module.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    return lambda x: module.forward(x)


class HalfLinear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(torch.zeros(1, 1), None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)  # type: ignore[no-any-return]


@cache
def half_linear() -> Any:
    """The op in a script that holds the packed weight: called from Python, converting that one argument takes
    12 of the op's 17 microseconds, at every layer of every step. Compiled once; a copy shares the code."""
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(HalfLinear())


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
