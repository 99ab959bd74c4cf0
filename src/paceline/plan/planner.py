"""The planner: divides rows and blocks between requests, and names the pre-emptions.

Decoding requests come first, each with its root and its nodes; prompts share what is left, in order. When blocks
run out the nodes go first, then the last request in order gives up its lease (it recomputes later).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.core.plan import Item, Plan, Work
from paceline.core.request import Request
from paceline.plan import LengthPolicy

CHUNK = 16
"""Rows that nodes leave to waiting prompts, as far as there are so many: prompts never starve."""


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

    def plan(self, order: Sequence[Request], room: Room, rows: int | None = None) -> Plan:
        """A plan for the requests of `order` (all hold leases), most important first, of at most `rows`."""
        left = self.row_budget if rows is None else min(rows, self.row_budget)
        decoding = [r for r in order if r.pending == 1][:left]
        prompts = [r for r in order if r.pending > 1]
        left -= len(decoding)
        filling = min(left, sum(r.pending for r in prompts))
        base = Work.of((1, r.length, 1) for r in decoding)
        shares = dict(self.length.share(decoding, left - min(CHUNK, filling), replace(base, rows=base.rows + filling)))
        left -= sum(share.nodes for share in shares.values())
        given = {r.id: 1 for r in decoding}
        for request in prompts:
            given[request.id] = min(request.pending, left)
            left -= given[request.id]
        ending = [r for r in prompts if given[r.id] == r.pending]
        shares.update(
            self.length.share(ending, left, Work.of((given[r.id], r.length, 1) for r in [*decoding, *ending]))
        )
        items = []
        for request in [*decoding, *prompts]:
            if given[request.id]:
                share = shares.get(request.id)
                nodes, depth, worth = (share.nodes, share.depth, share.worth) if share else (0, 0, 0.0)
                drafter = share.drafter if share else "none" if request.arms else request.drafter
                items.append(Item(request, given[request.id], nodes, drafter, request.verifier, depth, worth))
        return fit(items, order, room)


def fit(items: Sequence[Item], order: Sequence[Request], room: Room) -> Plan:
    """What of it the cache has blocks for: every given row, or the last in order go; then of the nodes those that
    fit."""
    plan, free, placed = Plan(), room.free, set[int]()
    rank = {r.id: i for i, r in enumerate(order)}
    for item in items:
        request = item.request
        if request in plan.preempt:
            continue
        placed.add(request.id)
        need = room.need(request, item.given)
        while need > free and request not in plan.preempt:
            later = [r for r in order[rank[request.id] + 1 :] if r.id not in placed and r not in plan.preempt]
            victim = later[-1] if later else request
            plan.preempt.append(victim)
            free += room.gain(victim)
        if request not in plan.preempt:
            free -= need
            plan.items.append(item)
    for i, item in enumerate(plan.items):
        held, nodes = room.need(item.request, item.given), item.nodes
        while nodes and room.need(item.request, item.given + nodes) - held > free:
            nodes -= 1
        free -= room.need(item.request, item.given + nodes) - held
        plan.items[i] = replace(item, nodes=nodes)
    return plan
