"""Who may draft, as decisions see it: sizes, limits and groups, without the drafters themselves."""

from dataclasses import dataclass, field

from paceline.cache.lease import TARGET
from paceline.core.request import Request
from paceline.plan.choose import Arm, Goodput
from paceline.plan.cost import StepTimes
from paceline.plan.fixed import FixedLength


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


@dataclass(slots=True)
class Roster:
    fixed: FixedLength
    chooser: Goodput
    entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, times: StepTimes, free_rows: int | None) -> "Roster":
        fixed = FixedLength({}, {}, free_rows)
        return cls(fixed, Goodput({}, times, fixed.depth))

    def enrol(self, drafter: str, entry: Entry) -> None:
        """Make a drafter known."""
        self.entries[drafter] = entry
        self.fixed.defaults[drafter] = entry.nodes
        if entry.limit is not None:
            self.fixed.limits[drafter] = entry.limit
        self.chooser.arms[drafter] = Arm.of(drafter, entry.nodes, entry.chain, entry.thrifty, entry.most)

    def groups(self, request: Request) -> tuple[str, ...]:
        """The K/V groups that a request's lease keeps."""
        groups = {self.entries[name].group for name in request.arms or (request.drafter,)}
        return (TARGET, *sorted(group for group in groups if group))
