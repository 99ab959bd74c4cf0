"""`Bet`: what speculation may cost and bring, in seconds, and why it was taken."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Bound(NamedTuple):
    """An estimate and how far it may be off."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class Bet:
    """One drafter's part of a step, for some requests."""

    what: Literal["draft", "try"]
    drafter: str
    nodes: int
    """Nodes of one request, on average."""
    requests: int
    cost: float
    """Seconds of the step."""
    tokens: Bound
    """Drafted tokens of one request that are kept."""
    plain: float
    """Seconds that a plain step takes."""
    measured: bool = True
    """Has any step been timed? Else the seconds have the right proportions at best."""

    @property
    def why(self) -> str:
        """In words, as `generate --explain` prints it."""
        many = f" for {self.requests}" if self.requests > 1 else ""
        low, mean, high = self.tokens
        of = f"{self.what} {self.drafter} x{self.nodes}{many}: +{mean:.1f} tokens ({low:.1f} to {high:.1f})"
        guess = "" if self.measured else " (nothing is timed yet)"
        return f"{of} in {1e3 * self.cost:.1f} ms; plain {1e3 * self.plain:.1f} ms{guess}"

    @property
    def why_paid(self) -> str:
        """In words, with what it costs if it does not pay."""
        more = self.cost / (1.0 + self.tokens.mean) / self.plain - 1.0
        return f"{self.why}; it takes {more:.0%} more time for each token" if more > 0.0 else self.why
