"""Drafters that may draft, as decisions see them: sizes, limits and groups, without the drafters themselves."""

from paceline.cache.lease import Lease
from paceline.core.component import TARGET
from paceline.core.plan import LAG
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, DrafterFacts, Share
from paceline.plan.cost import StepTimes
from paceline.plan.fixed import room

ASKED = 32
"""Requests per probe: one request in this many keeps its K/V current although no drafter needs it."""
RETRY, RETRY_FEW = 8, 4
"""While a K/V group's drafters are of no use, one request in RETRY steps for each running request, and for RETRY_FEW
more, keeps the group all the same: that is how it is seen when they become useful again."""


class DrafterTable:
    """The drafters of an engine, and the policy that decides which drafter drafts how many tokens."""

    def __init__(self, policy: str, times: StepTimes, cheap_rows: int | None = None, row_cost: float = 0.0) -> None:
        """`policy`: its name in `plan.POLICIES`; the other arguments are those of `plan.Basis`."""
        basis = Basis(times, self.depth, cheap_rows=cheap_rows, row_cost=row_cost)
        self.defaults, self.limits = basis.defaults, basis.limits
        self.entries: dict[str, DrafterFacts] = {}
        self.policy = POLICIES.get(policy)(basis)
        self.verifier_taps: dict[str, tuple[str, ...]] = {}
        """{verifier: hidden states of the target that it reads}"""
        self.shares = False
        """May texts share blocks that one of them has computed?"""
        self.retry = 0
        """Step from which on the next request keeps a group whose drafters are of no use."""

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        """Make a drafter known."""
        self.entries[drafter] = facts
        self.defaults[drafter] = facts.nodes
        if facts.limit is not None:
            self.limits[drafter] = facts.limit
        self.policy.enrol(drafter, facts)

    def chain(self, drafter: str) -> bool:
        """Does it draft chains?"""
        return self.entries[drafter].chain

    def depth(self, request: Request, drafter: str) -> int:
        """How deep a draft may be: 0 of a drafter whose K/V group the request's lease does not keep."""
        group = self.entries[drafter].group if drafter in self.entries else None
        if group is not None and isinstance(request.lease, Lease):
            frontier = request.lease.frontier.get(group)
            if frontier is None:
                return 0
            late = len(request.tokens) - frontier
            if late > 1 and (late > LAG or not self.policy.affords(group, late)) and self.waits(request, group):
                return 0
        return room(request, self.limits.get(drafter))

    def waits(self, request: Request, group: str) -> bool:
        """Is keeping this K/V group up not worth its time now, or not any more? Not where hidden states would have to
        be held meanwhile, nor where others may share the text's blocks, which have to be complete: there a lease has
        the group or not."""
        names = [name for name in request.arms if self.entries[name].group == group]
        if self.shares or not names or any(self.entries[name].taps for name in names):
            return False
        kept = request.lease.frontier.get(group, 0) if isinstance(request.lease, Lease) else 0
        return self.hopeless(request, group, len(request.tokens) - kept)

    def hopeless(self, request: Request, group: str, late: int) -> bool:
        """True if no drafter of this group, which lacks `late` rows of the text, is expected to draft. False for one
        request in ASKED, a probe that shows when this changes, once the planner can afford to read the text."""
        names = [name for name in request.arms if self.entries[name].group == group]
        seen = request.id % ASKED == 0 and self.policy.affords(group, late)
        return not seen and all(self.policy.hopeless(name, request, late) for name in names)

    def groups(self, request: Request) -> tuple[str, ...]:
        """The K/V groups that a request's lease will keep. Keeping one up costs time: while the policy has no use for
        its drafters, most requests do without."""
        groups = {self.entries[name].group for name in request.arms or (request.drafter,)}
        of_use = {self.entries[name].group for name in request.arms if not self.policy.idle(name)}
        if request.arms and groups - of_use - {None}:
            if self.policy.step < self.retry:
                groups = of_use
            else:
                self.retry = self.policy.step + RETRY * (self.policy.count + RETRY_FEW)
        if self.shares and request.arms:
            groups = {group for group in groups if not (group and self.hopeless(request, group, len(request.tokens)))}
        return (TARGET, *sorted(group for group in groups if group))

    def further(self, share: Share) -> int:
        """Rows for what a share's drafter drafts while the pass runs."""
        return self.entries[share.drafter].further(share.nodes, share.depth) if share.drafter in self.entries else 0

    def taps(self, request: Request) -> tuple[str, ...]:
        """Hidden states of the target that are read for this request's rows."""
        kept = request.lease.groups if isinstance(request.lease, Lease) else frozenset()
        names = request.arms or (request.drafter,)
        facts = [self.entries[name] for name in names if name in self.entries]
        mine = {tap for it in facts if it.group is None or it.group in kept for tap in it.taps}
        return tuple(sorted({*mine, *self.verifier_taps.get(request.verifier, ())}))
