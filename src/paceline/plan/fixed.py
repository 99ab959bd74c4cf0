"""Fixed numbers of nodes: for requests that name their drafter, and as policies of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.component import DRAFT
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import MinChance, Work
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, Chooses, DrafterFacts, LengthPolicy, Share, StepDecision
from paceline.plan.cost import StepTimes

MOST = 0.6
"""Most that a row, or a level, has to bring."""
TOKENS, ROWS = 2.5, 3
"""Tokens and rows of a request in a usual step."""
USUAL = 12
"""Nodes over which the price of a row is averaged: a pass is a staircase, and its last step says little."""


@dataclass(slots=True)
class FixedLength(LengthPolicy):
    """`cheap_rows`: rows that a pass can have at little more than the cost of one (a property of machine and weights;
    None: no limit). The nodes of all requests together stay within it. `row_cost`: what a row beyond the first costs,
    in passes of one row (0: too little to tell drafters), where no table was measured."""

    limit: Callable[[Request, str], int]
    cheap_rows: int | None = None
    row_cost: float = 0.0
    level_cost: float = 0.0
    """Cost of a pass of the draft model, in passes of one row, where no table was measured: its share of the bytes."""
    times: StepTimes | None = None
    """The table that prices come from, once it was measured; None: `row_cost` alone counts."""
    facts: dict[str, DrafterFacts] = field(default_factory=dict)

    def enrol(self, drafter: str, facts: DrafterFacts) -> None:
        self.facts[drafter] = facts

    def decide(self, requests: Sequence[Request], room: int, base: Work) -> StepDecision:
        return StepDecision(self.shares(requests, room, base))

    def shares(self, requests: Sequence[Request], room: int, base: Work) -> dict[int, Share]:
        """What each request gets, one after the other."""
        shares: dict[int, Share] = {}
        worth = {name: self.worth(base, name) for name in {r.drafter for r in requests}}
        for request in requests:
            depth = self.limit(request, request.drafter)
            nodes = min(self.nodes(request, base), room) if depth and request.drafter != "none" else 0
            room -= nodes
            price = worth[request.drafter] if request.params.max_nodes is None else None
            shares[request.id] = Share(request.drafter, nodes, depth, price)
        return shares

    @property
    def measured(self) -> StepTimes | None:
        """The table of step times, if it was measured and `cheap_rows` is given."""
        known = self.times is not None and self.times.measured and self.cheap_rows is not None
        return self.times if known else None

    def nodes(self, request: Request, base: Work) -> int:
        """0 .. MAX_CANDIDATES for `request`, one of those that decode in this step."""
        wish, facts, table = request.params.max_nodes, self.facts.get(request.drafter), self.measured
        usual = 0 if facts is None else facts.nodes
        nodes, cheap = usual if wish is None else wish, self.cheap_rows
        if (
            facts is not None
            and wish is None
            and facts.ahead == "path"
            and facts.most is None
            and self.times is not None
        ):
            nodes = self.times.window(request.drafter, base)
        if cheap is not None and (wish is None or base.requests > 1):  # others would wait for what one wishes
            cheap = cheap if table is None else table.cheap_rows(cheap)
            nodes = min(nodes, (cheap - base.requests) // max(base.requests, 1))
        return max(0, min(nodes, MAX_CANDIDATES))

    def worth(self, base: Work, drafter: str) -> MinChance | None:
        """What a node has to bring next to these requests: its row's price in the tokens of a usual step, and that of a
        pass of the draft model."""
        n, row, level = base.requests, self.row(base), self.level(base, drafter)
        if not row and not level:
            return None
        pace = TOKENS / (1 + (ROWS - 1) * (row * n + level))
        return MinChance(min(MOST, row * n * pace), min(MOST, level * pace), pace)

    def row(self, base: Work) -> float:
        """What a row more costs, in passes of one row for each request."""
        n, table = base.requests, self.measured
        if table is None:
            return self.row_cost / (1 + self.row_cost * (n - 1))
        nodes = max(1, min(USUAL, table.cheap_rows(self.cheap_rows or USUAL) // n - 1))
        more = table.of_target(one_each(base).more(n * nodes)) / table.of_target(one_each(base))
        return max(0.0, more - 1) / (n * nodes)

    def level(self, base: Work, drafter: str) -> float:
        """What a pass of the draft model for all of them costs, in the same unit; 0 where there is none."""
        facts, table = self.facts.get(drafter), self.measured
        if facts is None or facts.ahead:
            return 0.0
        if table is None:
            drafts = facts.group == DRAFT and bool(chains(self.facts, DRAFT))
            return self.level_cost / (1 + self.row_cost * (base.requests - 1)) if drafts else 0.0
        return table.of_level(chains(self.facts, facts.group)) / table.of_target(one_each(base))


def chains(facts: dict[str, DrafterFacts], group: str | None) -> list[str]:
    """Drafters of chains with this K/V group: a node of theirs is a pass of the group's model."""
    return [name for name, it in facts.items() if group is not None and it.group == group and it.chain and not it.ahead]


def one_each(base: Work) -> Work:
    """A row for each of its requests."""
    return Work(base.requests, base.requests, base.context, base.context, base.requests)


@POLICIES.register("fixed", Chooses("a fixed number of nodes for each drafter; it does not choose", arms=False))
def fixed(basis: Basis) -> LengthPolicy:
    return FixedLength(basis.limit, basis.cheap_rows, basis.row_cost, basis.level_cost)


class HeadLength(FixedLength):
    """`specdec`: the drafter's own head says where a draft ends (SpecDec++, arXiv 2405.19715). It has the most nodes
    that its card or the request names, however many requests run, and no price of a node."""

    def nodes(self, request: Request, base: Work) -> int:
        wish, facts = request.params.max_nodes, self.facts.get(request.drafter)
        return min((facts.nodes if facts else 0) if wish is None else wish, MAX_CANDIDATES)

    def worth(self, base: Work, drafter: str) -> MinChance | None:
        return None


@POLICIES.register("specdec", Chooses("as far as the drafter's own head says; it does not choose", arms=False))
def specdec(basis: Basis) -> LengthPolicy:
    return HeadLength(basis.limit)
