"""The deciding half of the engine: which requests wait, which run, and which rows each gets. No tensors, no clock (D8):
the engine and the simulator own one each, and equal inputs make equal decisions."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from paceline.cache.cache import Cache
from paceline.cache.lease import Lease
from paceline.cache.policies import policy
from paceline.cache.txn import Move, Txn
from paceline.core.component import TARGET
from paceline.core.joined import Layout, joined
from paceline.core.plan import Item, Note, Plan, Work
from paceline.core.request import FinishReason, Request
from paceline.core.result import Result
from paceline.engine.branches import Branches, BranchFamily, splice
from paceline.engine.drafter_table import DrafterTable
from paceline.engine.silence import Silence
from paceline.engine.totals import Totals
from paceline.plan import LengthPolicy
from paceline.plan.planner import Planner, Room
from paceline.schedule import SchedulePolicy, policies
from paceline.schedule.places import ClientShares

if TYPE_CHECKING:
    from paceline.engine.config import EngineConfig


class Desk:
    """Requests from their arrival to their last token. One thread owns it."""

    def __init__(
        self, cache: Cache, schedule: SchedulePolicy, planner: Planner, table: DrafterTable, max_requests: int
    ) -> None:
        self.cache, self.schedule, self.planner, self.table = cache, schedule, planner, table
        self.max_requests = max_requests
        self.shares = ClientShares(max_requests)
        self._claim: Request | None = None
        """Request for which others gave way: it is admitted next."""
        self.totals = Totals()
        self.silence = Silence()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.reserved: dict[int, Txn] = {}
        """Blocks that are held for requests that are to come."""
        self.branches = Branches()
        """Requests that wait for their branches: neither waiting for a lease nor running."""

    @classmethod
    def of(
        cls, config: "EngineConfig", table: DrafterTable, groups: Iterable[str], states: Iterable[str] = (),
        identity: bytes = b"", lagging: Iterable[str] = (), layers: int = 0,
    ) -> "Desk":  # fmt: skip
        """As an engine of this configuration has it; `groups` are those other than the target's, `states` those of all
        that keep a state of each text, `lagging` those that a shared prefix may lack, `identity` that of the model,
        `layers` those between which rows may wait (0: none)."""
        table.shares = config.prefix_cache
        forget = policy(config.eviction)(config.blocks)
        cache = Cache(
            config.blocks, config.block_size, groups=groups, prefix=config.prefix_cache, eviction=forget, states=states,
            lagging=lagging, identity=identity, snapshots=config.snapshots,
        )  # fmt: skip
        planner = Planner(table.decide, config.row_budget, table.taps, config.draft_rows, table.further)
        schedule = policies.policy(
            config.schedule,
            config.order,
            config.row_budget,
            tbt_target_ms=config.tbt_target_ms,
            forecast=None if table.policy.state() is None else table.times,
            group_size=config.group_size,
            layers=layers,
            layer_groups=config.layer_groups,
            expects=table.expects,
        )
        return cls(cache, schedule, planner, table, config.max_requests)

    @property
    def policy(self) -> LengthPolicy:
        """Policy that decides which drafter drafts how many tokens."""
        return self.table.policy

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def admit(self, now: float) -> list[Request]:
        """Give leases to waiting requests, in order, while places and blocks last. Returns the requests that got
        one."""
        if not self.waiting:
            return []
        filling = sum(map(self._filling, self.running))
        new, queue = list[Request](), self.shares.queue(self.schedule.order(self.waiting, now), self.running)
        if self._claim in queue:
            queue.sort(key=lambda r: r is not self._claim)
        self._claim = None
        company = [*self.running, *queue][: self.max_requests]
        self.table.decide(company, 0, Work.of((1, len(r.tokens), 1) for r in company))
        for request in queue:
            if len(self.running) >= self.max_requests:
                break
            if request.group in self._unread_groups():
                continue
            need, fresh = self._need(request), request.lease is None
            if self.running and need + filling > self.cache.room():
                break
            lease = self._open(request) if fresh else lease_of(request)
            request.lease = lease
            request.stats.cached = max(request.stats.cached, lease.length)
            if request.admitted is None:
                request.admitted = now
            if fresh and not request.stats.preempted:
                self.totals.admitted(request)
            new.append(request)
            filling += max(0, self.cache.blocks_for(len(request.tokens) + 1) - len(lease.blocks))
            self.waiting.remove(request)
            self.running.append(request)
        return new

    def _need(self, request: Request) -> int:
        """Blocks that a waiting request lacks to begin."""
        have = 0 if request.lease is None else len(lease_of(request).blocks)
        return self.cache.blocks_for(len(request.tokens) + 1) - have

    def _filling(self, request: Request) -> int:
        """Blocks that a running request still needs for its present text."""
        return self.cache.blocks_for(len(request.tokens)) - len(lease_of(request).blocks)

    def _open(self, request: Request) -> Lease:
        """On what the cache has of its text; of a branch, on the blocks of the request that waits for it."""
        family = self.branches.of(request)
        if family is not None and family.parent.lease is not None and not request.stats.preempted:
            lease = self.cache.fork(lease_of(family.parent))
            self.cache.rewind(lease, min(lease.length, len(request.tokens) - 1))  # one that was closed lacks its end
            return lease
        tokens, groups = matchable(request), self._groups(request)
        returns = request.params.returns or 0
        return self.cache.open(tokens, groups, request.kv_key, request.layout, returns)

    def _unread_groups(self) -> set[int]:
        """Groups whose first sample still computes their prompt: a later sample waits until it has, and then shares
        it."""
        return {r.group for r in self.running if r.pending > 1 and not r.output} if self.cache.pool.prefix else set()

    def kept_groups(self, request: Request) -> list[str]:
        """The groups that its lease keeps, the target's included."""
        return sorted({TARGET, *self._groups(request)})

    def _groups(self, request: Request) -> Iterable[str]:
        """A later sample keeps what its like keep: else it could not share their prompt."""
        like = next((r for r in self.running if r.group == request.group), None)
        return self.table.groups(request) if like is None else lease_of(like).groups

    def plan(self, now: float, held: Collection[int] = ()) -> Plan:
        """Plan the next step, in which the requests `held` have no rows. A request that is pre-empted in it has given
        up its lease and waits again."""
        order = self.schedule.order(self.running, now)
        yielded = self._give_way(order)
        self._stop(yielded)
        order = [r for r in order if r not in yielded]
        free = [r for r in order if r.id not in held]
        turn, order = self.shares.turned(self.schedule.turn(free, now), order), self.shares.order(order)
        plan = self.planner.plan(turn, self._room(), self.schedule.rows(turn, now), order)
        while plan.preempt and self._give_up():
            plan = self.planner.plan(turn, self._room(), self.schedule.rows(turn, now), order)
        plan = policies.finished(self.schedule, plan)
        plan.validate(self.planner.row_budget)
        self.shares.gave(plan.items)
        self._stop(plan.preempt)
        return replace(plan, preempt=[*yielded, *plan.preempt], held=(*held,)) if yielded or held else plan

    def _stop(self, preempted: Iterable[Request]) -> None:
        """They give up their leases, and wait again."""
        for request in preempted:
            self.release(request, again=True)
            self.running.remove(request)
            self.waiting.append(request)
            request.stats.preempted += 1
            self.totals.preemptions += 1

    def _give_way(self, order: Sequence[Request]) -> list[Request]:
        """Running requests beyond their clients' shares that must go, so that a waiting one of another client can be
        admitted; none where that would not be enough. `order`: all that run."""
        unread = self._unread_groups()
        claim = self.shares.claim([r for r in self.waiting if r.group not in unread], self.running)
        if claim is None:
            return []
        yielded, free = list[Request](), self.cache.room() - sum(map(self._filling, order)) - self._need(claim)
        surplus = self.shares.surplus(self.waiting, order)
        while len(order) - len(yielded) >= self.max_requests or free < 0:
            request = next(surplus, None)
            if request is None:
                return []
            yielded.append(request)
            free += self.cache.gain(lease_of(request)) + self._filling(request)
        self._claim = claim
        return yielded

    def _give_up(self) -> bool:
        """Drop the K/V of one request that no step computes with, if any has some; a join computes it again. Then
        blocks that are held for requests that are to come."""
        idle = chain(self.branches.holding(), (r for r in reversed(self.waiting) if r.lease is not None))
        if (request := next(idle, None)) is not None:
            self.release(request, again=True)
            return True
        if self.reserved:
            self.cache.close(self.reserved.pop(max(self.reserved)).lease)
            return True
        return False

    def _room(self) -> Room:
        return Room(
            self.cache.room(),
            lambda r, rows: self.cache.needs(lease_of(r), rows),
            lambda r: self.cache.gain(lease_of(r)),
        )

    def begin(self, plan: Plan) -> list[Txn]:
        """Reserve the rows of a step: of all items, or of none."""
        txns = list[Txn]()
        try:
            for item in plan.items:
                lease = lease_of(item.request)
                txns.append(lease.txn or self.cache.begin(lease, item.given, item.reserved(plan.passes)))
        except BaseException:
            for txn in txns:
                txn.abort()
            raise
        return txns

    @staticmethod
    def commit(plan: Plan, txns: Sequence[Txn], results: Sequence[Result]) -> list[Move]:
        """Keep the given rows and the accepted candidates of each item, and drop all others; rows that wait between
        two layers stay as they are. The moves are the models' to make."""
        moves = list[Move]()
        for item, txn, result in zip(plan.items, txns, results, strict=True):
            request = item.request
            if item.last is not None:
                txn.layer = item.last
                continue
            moves += txn.commit(result.ranks, [*request.tokens[request.length :][: item.given], *result.tokens[:-1]])
        return moves

    def emit(self, plan: Plan, results: Sequence[Result]) -> list[Note]:
        """Give each output what it got of its result, and end the requests that have finished."""
        notes = [note for item, result in zip(plan.items, results) for note in self._emit(item, plan.passes, result)]
        for item in plan.items:
            self._completed(item.request)
        return notes

    def _emit(self, item: Item, passes: int, result: Result) -> list[Note]:
        request = item.request
        if not result.tokens:
            return []
        left = min(passes * (1 + item.chain), request.left, 1 + item.depth)
        authors = [author for round in result.rounds for author in (*[item.drafter] * round.depth, None)]
        for token, author in zip(result.tokens[: result.emitted], authors):
            request.append(token, author)
        notes = []
        for before, kept, round in result.heard():
            told = [int(depth < kept) for depth in range(len(round.offered))]
            deep = min(item.depth, left - before - 1)
            notes.append(Note(request.id, item.drafter, item.nodes, deep, round.offered, told))
        request.round += len(notes)
        request.stats.passes += len(notes)
        request.stats.generated += result.emitted
        for note in notes:
            request.stats.count(note.offered, note.kept)
        self.totals.passed(notes, result.emitted)
        if item.drafter != "none" and not request.arms:
            self.silence.heard(item.drafter, bool(item.nodes), notes, self.totals.why)
        if result.finish is not None:
            self._end(request, result.finish)
        return notes

    def _end(self, request: Request, reason: FinishReason) -> None:
        """An output is whole. A branch stays until the K/V of its last token is there, too."""
        if self.branches.of(request) is not None and reason != "error":
            request.close(reason)
            return
        request.finish = reason
        self.leave(request)

    def _completed(self, request: Request) -> None:
        """A branch that has ended keeps its K/V until it is joined."""
        if request.closing is not None and request.finish is None and request.length >= len(request.tokens):
            request.finish = request.closing
            for queue in (self.waiting, self.running):
                if request in queue:
                    queue.remove(request)
            self.branches.completed(request)

    # -- operations --------------------------------------------------------------------------------------------------

    @staticmethod
    def extend(request: Request, tokens: Sequence[int]) -> None:
        """Append given tokens, which were not drawn, to the output."""
        for token in tokens:
            request.append(token)

    def branch(self, parent: Request, child: Request) -> None:
        """A branch is queued, and its parent waits."""
        if parent.lease is not None:
            self.cache.restart(lease_of(parent))
        self.branches.add(parent, child)
        for queue in (self.waiting, self.running):
            if parent in queue:
                queue.remove(parent)
        self.waiting.append(child)

    def close(self, request: Request) -> None:
        """A branch ends where it stands."""
        request.close("stop")
        self._completed(request)

    def join(
        self, request: Request, numbers: Sequence[int], tokens: Sequence[int], reading: Iterable[str] = ()
    ) -> list[Move]:
        """Ended branches, one behind the other, and `tokens` join the text of the request, which waits for its place
        again. The moves are the models' to make. `reading`: groups that are made from hidden states, which do not exist
        of joined rows; those that such a group lacks are computed again."""
        family = self.branches[request.id]
        branches = family.named(numbers)
        layout = joined(branches[0].common, [(len(branch.tokens), branch.layout) for branch in branches])
        self.release(request)
        request.lease, moves = splice(self.cache, branches, layout)
        for branch in branches:
            for at in range(branch.common, len(branch.tokens)):
                request.append(branch.tokens[at], branch.authors[at - len(branch.prompt)])
        request.layout = layout
        self.extend(request, tokens)
        del self.branches[request.id]
        for branch in family.done.values():
            self.release(branch)
        self.waiting.append(request)
        if request.lease is not None:
            frontier = lease_of(request).frontier
            known = min([frontier[group] for group in reading if group in frontier], default=request.length)
            self.cache.rewind(lease_of(request), min(known, request.length))
        return moves

    def rewound(self, request: Request) -> None:
        """A text has become shorter: its cache follows, with one row left to compute."""
        if request.lease is not None:
            lease = lease_of(request)
            self.cache.rewind(lease, min(lease.length, len(request.tokens) - 1))

    def restart(self, request: Request) -> None:
        """A text has changed from its beginning: it waits again."""
        self.release(request)
        if request in self.running:
            self.running.remove(request)
            self.waiting.append(request)

    def adopt(
        self,
        tokens: Sequence[int],
        groups: Sequence[str],
        layout: Layout = (),
        extra_key: str = "",
        known: bool = False,
    ) -> Txn | None:
        """Room for rows whose K/V comes from elsewhere; None where there is none, or it would not be kept. `known`:
        for those alone that the prefix cache lacks, from `Txn.base` on; None where it lacks none."""
        if not tokens or not self.cache.pool.prefix or self.cache.pool.snapshots is not None:
            return None
        lease = self.cache.open([*tokens, 0] if known else [], groups, extra_key, layout)
        rows = len(tokens) - lease.length
        if not rows or self.cache.needs(lease, rows) > self.cache.room():
            self.cache.close(lease)
            return None
        return self.cache.begin(lease, rows, 0)

    def adopted(self, txn: Txn, tokens: Sequence[int]) -> None:
        """Enter the written rows of `adopt` into the prefix cache. `tokens`: of the whole text up to their end."""
        lease = txn.lease
        txn.commit([], tokens[txn.base :])
        for group, frontier in lease.frontier.items():
            if frontier == txn.base:
                self.cache.advance(lease, group, len(tokens))
        self.cache.seal(lease)
        self.cache.close(lease)

    def drop(self, tokens: Sequence[int], extra_key: str, layout: Layout = ()) -> None:
        """Forget the K/V of a text where no lease holds it."""
        self.cache.drop(reversed(self.cache.names(tokens, extra_key, layout)))

    def reserve(self, number: int, blocks: int) -> None:
        """Hold blocks for a text that is to come."""
        self.reserved[number] = self.cache.begin(self.cache.open([]), 0, blocks * self.cache.block_size)

    def reopen(self, number: int, groups: Sequence[str], layout: Layout, extra_key: str) -> None:
        """The held blocks are for a text with these groups, in this layout, under this key."""
        rows = self.reserved[number].nodes
        self.cache.close(self.reserved[number].lease)
        self.reserved[number] = self.cache.begin(self.cache.open([], groups, extra_key, layout), 0, rows)

    def settle(self, number: int, tokens: Sequence[int]) -> None:
        """End a reservation: the held blocks of these tokens enter the prefix cache, the others are given back."""
        txn = self.reserved.pop(number)
        txn.commit(range(len(tokens)), tokens)
        for group in txn.lease.frontier:
            self.cache.advance(txn.lease, group, len(tokens))
        self.cache.seal(txn.lease)
        self.cache.close(txn.lease)

    # -- the end -----------------------------------------------------------------------------------------------------

    def release(self, request: Request, again: bool = False) -> None:
        """Give up the lease, if there is one. `again`: the request waits, and comes back for its K/V."""
        if request.lease is not None:
            self.cache.close(lease_of(request), again)
            request.lease = None

    def leave(self, request: Request) -> None:
        """A request has ended. With it go its branches that wait to be joined; a request without any goes on."""
        self.release(request)
        for branch in self.branches.pop(request.id, BranchFamily(request)).done.values():
            self.release(branch)
        if (parent := self.branches.left(request)) is not None:
            self.waiting.append(parent)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)


def matchable(request: Request) -> list[int]:
    """Tokens that may come from the prefix cache: none while prompt log-probabilities must be computed."""
    wanted = request.params.prompt_logprobs is not None and len(request.prompt_logprobs) < len(request.prompt)
    return [] if wanted else request.tokens


def lease_of(request: Request) -> Lease:
    """The lease of a running request."""
    assert isinstance(request.lease, Lease), f"request {request.id} holds no lease"
    return request.lease
