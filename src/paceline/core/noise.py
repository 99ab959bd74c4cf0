"""Counter-based noise (D2): a draw is a pure function of its key, and the stream is a type.

There is no generator with state anywhere. A `Stream` makes a 64-bit *row key* from integers alone;
`sample/noise.py` expands row keys to one value per token with integer arithmetic and takes logarithms in float64, so
every device draws the same numbers. The mixing function is the finaliser of SplitMix64 (Steele et al., 2014).

    target   argmax(log p + Gumbel(seed, lineage, index, token))     plain decoding and `exact`
    draft    what a drafter draws with under a rule that looks at q
    accept   uniforms and residual draws of those rules
"""

from dataclasses import dataclass, field
from typing import ClassVar

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MUL1 = 0xBF58476D1CE4E5B9
MUL2 = 0x94D049BB133111EB


def mix(x: int) -> int:
    """SplitMix64's finaliser on a Python integer: the reference form of `sample.noise`."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * MUL1) & _MASK
    x = ((x ^ (x >> 27)) * MUL2) & _MASK
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
        head = mix(mix(self.seed ^ MUL1) + self.purpose * GOLDEN)  # two mixes: no simple seed is another purpose
        for part in (len(self.lineage), *self.lineage):
            head = mix(head + (part + 1) * GOLDEN)
        object.__setattr__(self, "head", head)

    def key(self, *counter: int) -> int:
        """Row key for `counter` (index first). Distinct (purpose, lineage, counter) give independent rows."""
        h = self.head
        for part in counter:
            h = mix(h + (part + 1) * GOLDEN)
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


def signed(x: int) -> int:
    """A 64-bit key in two's complement."""
    return x - (1 << 64) if x >> 63 else x


def uniform(key: int) -> float:
    """One float64 in (0, 1) from a row key, for acceptance tests."""
    return ((mix(key + GOLDEN) >> 12) + 0.5) * 2.0**-52
