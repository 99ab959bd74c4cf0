"""An engine of a simulated fleet: the deciding half of a real one (`Desk`, planner, schedule and cache), and a formula
for what a step takes."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.cache.cache import Cache
from paceline.cache.txn import Txn
from paceline.cluster.live.freeness import EngineLoad, urgent
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.desk import Desk, lease_of
from paceline.engine.drafter_table import DrafterTable
from paceline.plan import DrafterFacts
from paceline.plan.cost import StepTimes
from paceline.plan.planner import Planner
from paceline.schedule import policies


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Engines that are all alike, in blocks and seconds. What is given is about a model of 7e9 parameters in 16 bits on
    a card of 24 GB: 14 GB are read at 0.6 TB/s in each step, a row is 14e9 operations at 7e13 a second, a row of
    context 0.5 MB to read, and 10 GB are left for K/V."""

    blocks: int = 850
    block_size: int = 16
    max_requests: int = 256
    row_budget: int = 512
    step_s: float = 0.024
    row_s: float = 2e-4
    context_s: float = 9e-7
    """For each row of K/V that a step reads."""
    message_s: float = 0.002
    """Between two engines, there and back."""
    block_s: float = 0.0008
    """To copy a block: 8 MB at 10 GB/s."""
    start_s: float = 20.0
    """Until a new engine takes requests."""
    order: str = "fcfs"


class FleetTwin:
    """The deciding half of one engine, without models, for simulated fleets."""

    def __init__(self, name: str, shape: FleetShape) -> None:
        self.name, self.shape = name, shape
        table = DrafterTable("fixed", StepTimes())
        table.enrol("none", DrafterFacts(0, chain=True))
        made = policies.policy("chunked", shape.order, shape.row_budget)
        cache = Cache(shape.blocks, shape.block_size, prefix=False)
        self.desk = Desk(cache, made, Planner(table.decide, shape.row_budget), table, shape.max_requests)
        self.alive, self.draining, self.stepping = True, False, False
        self.after_step: list[Callable[[], None]] = []
        """Callbacks for the end of the step that runs."""
        self._txns: list[Txn] = []

    def load(self) -> EngineLoad:
        """Load of the engine, as the policies see it."""
        desk, size = self.desk, self.desk.cache.blocks_for
        held = [0 if each.lease is None else len(lease_of(each).blocks) for each in desk.waiting]
        needs = [max(0, size(len(each.tokens) + 1) - have) for each, have in zip(desk.waiting, held, strict=True)]
        used = self.shape.blocks - desk.cache.room()
        pressing = sum(urgent(each.params.priority) for each in (*desk.waiting, *desk.running))
        return EngineLoad(
            self.name, self.shape.blocks, used, len(desk.running), len(needs), needs[0] if needs else 0, sum(needs),
            pressing, self.draining, self.alive,
        )  # fmt: skip

    def begin(self, now: float) -> tuple[Plan, float] | None:
        """The next step and the seconds that it takes; None where nothing can run."""
        self.desk.admit(now)
        plan = self.desk.plan(now)
        if not plan.items:
            return None
        self._txns = self.desk.begin(plan)
        rows = sum(item.given for item in plan.items)
        context = sum(item.request.length for item in plan.items)
        shape = self.shape
        return plan, shape.step_s + shape.row_s * rows + shape.context_s * context

    def end(self, plan: Plan) -> list[Request]:
        """Requests that got a token."""
        done = [Result([0]) if item.completes else Result() for item in plan.items]
        drawn = [item.request for item in plan.items if item.completes]
        self.desk.commit(plan, self._txns, done)
        for request in drawn:
            request.append(0)
            if not request.left:
                request.finish = "length"
                self.desk.leave(request)
        return drawn

    def take_out(self, request: Request) -> int:
        """Park a request; the rows of its K/V."""
        rows = 0 if request.lease is None else lease_of(request).length
        for queue in (self.desk.running, self.desk.waiting):
            if request in queue:
                queue.remove(request)
        self.desk.release(request)
        return rows

    def take_in(self, request: Request, number: int, rows: int) -> bool:
        """A reservation becomes this request, with the K/V of its first rows; False where it is no more."""
        if number not in self.desk.reserved:
            return False
        self.desk.reopen(number, self.desk.kept_groups(request), (), "")
        txn = self.desk.reserved.pop(number)
        txn.commit(range(rows), request.tokens[:rows])
        for group in txn.lease.frontier:
            self.desk.cache.advance(txn.lease, group, rows)
        request.lease = txn.lease
        self.desk.waiting.insert(0, request)
        return True
