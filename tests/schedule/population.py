"""A desk whose passes cost nothing: real cache, planner and policies; what a model would draw comes from a seed. Every
step checks what must hold of any plan."""

import random
from dataclasses import dataclass, field

from paceline.cache.cache import Cache
from paceline.core.params import SamplingParams
from paceline.core.plan import Item, Plan, Work
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.desk import Desk
from paceline.engine.drafter_table import DrafterTable
from paceline.plan import DrafterFacts
from paceline.plan.cost import StepTimes
from paceline.plan.planner import Planner
from paceline.schedule import policies


@dataclass(frozen=True)
class Arrival:
    at: int
    prompt: int
    output: int
    priority: int = 0
    deadline_ms: float | None = None
    user: str = ""
    client: str = ""


@dataclass(frozen=True)
class Stairs:
    """A step takes a second for each panel of 16 rows, and the more, the more is read."""

    per_context: float = 0.0
    measured: bool = True
    scale: float = 1.0

    def predict(self, work: Work) -> float:
        return self.scale * (-(-work.rows // 16) + self.per_context * work.context)

    like_latest = predict


@dataclass
class Population:
    """Arrivals are in steps; the clock shows `seconds` more at each."""

    arrivals: list[Arrival]
    schedule: str = "chunked"
    order: str = "fcfs"
    blocks: int = 64
    size: int = 4
    budget: int = 64
    nodes: int = 3
    places: int = 8
    target: float | None = None
    group_size: int | None = None
    seed: int = 0
    seconds: float = 1.0
    requests: list[Request] = field(default_factory=list)
    log: list[tuple[list[tuple[int, int, int]], list[int]]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    """Ids in the order of their first chunk."""
    ended: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = DrafterTable("fixed", StepTimes())
        table.enrol("none", DrafterFacts(0, chain=True))
        table.enrol("ngram", DrafterFacts(self.nodes, chain=True))
        self.policy = policies.policy(
            self.schedule, self.order, self.budget, forecast=Stairs(measured=self.group_size is None),
            group_size=self.group_size, expects=table.expects,
            tbt_target_ms=None if self.target is None else 1e3 * self.target,
            layers=5,
        )  # fmt: skip
        cache = Cache(self.blocks, self.size)
        self.desk = Desk(cache, self.policy, Planner(table.decide, self.budget), table, self.places)
        self.rng = random.Random(self.seed)
        self.now = 0.0

    def run(self, most: int = 10_000) -> "Population":
        """To the end of all requests."""
        coming = sorted(self.arrivals, key=lambda a: a.at)
        for step in range(most):
            while coming and coming[0].at <= step:
                self.submit(coming.pop(0))
            if not coming and not self.desk.busy:
                return self
            if self.desk.busy:
                self.step()
            self.now += self.seconds
        raise AssertionError(f"{len(self.desk.waiting)} wait and {len(self.desk.running)} run after {most} steps")

    def submit(self, a: Arrival) -> Request:
        params = SamplingParams(priority=a.priority, deadline_ms=a.deadline_ms, user=a.user, client=a.client)
        prompt = [self.rng.randrange(1000) for _ in range(a.prompt)]
        request = Request(
            len(self.requests), prompt, params, 0, drafter="ngram" if self.nodes else "none", max_tokens=a.output,
            arrival=self.now, key=a.user, group=len(self.requests),
        )  # fmt: skip
        self.requests.append(request)
        self.desk.waiting.append(request)
        return request

    def step(self) -> Plan:
        self.desk.admit(self.now)
        decoding = [r for r in self.desk.running if r.pending == 1]
        before = {r.id: (r.length, r.pending) for r in self.desk.running}
        plan = self.desk.plan(self.now)
        self.check(plan, decoding)
        for item in plan.items:
            self.compute(item)
            start, pending = before[item.request.id]
            if item.partial:
                assert (item.request.length, item.request.pending) == (start, pending)
            elif item.request.finish is None and item.given < pending:  # a chunk: the next begins where it ended
                assert (item.request.length, item.request.pending) == (start + item.given, pending - item.given)
        self.desk.cache.check_integrity()
        self.log.append(([(i.request.id, i.given, i.nodes) for i in plan.items], [r.id for r in plan.preempt]))
        self.first += sorted(i.request.id for i in plan.items if i.request.id not in self.first)
        return plan

    def check(self, plan: Plan, decoding: list[Request]) -> None:
        assert plan.items or plan.preempt
        assert plan.rows <= self.budget
        assert len({(i.first, i.last) for i in plan.items if i.first or i.partial}) <= 1, "two cohorts at once"
        assert not [r for r in plan.preempt if r.lease is not None]
        if self.order == "fcfs" and len({a.client for a in self.arrivals}) < 2:
            assert all(r.id < p.id for r in self.desk.running for p in plan.preempt), "not the last gave way"
        if self.schedule in ("chunked", "layered") and self.group_size is None and not plan.preempt:
            assert {r.id for r in decoding} <= {i.request.id for i in plan.items}, "a decode stalls"

    def compute(self, item: Item) -> None:
        """As a model would: some candidates are kept, one token is drawn after them."""
        request, plan = item.request, Plan([item])
        txns = self.desk.begin(plan)
        if not item.completes:
            self.desk.commit(plan, txns, [Result()])
            return
        kept = [self.rng.randrange(1000) for _ in range(self.rng.randint(0, item.chain))]
        self.desk.commit(plan, txns, [Result([*kept, 0], list(range(len(kept))))])
        for token in kept:
            request.append(token, "ngram")
        request.append(self.rng.randrange(1000), None)
        assert request.pending == 1 and request.left >= 0
        if not request.left:
            request.finish = "length"
            self.ended[request.id] = self.now
            self.desk.leave(request)

    @property
    def preemptions(self) -> int:
        return sum(r.stats.preempted for r in self.requests)

    @property
    def given(self) -> int:
        """Rows computed of tokens that were known: with those that were computed again."""
        return sum(given for items, _ in self.log for _, given, _ in items)
