"""What speculation above tokens did, of one policy: counters that only grow, and the seconds that they come to."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Level:
    """Proposals are steps, paragraphs, branches or retrievals; the policy says which. One thread writes it."""

    proposed: int = 0
    accepted: int = 0
    kept: int = 0
    """Tokens of the cheap model that stand in answers, or those of branches."""
    cheap_s: float = 0.0
    """Seconds that the cheap model wrote, or branches and their outlines; what was thrown away included."""
    judge_s: float = 0.0
    """Seconds of judging."""
    expensive: int = 0
    """Tokens that the expensive model wrote."""
    expensive_s: float = 0.0

    def add(self, other: "Level") -> None:
        """Count another's, too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def shown(self, kind: str) -> dict[str, Any]:
        """As a request's usage carries it; `kind`: of the policy."""
        return {
            "policy": kind, "proposed": self.proposed, "accepted": self.accepted, "kept_tokens": self.kept,
            "saved_seconds": round(self.saved_s, 6),
        }  # fmt: skip

    @property
    def saved_s(self) -> float:
        """Seconds that the kept tokens would have taken the expensive model at its own measured pace, less what
        proposing and judging took. 0 until it has a pace."""
        if not self.expensive:
            return 0.0
        return self.kept * self.expensive_s / self.expensive - self.cheap_s - self.judge_s
