"""A fixed number of nodes per drafter, shared out when many requests run."""

from dataclasses import dataclass, field

from paceline.core.forest import MAX_CANDIDATES
from paceline.core.request import Request


@dataclass(slots=True)
class FixedLength:
    """`defaults` {drafter: nodes}; `limits` {drafter: longest text it can draft for}.

    `free_rows`: rows that a pass can have at little more than the cost of one (a property of machine and weights;
    None: no limit). The nodes of all requests together stay within it, and a request keeps at least `least`.
    """

    defaults: dict[str, int]
    limits: dict[str, int] = field(default_factory=dict)
    free_rows: int | None = None
    least: int = 0

    def nodes(self, request: Request, running: int) -> int:
        wish = request.params.max_nodes
        nodes = self.defaults.get(request.drafter, 0) if wish is None else wish
        if self.free_rows is not None and wish is None:
            nodes = min(nodes, max(self.least, (self.free_rows - running) // max(running, 1)))
        return max(0, min(nodes, MAX_CANDIDATES))

    def depth(self, request: Request) -> int:
        room = self.limits.get(request.drafter, 1 << 62) - len(request.tokens)
        return max(0, min(request.left - 1, room, MAX_CANDIDATES))
