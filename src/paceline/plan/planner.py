"""The planner: divides rows and blocks between requests, and names the pre-emptions.

Decoding requests come first, each with its root and its nodes; prompts share what is left, in order. When blocks
run out the nodes go first, then the last request in order gives up its lease (it recomputes later).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.plan import Item, Plan
from paceline.core.request import Request
from paceline.plan import LengthPolicy


@dataclass(frozen=True, slots=True)
class Room:
    """What the cache can still give: `free` blocks, the blocks a request needs for `rows` more rows, and the
    blocks that come free when a request is pre-empted."""

    free: int
    need: Callable[[Request, int], int]
    gain: Callable[[Request], int]


@dataclass(slots=True)
class Planner:
    length: LengthPolicy
    row_budget: int
    """Most rows of one pass: prompt rows and draft nodes alike (D1)."""

    def plan(self, order: Sequence[Request], room: Room) -> Plan:
        """A plan for the requests of `order` (all hold leases), most important first."""
        plan, free, left = Plan(), room.free, self.row_budget
        decoding = [r for r in order if r.pending == 1]
        queue = [*decoding, *(r for r in order if r.pending > 1)]
        rank = {r.id: i for i, r in enumerate(order)}
        while queue and left > 0:
            request = queue.pop(0)
            given = min(request.pending, left)
            nodes, depth = 0, self.length.depth(request)
            if given == request.pending and request.drafter != "none" and depth:
                spare = left - given - sum(r.pending == 1 for r in queue)
                nodes = max(0, min(self.length.nodes(request, len(decoding)), spare))
            if room.need(request, given + nodes) > free:
                nodes = 0
            while room.need(request, given) > free:
                candidates = [r for r in queue if rank[r.id] > rank[request.id]]
                victim = max(candidates, key=lambda r: rank[r.id], default=request)
                plan.preempt.append(victim)
                free += room.gain(victim)
                if victim is request:
                    break
                queue.remove(victim)
            if request in plan.preempt:
                continue
            free -= room.need(request, given + nodes)
            left -= given + nodes
            plan.items.append(Item(request, given, nodes, request.drafter, request.verifier, depth))
        return plan
