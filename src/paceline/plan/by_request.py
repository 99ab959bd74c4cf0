"""`goodput`: requests that name their drafter get it, with a fixed number of nodes; for the others the chooser
decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, Chooses, DrafterFacts, LengthPolicy, Share
from paceline.plan.choose import Goodput
from paceline.plan.fixed import FixedLength, fixed


@dataclass(slots=True)
class ByRequest(Goodput):
    """The chooser, and beside it what `fixed` gives to those who named their drafter."""

    fixed: FixedLength = field(default_factory=lambda: FixedLength({}))
    free_rows: int | None = None
    """What `fixed` takes for cheap rows until they are measured."""
    paths: set[str] = field(default_factory=set)
    """Drafters that draft on while the target's pass runs, as long as that takes unless the user says how much."""

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        Goodput.enrol(self, drafter, facts)
        if facts.ahead == "path" and facts.most is None:
            self.paths.add(drafter)
        if facts.group is not None and not facts.ahead:
            self.fixed.groups[drafter], self.fixed.chains = facts.group, self.chains

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> dict[int, Share]:
        named, free = [r for r in requests if not r.arms], [r for r in requests if r.arms]
        if not named:
            return Goodput.share(self, free, spare, base)
        for name in {r.drafter for r in named if r.drafter in self.paths}:
            self.fixed.lengths[name] = self.times.window(name, base)
        if self.times.measured and self.free_rows is not None:
            self.fixed.measured, self.fixed.cheap_rows = self.times, self.times.cheap_rows(self.free_rows)
        shares = self.fixed.share(named, spare, base)
        if free:
            used = sum(share.nodes for share in shares.values())
            shares.update(Goodput.share(self, free, spare - used, replace(base, rows=base.rows + used)))
        return shares


@POLICIES.register("goodput", Chooses("most expected tokens a second; a fixed number where a drafter is named", True))
def by_request(basis: Basis) -> LengthPolicy:
    """The default."""
    return ByRequest({}, basis.times, basis.limit, fixed=fixed(basis), free_rows=basis.cheap_rows)
