"""Noise rows as tensors: the counter-based noise of core/noise.py, one value for each token."""

import torch
from torch import Tensor

from paceline.core.noise import GOLDEN, MUL1, MUL2, signed


def _fold(x: Tensor, bits: int) -> Tensor:
    """x ^= x >> bits in place, the shift logical (torch's `>>` on int64 keeps the sign)."""
    shifted = x >> bits
    shifted &= (1 << (64 - bits)) - 1
    return x.bitwise_xor_(shifted)


def _mix(x: Tensor) -> Tensor:
    """`core.noise.mix` on int64, in place: whole vocabularies pass through here."""
    _fold(x, 30).mul_(signed(MUL1))
    _fold(x, 27).mul_(signed(MUL2))
    return _fold(x, 31)


def keys_tensor(keys: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Row keys as int64 [N] (two's complement)."""
    return torch.tensor([signed(k) for k in keys], dtype=torch.int64, device=device)


def counts(keys: Tensor, tokens: Tensor) -> Tensor:
    """The 52 random bits behind each uniform, int64 in [0, 2**52); same arguments as `uniforms`."""
    bits = _mix(keys[:, None] + (tokens + 1) * signed(GOLDEN))
    bits >>= 12
    return bits.bitwise_and_((1 << 52) - 1)


def uniforms(keys: Tensor, tokens: Tensor) -> Tensor:
    """float64 in the open interval (0, 1); `keys` int64 [N], `tokens` int64 [K] or [N, K]; result [N, K]."""
    return (counts(keys, tokens).to(torch.float64) + 0.5) * 2.0**-52


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise -log(-log u), float64 [N, K]; same arguments as `uniforms`."""
    return -torch.log(-torch.log(uniforms(keys, tokens)))
