"""How many retrievals are speculated before one call verifies them: a number, or the optimal stride (OS3, RaLMSpec).

a      seconds of the model for a step of speculation
b      seconds of a verification
gamma  chance that a speculated retrieval is right
s      steps a round
"""

from collections import deque
from dataclasses import dataclass, field


def verified(gamma: float, s: int) -> float:
    """Expected verified retrievals of a round: (1 - gamma^s) / (1 - gamma)."""
    return float(s) if gamma >= 1 else (1 - gamma**s) / (1 - gamma)


def cost(a: float, b: float, gamma: float, s: int, overlap: bool = False) -> float:
    """Expected seconds of a round. `overlap`: the next round's first step runs while the last one is verified, and is
    kept where all of it was right."""
    plain = s * a + b
    if not overlap:
        return plain
    right = gamma**s
    return right * ((s - 1) * a + max(a, b)) + (1 - right) * plain


def value(a: float, b: float, gamma: float, s: int, overlap: bool = False) -> float:
    """Verified retrievals a second."""
    return verified(gamma, s) / max(cost(a, b, gamma, s, overlap), 1e-12)


def optimal(a: float, b: float, gamma: float, most: int, overlap: bool = False) -> int:
    """The stride of highest value: raised while the next is not worse."""
    s = 1
    while s < most and value(a, b, gamma, s + 1, overlap) >= value(a, b, gamma, s, overlap):
        s += 1
    return s


def gain(a: float, b: float, gamma: float, s: int) -> float:
    """Predicted speed over a retrieval and a call at a time, each a + b."""
    return (a + b) * verified(gamma, s) / (s * a + b)


@dataclass(slots=True)
class Stride:
    """The stride of one request, from what its own rounds showed."""

    fixed: int | None = None
    """None: optimal."""
    overlap: bool = False
    most: int = 16
    cap: float = 0.6
    """Highest estimate of gamma: a round that fails wastes more than a longer round saves."""
    window: int = 5
    """Rounds that the estimate looks back on."""
    rounds: deque[tuple[int, int]] = field(default_factory=deque)
    """(speculated, right) of the last rounds."""
    a: float = 0.0
    b: float = 0.0

    def learn(self, speculated: int, right: int, step_s: float, call_s: float) -> None:
        """A round: retrievals speculated and right, seconds of one of its steps and of its verification."""
        self.rounds.append((speculated, right))
        while len(self.rounds) > self.window:
            self.rounds.popleft()
        self.a, self.b = step_s, call_s

    @property
    def gamma(self) -> float:
        """Right retrievals over those that were judged: up to a round's first wrong one."""
        right = sum(m for _, m in self.rounds)
        judged = right + sum(m < s for s, m in self.rounds)
        return min(right / judged, self.cap) if judged else 0.0

    def next(self) -> int:
        if self.fixed is not None:
            return self.fixed
        return optimal(self.a, self.b, self.gamma, self.most, self.overlap) if self.rounds else 1
