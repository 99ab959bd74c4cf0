"""The deciding half of the engine: who waits, who runs, who gets which rows. No tensors, no clock (D8): the engine and
the simulator own one each, and equal inputs make equal decisions."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from paceline.cache.cache import Cache
from paceline.cache.lease import Lease
from paceline.cache.policies import policy
from paceline.cache.txn import Move, Txn
from paceline.core.plan import Item, Plan
from paceline.core.request import Request
from paceline.engine.roster import Roster
from paceline.plan.planner import Planner, Room
from paceline.plan.wishes import Wishes
from paceline.schedule import SchedulePolicy, policies
from paceline.schedule.exspec import shape

if TYPE_CHECKING:
    from paceline.engine.config import EngineConfig

Groups = Callable[[Request], tuple[str, ...]]
"""The K/V groups that a request's lease keeps."""


class Desk:
    """Requests from their arrival to their last token. One thread owns it."""

    def __init__(
        self, cache: Cache, schedule: SchedulePolicy, planner: Planner, groups: Groups, max_requests: int
    ) -> None:
        self.cache, self.schedule, self.planner = cache, schedule, planner
        self.groups, self.max_requests = groups, max_requests
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    @classmethod
    def of(cls, config: "EngineConfig", roster: Roster, groups: Iterable[str]) -> "Desk":
        """As an engine of this configuration has it; `groups` are those beside the target's."""
        roster.chooser.patience = min(config.patience_ms, config.tbt_target_ms or config.patience_ms) / 1e3
        forget = policy(config.eviction)(config.blocks)
        cache = Cache(config.blocks, config.block_size, groups=groups, prefix=config.prefix_cache, eviction=forget)
        planner = Planner(Wishes(roster.fixed, roster.chooser), config.row_budget)
        schedule = policies.policy(
            config.schedule,
            config.order,
            config.row_budget,
            tbt_target_ms=config.tbt_target_ms,
            seconds=roster.chooser.seconds,
            group_size=config.group_size,
            shape=shape(roster.fixed.defaults),
        )
        return cls(cache, schedule, planner, roster.groups, config.max_requests)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def admit(self, now: float) -> list[Request]:
        """Give leases to waiting requests, in order, while places and blocks last; return who got one."""
        if not self.waiting:
            return []
        filling = sum(self.cache.blocks_for(len(r.tokens)) - len(lease_of(r).blocks) for r in self.running)
        new: list[Request] = []
        for request in self.schedule.order(self.waiting, now):
            if len(self.running) >= self.max_requests:
                break
            if self._must_wait(request):
                continue
            need = self.cache.blocks_for(len(request.tokens) + 1)
            if self.running and need + filling > self.cache.room():
                break
            lease = self.cache.open(matchable(request), self._groups(request))
            request.lease = lease
            request.stats.cached = max(request.stats.cached, lease.length)
            if request.admitted is None:
                request.admitted = now
            new.append(request)
            filling += max(0, need - len(lease.blocks))
            self.waiting.remove(request)
            self.running.append(request)
        return new

    def _must_wait(self, request: Request) -> bool:
        """A later sample waits until the first of its group has computed their prompt, and then shares it."""
        return self.cache.pool.prefix and any(
            r.group == request.group and r.pending > 1 and not r.output for r in self.running
        )

    def _groups(self, request: Request) -> Iterable[str]:
        """A later sample keeps what its like keep: else it could not share their prompt."""
        like = next((r for r in self.running if r.group == request.group), None)
        return self.groups(request) if like is None else lease_of(like).groups

    def plan(self, now: float) -> Plan:
        """The next step. Who is pre-empted in it has given up the lease and waits again."""
        order = self.schedule.order(self.running, now)
        turn = self.schedule.turn(order, now)
        plan = self.planner.plan(turn, self._room(), self.schedule.rows(turn, now), order)
        plan.validate(self.planner.row_budget)
        for request in plan.preempt:
            self.release(request)
            self.running.remove(request)
            self.waiting.append(request)
            request.stats.preempted += 1
        return plan

    def _room(self) -> Room:
        return Room(
            self.cache.room(),
            lambda r, rows: self.cache.needs(lease_of(r), rows),
            lambda r: self.cache.gain(lease_of(r)),
        )

    def begin(self, item: Item, passes: int = 1) -> Txn:
        """Reserve the rows of an item, in a step of so many passes."""
        return self.cache.begin(lease_of(item.request), item.given, item.ahead(passes))

    @staticmethod
    def settle(item: Item, txn: Txn, ranks: Sequence[int], drafted: Sequence[int]) -> list[Move]:
        """Keep the given rows and the accepted candidates: their ranks among the reserved ones and their tokens."""
        request = item.request
        return txn.commit(ranks, [*request.tokens[request.length :][: item.given], *drafted])

    def release(self, request: Request) -> None:
        """Give up the lease, if there is one."""
        if request.lease is not None:
            self.cache.close(lease_of(request))
            request.lease = None

    def leave(self, request: Request) -> None:
        """A request has ended."""
        self.release(request)
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
