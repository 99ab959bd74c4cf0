"""The search for sub-layers that a text can do without (SWIFT, section 4.1): random sets, and every second time one
that a Gaussian process of the scores so far suggests."""

from dataclasses import dataclass, field

import numpy as np

from paceline.core.program import Part, Program

BAYESIAN = 2
"""Suggestions of which one is the process's (the paper's 25th: a score costs more than a choice)."""
UCB_KAPPA, NOISE = 2.5, 1e-2
"""Weight of the deviation in the upper confidence bound; variance of a score's noise."""
POOL = 512
"""Sets that the bound is computed of."""
MAX_SCORES = 128
"""Latest scores that the process knows."""
GOOD_SCORE, PERFECT, STALE, MAX_SUGGESTIONS = 0.93, 0.995, 60, 1000
"""The search ends where nothing is left to gain, after STALE suggestions without a better one, or after MAX_SUGGESTIONS
suggestions. The paper's ends at GOOD_SCORE; better sets were found in a few dozen suggestions more. It goes on where
the set in use has fallen below GOOD_SCORE."""

Choice = tuple[bool, ...]
"""Flag per sub-layer between the first layer and the last, attention before feed-forward: True if it is left out."""


def skipping(choice: Choice) -> Program:
    """The pass without these sub-layers."""
    parts: tuple[Part, Part] = ("attention", "ffn")
    return Program(skip=frozenset((1 + i // 2, parts[i % 2]) for i, out in enumerate(choice) if out), narrow=True)


def spread(width: int, count: int) -> Choice:
    """`count` of `width` sub-layers: both of every second layer, then evenly."""
    order = [i for i in range(width) if i // 2 % 2 == 0] + [i for i in range(width) if i // 2 % 2]
    order[:] = order[:count] if count >= len(order) // 2 else [order[i * width // 2 // count] for i in range(count)]
    return tuple(i in set(order) for i in range(width))


def upper_bounds(seen: np.ndarray, scores: np.ndarray, points: np.ndarray) -> np.ndarray:
    """mean + UCB_KAPPA deviations at `points` [P, d] of a Gaussian process through `scores` [N] at `seen` [N, d] (0 or
    1), with the kernel s^2 exp(-h / (d / 4)) of their Hamming distance h."""

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = a.astype(np.float64), b.astype(np.float64)
        hamming = a.sum(1)[:, None] + b.sum(1)[None, :] - 2 * (a @ b.T)
        grown: np.ndarray = np.exp(-hamming / (a.shape[1] / 4))
        return grown

    mean, scale = scores.mean(), max(float(scores.std()), 1e-3)
    lower = np.linalg.cholesky(kernel(seen, seen) + NOISE * np.eye(len(seen)))
    across = np.linalg.solve(lower, kernel(seen, points))
    drawn = np.linalg.solve(lower, (scores - mean) / scale)
    deviation = np.sqrt(np.maximum(1 - (across**2).sum(0), 0))
    bounds: np.ndarray = mean + scale * (across.T @ drawn + UCB_KAPPA * deviation)
    return bounds


@dataclass
class Search:
    """Search for one kind of text. `best` is the set in use."""

    best: Choice
    count: int
    """Sub-layers that are left out."""
    seed: int = 0
    score: float = -1.0
    """Recent matchness of `best`; below 0: not measured yet."""
    tried: int = 0
    stale: int = 0
    """Suggestions since the last better one."""
    seen: list[tuple[Choice, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = np.random.default_rng(self.seed)

    @property
    def over(self) -> bool:
        return self.score >= PERFECT or self.stale >= STALE or self.tried >= MAX_SUGGESTIONS

    def suggest(self) -> Choice:
        """The set to score next: the one in use while it has no score."""
        if self.score < 0:
            return self.best
        if (self.tried + 1) % BAYESIAN or len(self.seen) < 4:
            return self._random(1)[0]
        known = {choice for choice, _ in self.seen}
        points = [*self._random(POOL // 2), *(self._swapped() for _ in range(POOL // 2))]
        points = [choice for choice in points if choice not in known] or points
        seen = np.array([choice for choice, _ in self.seen])
        scores = np.array([score for _, score in self.seen])
        return points[int(upper_bounds(seen, scores, np.array(points)).argmax())]

    def register(self, choice: Choice, score: float) -> None:
        """What a set scored; the better one is used from now on."""
        self.seen = [*self.seen[-MAX_SCORES + 1 :], (choice, score)]
        self.tried += 1
        self.stale += 1
        if choice == self.best:
            if score < GOOD_SCORE <= self.score:
                self.stale = 0  # the text has changed
            self.score = score  # of the text as it is now
        elif score > self.score:
            self.best, self.score, self.stale = choice, score, 0

    def _random(self, many: int) -> list[Choice]:
        width = len(self.best)
        picks = [self.stream.permutation(width)[: self.count] for _ in range(many)]
        return [tuple(i in chosen for i in range(width)) for chosen in (set(pick.tolist()) for pick in picks)]

    def _swapped(self) -> Choice:
        """The best one with a few sub-layers exchanged."""
        choice = list(self.best)
        for _ in range(int(self.stream.integers(1, 4))):
            out = [i for i, x in enumerate(choice) if x]
            kept = [i for i, x in enumerate(choice) if not x]
            if out and kept:
                choice[int(self.stream.choice(out))], choice[int(self.stream.choice(kept))] = False, True
        return tuple(choice)
