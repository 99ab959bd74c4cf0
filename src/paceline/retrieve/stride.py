"""How many retrievals are speculated before one call verifies them: a number, or the optimal stride (OS3, RaLMSpec).

a      seconds of the model for a step of speculation
b      seconds of a verification
gamma  chance that a speculated retrieval is right
s      steps a round
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median


def verified(gamma: float, s: int) -> float:
    """Expected verified retrievals of a round: (1 - gamma^s) / (1 - gamma)."""
    return float(s) if gamma >= 1 else (1 - gamma**s) / (1 - gamma)


def cost(a: float, b: float, gamma: float, s: int, overlap: bool = False) -> float:
    """Expected seconds of a round. `overlap`: the next round's first step runs while the last one is verified. It is
    kept where all of the round was right, and waited for where it was not."""
    return s * a + (max(a, b) - gamma**s * a if overlap else b)


def value(a: float, b: float, gamma: float, s: int, overlap: bool = False) -> float:
    """Verified retrievals a second."""
    return verified(gamma, s) / max(cost(a, b, gamma, s, overlap), 1e-12)


def optimal(a: float, b: float, gamma: float, most: int, overlap: bool = False) -> tuple[int, bool]:
    """The stride of highest value, and whether to overlap. `overlap`: that may be. Where a retrieval costs nothing the
    answer is (1, False): nothing is speculated."""
    plans = [(s, also) for also in ((False, True) if overlap else (False,)) for s in range(1, most + 1)]
    return max(plans, key=lambda plan: (value(a, b, gamma, *plan), not plan[1], -plan[0]))


def gain(a: float, b: float, gamma: float, s: int) -> float:
    """Predicted speed over a retrieval and a call at a time, each a + b."""
    return (a + b) * verified(gamma, s) / (s * a + b)


@dataclass(slots=True)
class Stride:
    """The stride of one request, from what its own rounds showed."""

    fixed: int | None = None
    """None: optimal."""
    overlap: bool = False
    """The next step may run while a round is verified. With a fixed stride it always does; else where that pays."""
    most: int = 16
    cap: float = 0.6
    """Highest estimate of gamma: a round that fails wastes more than a longer round saves."""
    window: int = 5
    """Rounds that the estimates look back on."""
    rounds: deque[tuple[int, int, float, float]] = field(default_factory=deque)
    """(speculated, right, seconds of a step, seconds of the call) of the last rounds."""

    def learn(self, speculated: int, right: int, step_s: float, call_s: float) -> None:
        """A round: retrievals speculated and right, seconds of one of its steps and of its verification."""
        self.rounds.append((speculated, right, step_s, call_s))
        while len(self.rounds) > self.window:
            self.rounds.popleft()

    @property
    def gamma(self) -> float:
        """Right retrievals over those that were judged: up to a round's first wrong one."""
        right = sum(m for _, m, *_ in self.rounds)
        judged = right + sum(m < s for s, m, *_ in self.rounds)
        return min(right / judged, self.cap) if judged else 0.0

    def next(self) -> tuple[int, bool]:
        """Steps of the next round, and whether one more is written during its call. Medians: one slow call or step
        says nothing of the next."""
        if self.fixed is not None:
            return self.fixed, self.overlap
        if not self.rounds:
            return 1, False
        a, b = (median(each[i] for each in self.rounds) for i in (2, 3))
        return optimal(a, b, self.gamma, self.most, self.overlap)
