"""Fused operations against their twins in PyTorch."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from paceline.attend.device import tensors_on
from paceline.attend.turn import rotate_, turn_and_write
from paceline.model.blocks import ACTIVATE, FeedForward, Mixture
from paceline.model.gpu.experts import grouped
from paceline.model.gpu.fused import gated, kernelled, looked_up
from paceline.model.gpu.matrices import pack_bytes, pack_floats
from paceline.model.linear import WideMatrix, pack_plain
from paceline.model.norms import LayerNorm, Norm
from paceline.model.spec import Experts

DEVICE = tensors_on("cuda")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


NORMS: list[Callable[[], Norm]] = [
    lambda: Norm(random(40), 1e-5),
    lambda: LayerNorm(random(40), 1e-5, None),
    lambda: LayerNorm(random(40), 1e-5, random(40)),
]


@pytest.mark.parametrize("make", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms(make: Callable[[], Norm], dtype: torch.dtype) -> None:
    norm = make()
    kernel, x, y = kernelled(norm), random(5, 40).to(dtype), random(6, 40)[1:].to(dtype)
    assert kernel is not None and type(kernel) is not type(norm)
    mine, theirs = x.clone(), x.clone()
    near = {"rtol": 2e-3, "atol": 2e-3} if dtype is torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(kernel(x), norm(x), **near)
    torch.testing.assert_close(kernel.joined(mine, y), norm.joined(theirs, y), **near)
    assert torch.equal(mine, theirs) and not torch.equal(mine, x)


def test_norms_of_heads_in_place_leave_the_others_alone() -> None:
    norm = Norm(random(3, 16), 1e-5)
    kernel, fused = kernelled(norm), random(4, 5, 16)
    assert kernel is not None
    mine, theirs = fused.clone(), fused.clone()
    kernel.over_(mine.narrow(1, 0, 3))
    norm.over_(theirs.narrow(1, 0, 3))
    torch.testing.assert_close(mine, theirs)
    assert torch.equal(mine[:, 3:], fused[:, 3:])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates(activation: str) -> None:
    both = random(3, 2 * 1030)
    gate, up = both.chunk(2, -1)
    torch.testing.assert_close(gated(activation, both), ACTIVATE[activation](gate) * up, rtol=1e-5, atol=1e-5)


def test_embeddings() -> None:
    table, token = random(11, 1030), torch.tensor([3, 10, 3], device=DEVICE)
    assert torch.equal(looked_up(table, token, torch.float32, 1.0), table[token])
    torch.testing.assert_close(looked_up(table, token, torch.float16, 3.0), (table[token] * 3).half())


@pytest.mark.parametrize("rotated", [8, 4])
def test_rotation_and_the_way_to_the_slots(rotated: int) -> None:
    """A slot below 0 is written nowhere."""
    heads, kv_heads, slot = 3, 2, torch.tensor([3, -1, 7, 0], device=DEVICE)
    qkv, turn = random(4, heads + 2 * kv_heads, 8), random(4, 2, 1, rotated).unbind(1)
    expected, pool, before = qkv.clone(), random(2, kv_heads, 9, 8), random(2, kv_heads, 9, 8)
    rotate_(expected[:, : heads + kv_heads], turn)
    turn_and_write(qkv, turn, slot, pool)
    torch.testing.assert_close(qkv[:, :heads], expected[:, :heads])
    for row in (0, 2, 3):
        keys, values = expected[row, heads:].view(2, kv_heads, 8)
        before[0, :, slot[row]], before[1, :, slot[row]] = keys, values
    torch.testing.assert_close(pool, before)


def mixture(pack: Callable[..., torch.Tensor], bias: bool) -> Mixture:
    from types import SimpleNamespace

    spec, form = SimpleNamespace(activation="silu", gated=True), Experts(5, 2, 24, normed=True)
    offset = (lambda n: random(n)) if bias else (lambda n: None)
    experts = [
        FeedForward(spec, pack(random(48, 16) * (e + 1), offset(48)), pack(random(16, 24) + e, offset(16)))  # type: ignore[arg-type]
        for e in range(5)
    ]
    return Mixture(form, WideMatrix(random(5, 16), None), experts, None, None)


@pytest.mark.parametrize("bias", [False, True])
def test_experts(bias: bool) -> None:
    """Every expert with rows, one with many, and some without; a row's bits alone."""
    twin, kernel, x = mixture(pack_plain, bias), grouped(mixture(pack_floats, bias)), random(40, 16)
    assert type(kernel) is not Mixture
    for rows in (x, x[:1].repeat(20, 1), x[3:4]):
        torch.testing.assert_close(kernel(rows), twin(rows), rtol=1e-4, atol=1e-4)
    whole = kernel(x)
    assert torch.equal(kernel(x[7:9]), whole[7:9]) and torch.equal(kernel(x[3:4]), whole[3:4])


def test_experts_in_eight_bits_are_computed_one_by_one() -> None:
    assert type(grouped(mixture(pack_bytes, False))) is Mixture
