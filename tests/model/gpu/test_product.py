"""Linear layers by kernels: each against its twin, and a row's bits beside any other rows."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from paceline.attend.device import tensors_on
from paceline.model.gpu import product
from paceline.model.gpu.matrices import pack_bytes, pack_floats, pack_fours
from paceline.model.grouped import unpack
from paceline.model.rounding import pack_int4

DEVICE = tensors_on("cuda")
PACKS = [pack_floats, pack_bytes, pack_fours]


def made(outputs: int, inputs: int, dtype: torch.dtype, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(outputs + inputs)
    shapes = (outputs, inputs), (outputs,), (rows, inputs)
    weight, bias, x = (torch.randn(shape, generator=stream).to(DEVICE, dtype) for shape in shapes)
    return weight, bias, x


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("shape", [(48, 40), (70, 1100)])
def test_equals_its_twin(pack, shape: tuple[int, int]) -> None:
    """Inputs in one part and in several; a ragged last tile of each kind."""
    weight, bias, x = made(*shape, torch.float32, 33)
    for offset in (None, bias):
        matrix = pack(weight, offset)
        for rows in (1, 33):
            torch.testing.assert_close(matrix(x[:rows]), matrix.twin(x[:rows]), rtol=1e-4, atol=1e-3)
    assert (product.parts_of(*shape) > 1) == (shape[1] > 1024)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_a_row_beside_any_others(pack, dtype: torch.dtype) -> None:
    """1 to 32 rows, more than a tile, other mates, another place, rows that are not side by side in memory."""
    weight, bias, x = made(70, 1100, dtype, 70)
    matrix = pack(weight, bias)
    whole = matrix(x)
    for first, count in ((0, 1), (4, 1), (3, 2), (9, 16), (8, 17), (6, 32), (1, 33)):
        assert torch.equal(matrix(x[first : first + count]), whole[first : first + count]), (first, count)
    mates = x.flip(0).clone()
    mates[5] = x[20]
    assert torch.equal(matrix(mates[:8])[5], whole[20])
    assert torch.equal(matrix(x[::3][:4]), whole[::3][:4])


@pytest.mark.full
@pytest.mark.parametrize("pack", PACKS)
def test_bits_of_a_row_for_every_number_of_rows(pack) -> None:
    weight, _, x = made(70, 1100, torch.float32, 32)
    matrix = pack(weight, None)
    whole = matrix(x)
    for count in range(1, 33):
        assert torch.equal(matrix(x[32 - count :]), whole[32 - count :]), count


def test_a_kernel_that_looks_at_its_mates_is_found_out() -> None:
    from paceline.model.linear import Packing, invariant

    def pack(weight: torch.Tensor, bias: torch.Tensor | None):
        exact = pack_floats(weight, bias)
        return lambda x: exact(x) * (1 + 1e-6 * len(x))

    assert invariant(Packing("right", torch.float32, torch.float32, pack_floats, max, 0, 1), DEVICE)
    assert not invariant(Packing("wrong", torch.float32, torch.float32, pack, max, 0, 1), DEVICE)


def test_some_outputs_alone_have_the_same_bits() -> None:
    weight, bias, x = made(48, 40, torch.float32, 3)
    at = torch.tensor([3, 47, 0], device=DEVICE)
    for pack in PACKS:
        matrix = pack(weight, bias)
        assert torch.equal(matrix.outputs(at)(x), matrix(x)[:, at])
        assert matrix.bytes > matrix.outputs(at).bytes > 0


def test_four_bits_are_those_of_a_cpu() -> None:
    weight, _, _ = made(32, 96, torch.float32, 1)
    ours = pack_fours(weight, None).twin(torch.eye(96, device=DEVICE)).T.cpu()
    codes, scale, low = unpack(pack_int4(weight.cpu(), None))
    theirs = codes[:32, :96].view(32, -1, 32) * scale[:32, :3, None] + low[:32, :3, None]
    torch.testing.assert_close(ours, theirs.flatten(1))


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paceline.model.gpu import experts, fused, product

def compiled(kernel, types, fixed, **options):
    source = ASTSource(kernel, {**types, **dict.fromkeys(fixed, "constexpr")}, fixed)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

def of(kind, names):
    return dict.fromkeys(names.split(), kind)

sizes = of("i32", "rows outputs inputs stride each")
tile = dict(ROWS=16, OUTPUTS=64, WIDE=False)
plain = {"enable_fp_fusion": False, "num_stages": 4}
fours = {"enable_fp_fusion": False, "num_stages": 3, "num_warps": 8}
for weight in ("*bf16", "*i8"):
    types = {**of("*bf16", "x bias"), "out": "*fp32", "weight": weight, "scale": "*fp32", **sizes}
    how = dict(INPUTS=128, PARTS=1, SCALED=False, BIASED=False, TURNED=weight == "*bf16")
    kind = "wgmma" if weight == "*bf16" else "mma"
    assert kind in compiled(product._multiply, types, tile | how, **plain)
types = {**of("*bf16", "x bias out"), "words": "*i32", "times": "*u8", "halves": "*fp32", **sizes, "records": "i32"}
assert "wgmma" in compiled(product._multiply4, types, tile | dict(OUTPUTS=128, PARTS=2, BIASED=True), **fours)
types = {**of("*fp32", "parts scale"), **of("*bf16", "bias out"), **of("i32", "rows outputs")}
compiled(product._add_up, types, dict(PARTS=4, OUTPUTS=64, SCALED=True, BIASED=True))
types = {**of("*bf16", "x y out"), **of("*fp32", "weight bias floor")}
types |= of("i32", "x_row x_part out_row out_part width")
compiled(fused._norm, types, dict(LANES=4096, ADDED=True, CENTRED=True, BIASED=True))
compiled(fused._gate, {**of("*bf16", "both out"), "width": "i32"}, dict(KIND=1, LANES=1024))
types = {**of("*bf16", "table out"), "token": "*i64", "width": "i32", "factor": "fp32"}
compiled(fused._look_up, types, dict(LANES=1024))
types = {**of("*bf16", "x weights biases out"), **of("*i64", "tiles counts starts order")}
types |= of("i32", "share outputs inputs")
assert "mma" in compiled(experts._multiply_experts, types, tile | dict(INPUTS=128, BIASED=True), **plain)
types = {**of("*bf16", "parts shares out"), "width": "i32"}
compiled(experts._weigh, types, dict(ACTIVE=8, LANES=1024))
print("compiled")
"""


def test_compiles_for_a_gpu_that_is_not_here() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
