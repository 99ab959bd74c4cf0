"""A fixed number of nodes per drafter, shared out when many requests run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.plan import MinChance, Work
from paceline.core.request import Request
from paceline.plan import POLICIES, Basis, Chooses, LengthPolicy, Share
from paceline.plan.allocate import MOST
from paceline.plan.cost import StepTimes

TOKENS, ROWS = 2.5, 3
"""Tokens and rows that a request has in a usual step."""
USUAL = 12
"""Nodes of a request, or those of cheap rows, over which the price of a row is averaged: products make a pass a
staircase, and the last step of it says little."""


@dataclass(slots=True)
class FixedLength(LengthPolicy):
    """`defaults` {drafter: nodes}; `limits` {drafter: longest text it can draft for}.

    `cheap_rows`: rows that a pass can have at little more than the cost of one (a property of machine and weights;
    None: no limit). The nodes of all requests together stay within it, and a request keeps at least `least`.
    `row_cost`: what a row beyond the first costs, in passes of one row (0: too little to tell drafters), where no
    table was `measured`.
    """

    defaults: dict[str, int]
    limits: dict[str, int] = field(default_factory=dict)
    cheap_rows: int | None = None
    row_cost: float = 0.0
    least: int = 0
    limit: Callable[[Request, str], int] | None = None
    """How deep a draft of this drafter may be; None: as `room` says."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Nodes of the drafters whose draft is to take as long as the target's pass, as measured."""
    measured: StepTimes | None = None
    """What passes cost on this machine, where that was timed and the user has not set the numbers of nodes."""
    chains: dict[str, list[str]] = field(default_factory=dict)
    """{K/V group: who drafts chains with it: a node of theirs is a pass of the group's model}"""
    groups: dict[str, str] = field(default_factory=dict)
    """{drafter: its K/V group}, of those that draft before the pass."""
    times: StepTimes | None = None
    step: int = 0
    patience: float = 0.0

    def share(self, requests: Sequence[Request], spare: int, base: Work) -> dict[int, Share]:
        shares: dict[int, Share] = {}
        worth = {name: self.worth(base, name) for name in {r.drafter for r in requests}}
        for request in requests:
            depth = self.depth(request, request.drafter)
            nodes = min(self.nodes(request, base.requests), spare) if depth and request.drafter != "none" else 0
            spare -= nodes
            told = worth[request.drafter] if request.params.max_nodes is None else None
            shares[request.id] = Share(request.drafter, nodes, depth, told)
        return shares

    def nodes(self, request: Request, running: int) -> int:
        """0 .. MAX_CANDIDATES for `request`, one of `running` that decode in this step."""
        wish = request.params.max_nodes
        usual = self.lengths.get(request.drafter, self.defaults.get(request.drafter, 0))
        nodes = usual if wish is None else wish
        if self.cheap_rows is not None and (wish is None or running > 1):  # what one wishes others would wait for
            nodes = min(nodes, max(self.least, (self.cheap_rows - running) // max(running, 1)))
        return max(0, min(nodes, MAX_CANDIDATES))

    def worth(self, base: Work, drafter: str) -> MinChance | None:
        """What a node has to bring beside these requests: its row's price in the tokens of a usual step, and that of a
        pass of the draft model."""
        n, row, level = base.requests, self.row(base), self.level(base, drafter)
        if not row and not level:
            return None
        pace = TOKENS / (1 + (ROWS - 1) * (row * n + level))
        return MinChance(min(MOST, row * n * pace), min(MOST, level * pace))

    def row(self, base: Work) -> float:
        """What a row more costs, in passes of one row for each request."""
        n = base.requests
        if self.measured is None:
            return self.row_cost / (1 + self.row_cost * (n - 1))
        nodes = USUAL if self.cheap_rows is None else max(1, min(USUAL, self.cheap_rows // n - 1))
        more = self.measured.of_target(one_each(base).more(n * nodes)) / self.measured.of_target(one_each(base))
        return max(0.0, more - 1) / (n * nodes)

    def level(self, base: Work, drafter: str) -> float:
        """What a pass of the draft model for all of them costs, in the same unit; 0 where there is none, or none
        was measured."""
        if self.measured is None:
            return 0.0
        chains = self.chains.get(self.groups.get(drafter, ""), ())
        return self.measured.of_level(chains) / self.measured.of_target(one_each(base))

    def depth(self, request: Request, drafter: str) -> int:
        return self.limit(request, drafter) if self.limit else room(request, self.limits.get(drafter))


def one_each(base: Work) -> Work:
    """A row for each of its requests."""
    return Work(base.requests, base.requests, base.context, base.context, base.requests)


def room(request: Request, limit: int | None) -> int:
    """How deep a draft may be: no accepted path may run beyond the request's end, nor the text beyond `limit` tokens,
    those that its drafter can read."""
    left = (1 << 62 if limit is None else limit) - len(request.tokens)
    return max(0, min(request.left - 1, left, MAX_CANDIDATES))


def fixed(basis: Basis) -> FixedLength:
    """The policy of requests that name their drafter."""
    b = basis
    return FixedLength(b.defaults, b.limits, b.cheap_rows, b.row_cost, limit=b.limit)


@POLICIES.register("fixed", Chooses("a fixed number of nodes for each drafter; it does not choose", arms=False))
def alone(basis: Basis) -> LengthPolicy:
    """That policy for all requests."""
    return fixed(basis)
