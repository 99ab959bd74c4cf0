"""What calls cost, in tokens and seconds: of one reply, and added up for a report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OF_MODEL = frozenset({"ok", "retried"})
"""Outcomes whose value the model gave."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply. A server that does not say what it cached or drafted leaves zeros."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    passes: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, Any] | None) -> "Usage":
        """From the `usage` object of a response."""
        given = usage or {}
        details = given.get("prompt_tokens_details") or {}
        spec = given.get("speculation") or {}
        return cls(
            prompt=given.get("prompt_tokens") or 0,
            cached=details.get("cached_tokens") or 0,
            generated=given.get("completion_tokens") or 0,
            drafted=spec.get("drafted") or 0,
            accepted=spec.get("accepted") or 0,
            passes=spec.get("target_passes") or 0,
        )

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.generated + other.generated,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.passes + other.passes,
        )


@dataclass(slots=True)
class UsageTally:
    """Usage over many calls, with their outcomes and deadlines. `seconds` adds up what each call took, so calls that
    ran side by side count each; `wall` is the caller's to set."""

    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    seconds: float = 0.0
    wall: float | None = None
    deadlines_met: int = 0
    deadlines_missed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, usage: Usage, seconds: float) -> None:
        """Count one request."""
        self.usage, self.calls, self.seconds = self.usage + usage, self.calls + 1, self.seconds + seconds

    def deadline(self, met: bool) -> None:
        """Count one deadline."""
        if met:
            self.deadlines_met += 1
        else:
            self.deadlines_missed += 1

    @property
    def answers(self) -> tuple[int, int]:
        """Answers that were the model's, and answers that were asked for. The rest are stand-ins, or nothing."""
        of_model = sum(count for name, count in self.outcomes.items() if name in OF_MODEL)
        return of_model, self.outcomes.total()

    def as_dict(self) -> dict[str, Any]:
        """Figures for a report; a share whose whole is nothing is None."""
        u = self.usage
        deadlines = self.deadlines_met + self.deadlines_missed
        return {
            "calls": self.calls,
            "prompt_tokens": u.prompt,
            "cached_share": share(u.cached, u.prompt),
            "generated_tokens": u.generated,
            "drafted_tokens": u.drafted,
            "accepted_tokens": u.accepted,
            "accepted_share": share(u.accepted, u.drafted),
            "tokens_per_pass": share(u.generated, u.passes),
            "call_seconds": round(self.seconds, 3),
            "wall_seconds": None if self.wall is None else round(self.wall, 3),
            "tokens_per_second": None if not self.wall else round(u.generated / self.wall, 2),
            "deadlines_met": self.deadlines_met,
            "deadlines": deadlines,
            "answers": self.answers[1],
            "answers_of_the_model": self.answers[0],
            "outcomes": dict(sorted(self.outcomes.items())),
        }


def told(usage: Mapping[str, Any]) -> str:
    """The sentence that every program says of its answers."""
    asked, given = usage.get("answers", 0), usage.get("answers_of_the_model", 0)
    return f"{given} of {asked} answers were the model's." if asked else "No answer of a model was needed."


def speculated(usage: Mapping[str, Any]) -> str:
    """One sentence about what speculation saved; empty if the server does not report it."""
    drafted, a_pass = usage.get("drafted_tokens", 0), usage.get("tokens_per_pass")
    if not drafted:
        return "No token was drafted." if a_pass else ""
    kept = f"{usage.get('accepted_share') or 0.0:.0%} of {drafted} drafted tokens were kept"
    return f"{kept}, {a_pass:.2f} tokens a pass of the model." if a_pass else f"{kept}."


def mostly_stand_ins(usage: Mapping[str, Any]) -> bool:
    """Whether more than half of the answers were not the model's: the result says nothing of the model then."""
    return 2 * int(usage.get("answers_of_the_model", 0)) < int(usage.get("answers", 0))


def share(part: int, whole: int) -> float | None:
    """part / whole, or None of nothing."""
    return round(part / whole, 4) if whole else None
