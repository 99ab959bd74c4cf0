"""Drafters that may draft, as decisions see them: sizes, limits and K/V groups, without the drafters themselves."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.cache.lease import Lease
from paceline.core.component import TARGET
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, DrafterFacts, Share, StepDecision
from paceline.plan.cost import StepTimes
from paceline.plan.fixed import chains


class DrafterTable:
    """The drafters of an engine, the policy that decides who drafts how much, and its latest decision."""

    def __init__(
        self, policy: str, times: StepTimes, *, cheap_rows: int | None = None,
        patience: float = 0.0, known: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`policy`: its name in `plan.POLICIES`; the other arguments are those of `plan.Basis`."""
        self.times = times
        self.entries: dict[str, DrafterFacts] = {}
        self.defaults: dict[str, int] = {}
        """{drafter: nodes of a step}"""
        self._live: set[int] = set()
        """Requests that have been admitted and have not ended."""
        self.policy = POLICIES.get(policy)(
            Basis(times, self.depth, cheap_rows, patience, known, lambda: len(self._live))
        )
        self.decision = StepDecision()
        self._nodes: dict[int, int] = {}
        """{request: nodes that it was given last}"""
        self._usual = 0
        self.verifier_taps: dict[str, tuple[str, ...]] = {}
        """{verifier: hidden states of the target that it reads}"""
        self.shares = False
        """May texts share blocks that one of them has computed?"""

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        """Make a drafter known."""
        self.entries[drafter], self.defaults[drafter] = facts, facts.nodes
        self.policy.enrol(drafter, facts)

    def failed(self, drafter: str) -> None:
        """A drafter raised."""
        if drafter in self.entries:
            self.enrol(drafter, replace(self.entries[drafter], failures=self.entries[drafter].failures + 1))

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        """Decide a step."""
        self.decision = self.policy.decide(requests, room, base)
        given = {i: share.nodes for i, share in self.decision.shares.items()}
        self._nodes |= given
        self._usual = Counter(given.values()).most_common(1)[0][0] if given else 0
        return self.decision

    def expects(self, request: Request) -> int:
        """Nodes that a decoding request is likely to get next: as many as last; of a new one, as many as most got."""
        return self._nodes.get(request.id, self._usual)

    def drop(self, request: Request) -> None:
        """A request has ended."""
        self._nodes.pop(request.id, None)
        self._live.discard(request.id)
        self.policy.drop(request)

    def chain(self, drafter: str) -> bool:
        """Does it draft chains?"""
        return self.entries[drafter].chain

    def depth(self, request: Request, drafter: str) -> int:
        """How deep a draft may be: no accepted path may run beyond the request's end, nor the text beyond what the
        drafter can read. 0 of a drafter whose K/V is not there, and not worth reading."""
        facts = self.entries.get(drafter)
        if facts is not None and facts.group is not None and isinstance(request.lease, Lease):
            frontier = request.lease.frontier.get(facts.group)
            if frontier is None or (len(request.tokens) - frontier > 1 and self.waits(request, facts.group)):
                return 0
        limit = facts.limit if facts is not None and facts.limit is not None else 1 << 62
        return max(0, min(request.left - 1, limit - len(request.tokens), MAX_CANDIDATES))

    def waits(self, request: Request, group: str) -> bool:
        """Is keeping this K/V group up not worth its time now? Not where hidden states would have to be held meanwhile,
        nor where others may share the text's blocks, which have to be complete: there a lease has the group or not."""
        return not self.shares and not self._reads(request, group)

    def _reads(self, request: Request, group: str) -> bool:
        names = [name for name in request.arms if self.entries[name].group == group]
        if not names or any(self.entries[name].taps for name in names):
            return True
        kept = request.lease.frontier.get(group, 0) if isinstance(request.lease, Lease) else 0
        seconds = self.times.of_reading(chains(self.entries, group), max(1, len(request.tokens) - kept))
        hope = min(map(self.times.hope, chains(self.entries, group)), default=1.0)
        return self.decision.reads(request.id, group, seconds, request.left, hope)

    def groups(self, request: Request) -> tuple[str, ...]:
        """The K/V groups that a request's lease will keep."""
        self._live.add(request.id)
        groups = {self.entries[name].group for name in request.arms or (request.drafter,)} - {None}
        kept = (group for group in groups if group and (not self.shares or self._reads(request, group)))
        return (TARGET, *sorted(kept))

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
