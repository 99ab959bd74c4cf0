"""Who may draft, as decisions see it: sizes, limits and groups, without the drafters themselves."""

from dataclasses import dataclass, field

from paceline.cache.lease import TARGET, Lease
from paceline.core.request import Request
from paceline.plan.choose import Arm, Goodput
from paceline.plan.cost import StepTimes
from paceline.plan.fixed import FixedLength

RETRY, FEW = 8, 4
"""A request gets a K/V group though its drafters are of no use, so that it is seen when that changes, after RETRY steps
for each of the requests at a time and for FEW more: of many one is enough."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One drafter."""

    nodes: int
    """Drafted a step, unless a request or the chooser says otherwise."""
    chain: bool
    group: str | None = None
    """Its own K/V group, if it has one."""
    limit: int | None = None
    """Longest text that it can draft for."""
    thrifty: bool = False
    """Does it end a draft where more does not pay?"""
    most: int | None = None
    """Most nodes that the chooser may give it; None: as many as pay."""
    sure: str | None = None
    """Of a merged one: the drafter of chains that is always asked."""
    runs: bool = False
    """Can it draft in steps of several passes?"""


@dataclass(slots=True)
class Roster:
    fixed: FixedLength
    chooser: Goodput
    entries: dict[str, Entry] = field(default_factory=dict)
    retry: int = 0
    """Step from which on the next request gets such a group."""

    @classmethod
    def of(cls, times: StepTimes, free_rows: int | None, row: float) -> "Roster":
        fixed = FixedLength({}, {}, free_rows, row)
        roster = cls(fixed, Goodput({}, times, fixed.depth))
        roster.chooser.limit = roster.depth
        return roster

    def depth(self, request: Request, drafter: str) -> int:
        """How deep a draft may be: 0 of a drafter whose K/V group the request's lease does not keep."""
        group = self.entries[drafter].group if drafter in self.entries else None
        lacks = group is not None and isinstance(request.lease, Lease) and group not in request.lease.groups
        return 0 if lacks else self.fixed.depth(request, drafter)

    def enrol(self, drafter: str, entry: Entry) -> None:
        """Make a drafter known."""
        self.entries[drafter] = entry
        self.fixed.defaults[drafter] = entry.nodes
        if entry.limit is not None:
            self.fixed.limits[drafter] = entry.limit
        e = entry
        self.chooser.arms[drafter] = Arm.of(drafter, e.nodes, e.chain, e.thrifty, e.most, e.sure, e.runs)

    def groups(self, request: Request) -> tuple[str, ...]:
        """The K/V groups that a request's lease will keep. Keeping one up costs time: while the chooser has no use for
        its drafters, most requests do without."""
        groups = {self.entries[name].group for name in request.arms or (request.drafter,)}
        of_use = {self.entries[name].group for name in request.arms if not self.chooser.idle(name)}
        if request.arms and groups - of_use - {None}:
            if self.chooser.step < self.retry:
                groups = of_use
            else:
                self.retry = self.chooser.step + RETRY * (self.chooser.count + FEW)
        return (TARGET, *sorted(group for group in groups if group))
