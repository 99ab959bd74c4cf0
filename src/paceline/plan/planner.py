"""The planner: divides rows and blocks between requests, and names the pre-emptions.

Decoding requests come first, each with its root and its nodes; prompts share what is left, in order. When blocks
run out the nodes go first, then the last request in order gives up its lease (it recomputes later).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.core.plan import PROMPT_RESERVE_ROWS, TOLD_ROWS, Item, Plan, Work, straight
from paceline.core.request import Request
from paceline.plan import NONE, Share, StepDecision


@dataclass(frozen=True, slots=True)
class Room:
    """What the cache can still give: `free` blocks, the blocks a request needs for `rows` more rows, and the
    blocks that come free when a request is pre-empted."""

    free: int
    need: Callable[[Request, int], int]
    gain: Callable[[Request], int]


def no_taps(request: Request) -> tuple[str, ...]:
    """Nobody reads hidden states."""
    return ()


def alone(share: Share) -> int:
    """Nobody drafts while the pass runs."""
    return 0


@dataclass(slots=True)
class Planner:
    decide: Callable[[Sequence[Request], int, Work], StepDecision]
    """As of `LengthPolicy`."""
    row_budget: int
    """Most rows of one pass: prompt rows and draft nodes alike (D1)."""
    taps: Callable[[Request], tuple[str, ...]] = no_taps
    """Hidden states of the target that somebody reads of a request's rows."""
    draft_rows: int | None = None
    """Most drafted nodes of a step; None: as many as it has rows."""
    further: Callable[[Share], int] = alone
    """Rows for what a share's drafter drafts while the pass runs."""

    def plan(
        self, turn: Sequence[Request], room: Room, rows: int | None = None, order: Sequence[Request] | None = None
    ) -> Plan:
        """A plan for the requests of `turn`, most important first, of at most `rows`. `order`: all that hold leases, of
        whom the last may be pre-empted; None: those of `turn`. Rows that wait between two layers go on, all of them."""
        inside = [r for r in turn if r.layer]
        left = (self.row_budget if rows is None else min(rows, self.row_budget)) - sum(r.held for r in inside)
        decoding = [r for r in turn if r.pending == 1 and r.closing is None and not r.layer][:left]
        prompts = [r for r in turn if (r.pending > 1 or r.closing is not None) and not r.layer]
        left -= len(decoding)
        filling = min(left, sum(r.pending for r in prompts))
        given = {r.id: 1 for r in decoding} | {r.id: r.held for r in inside}
        ending, free, told = [], left, TOLD_ROWS
        for request in prompts:  # those whose prompts end in this step if nobody drafts
            given[request.id] = min(request.ready, free)
            if request.params.prompt_logprobs is not None:
                given[request.id] = min(given[request.id], told)
                told -= given[request.id]
            free -= given[request.id]
            if given[request.id] == request.pending and request.closing is None:
                ending.append(request)
        base = Work.of((given[r.id], r.length, 1) for r in [*decoding, *ending])
        if others := left - free - sum(given[r.id] for r in ending) + sum(r.held for r in inside):
            base = replace(base, rows=base.rows + others)
        nodes = left - min(PROMPT_RESERVE_ROWS, filling)
        nodes = nodes if self.draft_rows is None else min(nodes, self.draft_rows)
        decision = self.decide([*decoding, *ending], nodes, base)
        shares = dict(decision.shares)
        left -= sum(shares[r.id].nodes for r in decoding)
        for request in prompts:
            scored = request.params.prompt_logprobs is not None
            given[request.id] = min(given[request.id] if scored else request.ready, left)
            left -= given[request.id]
        for request in ending:
            fits = given[request.id] == request.pending and shares[request.id].nodes <= left
            left -= shares[request.id].nodes if fits else 0
            if not fits:
                del shares[request.id]
        items = []
        for request in [*decoding, *inside, *prompts]:
            if rows_of := given[request.id]:
                share = shares.get(request.id) or Share(NONE if request.arms else request.drafter, 0, 0)
                item = Item(request, rows_of, share.nodes, share.drafter, request.verifier, *share[2:])
                further = 0 if request.layer else self.further(share)
                items.append(item._replace(taps=self.taps(request), further=further, first=request.layer))
        kept, preempt = fit(items, turn if order is None else order, room)
        passes = 1 if prompts or inside else self._passes(kept, decision.passes, room)
        return Plan(kept, preempt, passes, decision.why)

    def _passes(self, items: Sequence[Item], most: int, room: Room) -> int:
        """Passes of the target in this step: no more than any request has tokens left, or the cache has room for; one
        where a drafter is only to look on."""
        if not straight(item.request for item in items) or any(not it.nodes and it.drafter != NONE for it in items):
            return 1
        most = min([most, *(item.request.left for item in items)])
        while most > 1:
            if sum(room.need(item.request, 1 + item.reserved(most)) for item in items) <= room.free:
                return most
            most -= 1
        return 1


def fit(items: Sequence[Item], order: Sequence[Request], room: Room) -> tuple[list[Item], list[Request]]:
    """The items that the cache has blocks for, and who gives up the lease for them. Given rows come first, for the
    most important of `order` first: where blocks run out, the last of all that hold some gives them up. Then as many
    nodes as fit, and as many rows for what is drafted meanwhile."""
    preempt, free, queue = list[Request](), room.free, deque(order)
    given = {item.request.id: item.given for item in items}
    while queue:
        request = queue.popleft()
        need = room.need(request, given[request.id]) if request.id in given else 0
        while need > free:
            victim = queue.pop() if queue else request
            preempt.append(victim)
            free += room.gain(victim)
            if victim is request:
                break
        else:
            free -= need
    kept = [item for item in items if item.request not in preempt]
    for i, item in enumerate(kept):
        if not (nodes := item.nodes):
            continue
        held = room.need(item.request, item.given)
        while (more := room.need(item.request, item.given + nodes) - held) > free:
            nodes -= 1
        free -= more
        further, held = item.further if nodes == item.nodes else 0, held + more
        while (more := room.need(item.request, item.given + nodes + further) - held) > free:
            further -= 1
        free -= more
        if (nodes, further) != (item.nodes, item.further):
            kept[i] = item._replace(nodes=nodes, further=further)
    return kept, preempt
