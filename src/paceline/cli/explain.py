"""`paceline generate --explain`: why the planner decided as it did."""

from collections.abc import Sequence

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.engine.recorder import Recorder

LONGEST_REPORT = 24
"""Lines of reasons at most; those in the middle are left out."""


class Reasons(Recorder):
    """Reasons of the steps, each with the step at which it began to hold."""

    def __init__(self) -> None:
        self.step = 0
        self.found: list[tuple[int, str]] = []

    def planned(self, now: float, admitted: Sequence[Request], plan: Plan) -> None:
        self.step += 1
        drafting = sorted({item.drafter for item in plan.items if item.nodes})
        free = any(item.request.arms for item in plan.items)
        plainly = "plain: no draft pays" if free else "plain: no room for a draft"
        why = "; ".join(plan.why) or (f"draft {', '.join(drafting)}: named" if drafting else plainly)
        if not self.found or self.found[-1][1] != why:
            self.found.append((self.step, why))

    def lines(self) -> list[str]:
        lines = [f"step {step}: {why}" for step, why in self.found]
        if len(lines) > LONGEST_REPORT:
            half = LONGEST_REPORT // 2
            lines[half:-half] = [f"... {len(lines) - 2 * half} more ..."]
        return lines
