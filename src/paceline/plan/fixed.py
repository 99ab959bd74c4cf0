"""Fixed numbers of nodes: for requests that name their drafter, and as policies of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import Work
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, Chooses, DrafterFacts, LengthPolicy, Share, StepDecision
from paceline.plan.cost import StepTimes


@dataclass(slots=True)
class FixedLength(LengthPolicy):
    """`cheap_rows`: rows that a pass can have at little more than the cost of one (a property of machine and weights;
    None: no limit). The nodes of all requests together stay within it. `times`: the table of step times, if any."""

    limit: Callable[[Request, str], int]
    cheap_rows: int | None = None
    times: StepTimes | None = None
    facts: dict[str, DrafterFacts] = field(default_factory=dict)

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        self.facts[drafter] = facts

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        return StepDecision(self.shares(requests, room, base))

    def shares(self, requests: Sequence[Request], room: int, base: Work) -> dict[int, Share]:
        """What each request gets, one after the other."""
        shares: dict[int, Share] = {}
        for request in requests:
            depth = self.limit(request, request.drafter)
            nodes = min(self.nodes(request, base), room) if depth and request.drafter != "none" else 0
            room -= nodes
            shares[request.id] = Share(request.drafter, nodes, depth)
        return shares

    def nodes(self, request: Request, base: Work) -> int:
        """0 .. MAX_CANDIDATES for `request`, one of those that decode in this step."""
        wish, facts, times = request.params.max_nodes, self.facts.get(request.drafter), self.times
        usual = 0 if facts is None else facts.nodes
        nodes, cheap = usual if wish is None else wish, self.cheap_rows
        if times is not None and wish is None and facts is not None and facts.ahead == "path" and facts.most is None:
            nodes = times.window(request.drafter, base)
        if cheap is not None and (wish is None or base.requests > 1):  # others would wait for what one wishes
            cheap = times.cheap_rows(cheap) if times is not None and times.measured else cheap
            nodes = min(nodes, (cheap - base.requests) // max(base.requests, 1))
        return max(0, min(nodes, MAX_CANDIDATES))


def chains(facts: dict[str, DrafterFacts], group: str | None) -> list[str]:
    """Drafters of chains with this K/V group: a node of theirs is a pass of the group's model."""
    return [name for name, it in facts.items() if group is not None and it.group == group and it.chain and not it.ahead]


@POLICIES.register("fixed", Chooses("a fixed number of nodes for each drafter; it does not choose", arms=False))
def fixed(basis: Basis) -> LengthPolicy:
    return FixedLength(basis.limit, basis.cheap_rows)


class HeadLength(FixedLength):
    """`specdec`: the drafter's own head says where a draft ends (SpecDec++, arXiv 2405.19715). It has the most nodes
    that its card or the request names, however many requests run."""

    def nodes(self, request: Request, base: Work) -> int:
        wish, facts = request.params.max_nodes, self.facts.get(request.drafter)
        return min((facts.nodes if facts else 0) if wish is None else wish, MAX_CANDIDATES)


@POLICIES.register("specdec", Chooses("as far as the drafter's own head says; it does not choose", arms=False))
def specdec(basis: Basis) -> LengthPolicy:
    return HeadLength(basis.limit)
