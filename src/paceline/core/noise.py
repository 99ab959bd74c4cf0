"""Counter-based noise (D2): a draw is a pure function of its key, and the stream is a type.

There is no generator with state anywhere. A `Stream` makes a 64-bit *row key* from integers alone;
`gumbel` expands row keys to one value per token with integer arithmetic and takes logarithms in float64,
so every device draws the same numbers. The mixing function is the finaliser of SplitMix64 (Steele et al., 2014).

    target   argmax(log p + Gumbel(seed, lineage, index, token))     plain decoding and `exact`
    draft    what a drafter draws with under a rule that looks at q
    accept   uniforms and residual draws of those rules
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB


def mix(x: int) -> int:
    """SplitMix64's finaliser on a Python integer; the slow twin of `_mix`."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * _MUL1) & _MASK
    x = ((x ^ (x >> 27)) * _MUL2) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True, slots=True)
class Stream:
    """A family of noise rows of one request. Subclasses differ in purpose only, and never share a row."""

    seed: int
    lineage: tuple[int, ...] = ()
    head: int = field(init=False, repr=False, compare=False)
    """What all its keys begin with."""
    purpose: ClassVar[int] = 0

    def __post_init__(self) -> None:
        head = mix(mix(self.seed ^ _MUL1) + self.purpose * _GOLDEN)  # two mixes: no simple seed is another purpose
        for part in (len(self.lineage), *self.lineage):
            head = mix(head + (part + 1) * _GOLDEN)
        object.__setattr__(self, "head", head)

    def key(self, *counter: int) -> int:
        """Row key for `counter` (index first). Distinct (purpose, lineage, counter) give independent rows."""
        h = self.head
        for part in counter:
            h = mix(h + (part + 1) * _GOLDEN)
        return h


class TargetNoise(Stream):
    """Rows that decide the text: key(index)."""

    purpose = 1


class DraftNoise(Stream):
    """Private to drafters under rules that look at q: key(index, round, rank)."""

    purpose = 2


class AcceptNoise(Stream):
    """Acceptance uniforms and residual draws: key(index, round, rank)."""

    purpose = 3


class EvictionNoise(Stream):
    """Random choices of the cache: key(draw). It decides what is computed again, never a text."""

    purpose = 4


class SimulationNoise(Stream):
    """How much of a draft a simulated target keeps, and how much was drafted: key(request, index, which)."""

    purpose = 5


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _fold(x: Tensor, bits: int) -> Tensor:
    """x ^= x >> bits in place, the shift logical (torch's `>>` on int64 keeps the sign)."""
    shifted = x >> bits
    shifted &= (1 << (64 - bits)) - 1
    return x.bitwise_xor_(shifted)


def _mix(x: Tensor) -> Tensor:
    """`mix` on int64, in place: whole vocabularies pass through here."""
    _fold(x, 30).mul_(_signed(_MUL1))
    _fold(x, 27).mul_(_signed(_MUL2))
    return _fold(x, 31)


def keys_tensor(keys: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Row keys as int64 [N] (two's complement)."""
    return torch.tensor([_signed(k) for k in keys], dtype=torch.int64, device=device)


def counts(keys: Tensor, tokens: Tensor) -> Tensor:
    """The 52 random bits behind each uniform, int64 in [0, 2**52); same arguments as `uniforms`."""
    bits = _mix(keys[:, None] + (tokens + 1) * _signed(_GOLDEN))
    bits >>= 12
    return bits.bitwise_and_((1 << 52) - 1)


def uniforms(keys: Tensor, tokens: Tensor) -> Tensor:
    """float64 in the open interval (0, 1); `keys` int64 [N], `tokens` int64 [K] or [N, K]; result [N, K]."""
    return (counts(keys, tokens).to(torch.float64) + 0.5) * 2.0**-52


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise -log(-log u), float64 [N, K]; same arguments as `uniforms`."""
    return -torch.log(-torch.log(uniforms(keys, tokens)))


def uniform(key: int) -> float:
    """One float64 in (0, 1) from a row key, for acceptance tests."""
    return ((mix(key + _GOLDEN) >> 12) + 0.5) * 2.0**-52
