"""The loop: propose cheaply, verify exactly, commit or roll back. There are no phases (D1)."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from time import monotonic, perf_counter
from typing import Any

from paceline.cache.cache import Cache
from paceline.cache.txn import Txn
from paceline.core.component import TARGET, Component, Model, keeps_rows
from paceline.core.errors import InputError, IntegrityError
from paceline.core.operations import Abort, Operation, Submit
from paceline.core.params import SamplingParams
from paceline.core.plan import Note, Plan
from paceline.core.program import inputs
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.core.user import UserFn
from paceline.draft import SCRATCH, Host
from paceline.draft.vocabulary import DraftVocabulary
from paceline.engine.block_files import BlockFiles
from paceline.engine.components import check_component, keep, move, reading, stateful
from paceline.engine.compute import Compute, Computed
from paceline.engine.config import EngineConfig, Timer
from paceline.engine.desk import Desk, lease_of
from paceline.engine.disk_cache import DiskCache
from paceline.engine.drafter_table import DrafterTable
from paceline.engine.drafters import DrafterPool, Drafts
from paceline.engine.gpu import named_memory
from paceline.engine.identity import root_of
from paceline.engine.judge import Judge
from paceline.engine.measured import measured, read_texts
from paceline.engine.operations import Operations
from paceline.engine.placement import placement
from paceline.engine.recorder import Recorder
from paceline.engine.session import Session
from paceline.engine.slots import Slots
from paceline.engine.totals import Snapshot, snapshot
from paceline.plan.cost import StepTimes, Times
from paceline.sample.sampler import Sampler
from paceline.verify import VERIFIERS


class Engine:
    """Continuous batching of requests over one target model, each with its own drafter and verifier.

    `submit` and `abort` take effect at the next `step`; `step` returns the requests whose output grew or ended.
    Not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        components: Mapping[str, Component] | None = None,
        callable: UserFn | None = None,
        tokenizer: Any = None,
        eos: Collection[int] = (),
        times: StepTimes | None = None,
        known: dict[str, Any] | None = None,
        now: Callable[[], float] = monotonic,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`components`: what the engine has in addition to the target, by name: a draft model, heads, judges. `times`:
        what steps cost, as far as known. `known`: what an earlier policy learned (`LengthPolicy.state`). `now` tells
        when requests arrive, `clock` how long parts of a step take; both in seconds."""
        if config.row_budget < config.max_requests:
            raise InputError(f"row_budget {config.row_budget} is below max_requests {config.max_requests}; raise it.")
        self.components: dict[str, Component] = {TARGET: model, **(components or {})}
        self.model, self.config, self.now, self.clock = model, config, now, clock
        scratch = 1 + -(-SCRATCH // config.block_size) if "program" in model.abilities else 0
        for name, component in self.components.items():
            check_component(name, component, model)
            component.allocate(config.blocks + (scratch if name == TARGET else 0), config.block_size)
        groups = [n for n, it in self.components.items() if keeps_rows(it) and n != TARGET]
        lagging = [n for n in groups if not self.components[n].taps and n not in stateful(self.components)]
        self.table = DrafterTable(
            config.length, times or StepTimes(), cheap_rows=config.cheap_rows, patience=config.patience, known=known
        )
        self.table.verifier_taps = {name: card.taps for name, card in VERIFIERS.items() if card.taps}
        self.layers = inputs(model.places) if "program" in model.abilities else 0
        self.desk = Desk.of(
            config, self.table, groups, stateful(self.components), root_of(self.components), lagging, self.layers
        )
        sampler = Sampler(model.vocab_size, *reading(tokenizer, model.vocab_size, eos))
        spare, chunk = range(config.blocks, config.blocks + scratch), min(512, config.row_budget)
        host = Host(
            sampler, model.vocab_size, self.components, callable, chunk, spare, config.remember,
            settings=config.settings,
        )  # fmt: skip
        self.judge = Judge(sampler, self.components)
        self.drafters = DrafterPool(host, config, self.table, self.desk.cache, clock)
        self.session = Session(model, config, self.judge, self.drafters, self.desk.cache, tokenizer=tokenizer, eos=eos)
        self.operations = Operations(self.session, self.desk, self.drafters, self.components)
        self.disk: DiskCache | None = None
        self.vocabulary: DraftVocabulary | None = None
        """Learns from the texts, if there is one."""
        self._booked = self._unbooked = 0.0
        """Seconds of this step when its times were taken; and of the one before after that, which this one books."""
        place = placement(config.overlap, model.device)
        self.compute = Compute(model, self.judge, Timer(), clock, self.session.ends, place)

    @property
    def cache(self) -> Cache:
        return self.desk.cache

    @property
    def timer(self) -> Timer:
        return self.compute.timer

    @timer.setter
    def timer(self, timer: Timer) -> None:
        self.compute.timer = timer

    @property
    def recorder(self) -> Recorder:
        return self.drafters.recorder

    @recorder.setter
    def recorder(self, recorder: Recorder) -> None:
        self.drafters.recorder = recorder

    @property
    def busy(self) -> bool:
        return self.desk.busy or bool(self.disk and self.disk.pending) or bool(self.session.adapters.waiting)

    @property
    def behind(self) -> bool:
        """Has the engine work left that no request waits for (`catch_up`)?"""
        return self.disk is not None and self.disk.behind

    def catch_up(self) -> None:
        """Do a little of the work that no request waits for: store blocks on disk."""
        if self.disk is not None:
            self.disk.store()

    def keep_on_disk(self, files: BlockFiles) -> None:
        """K/V of idle texts is kept in these files from now on, and found there."""
        self.disk = DiskCache(files, self.cache, self.operations.kv, self.desk.kept_groups)
        self.operations.disk = self.disk
        self.operations.slots = Slots(self, files)

    def snapshot(self) -> Snapshot:
        """What the engine has done. For its own thread, between steps."""
        loads, graphs = getattr(self.model, "expert_loads", 0), getattr(self.model, "graphs", None)
        found = snapshot(self.desk.running, self.desk.waiting, self.cache.pool, self.desk.totals, loads)
        return found if graphs is None else replace(found, gpu=asdict(graphs.counts))

    def submit(self, prompt: Sequence[int], params: SamplingParams, *, lineage: tuple[int, ...] = ()) -> list[Request]:
        """Queue one prompt (token ids) and return its `params.n` requests. Raises InputError, RefusalError or
        CapacityError when it cannot be served; nothing is queued then."""
        made: list[Request] = self.apply(Submit(list(prompt), params, lineage))
        return made

    def abort(self, request: Request) -> None:
        """End a request where it stands; its output so far stays."""
        if request.finish is None and request.id in self.session.requests:
            self.apply(Abort(request.id))

    def apply(self, operation: Operation) -> Any:
        """Do what an operation says (core/operations.py): the requests that it made, or of `Park` bytes."""
        return self.operations.apply(operation, self.now())

    def step(self) -> list[Request]:
        """One pass of the target model over everybody's rows, or several in one call. The requests that changed."""
        started, changed, now = self.clock(), list[Request](), self.now()
        if self.session.adapters.waiting:
            self.operations.seat(now)
        if self.disk is not None:
            self.operations.arrive(wait=not self.desk.busy)
        if not self.desk.busy:
            return []
        if self.operations.transfers.table.open:
            self.operations.expire(now)
        admitted = self.desk.admit(now)
        plan = self.desk.plan(now, self.judge.sampler.held(self.desk.running))
        self.recorder.planned(now, admitted, plan)
        for request in plan.preempt:
            self.drafters.forget(request)
        if plan.items:
            changed = self._run(plan, started)
        elif not (plan.preempt or plan.held) and self.busy:
            raise IntegrityError("No request can run and none was pre-empted.")
        if self.config.check:
            self.cache.check_integrity()
        self.catch_up()
        took = self.clock() - started
        self._unbooked, self._booked = self._unbooked + took - self._booked, 0.0
        self.timer.step += took
        self.timer.steps += 1
        return changed

    def _run(self, plan: Plan, begun: float) -> list[Request]:
        txns = list[Txn]()
        try:
            txns += self.desk.begin(plan)
            keep(self.components, self.cache)
            drafts = self.drafters.draft(plan, txns)
            with named_memory("in a step", f"start with a row_budget below {self.config.row_budget}, or fewer blocks"):
                computed = self._compute(plan, txns, drafts)
        except BaseException:
            for txn in txns:
                txn.abort()
            raise
        if plan.drafter is not None and computed.drafting:
            self.drafters.book(plan.drafter, computed.drafting)
        results = computed.results
        bases = [txn.base for txn in txns]
        work, parts = measured(plan, bases, results, self.table.chain)
        spoilt = [lease_of(it.request) for it, result in zip(plan.items, results) if -1 in result.tokens]
        blocks = Counter(block for lease in spoilt for block in lease.blocks)
        self._commit(plan, txns, results)
        self.operations.kv.wipe(self.cache.pool, blocks)
        self.drafters.keep(plan, txns, computed)
        found = self.drafters.learn(drafts, computed)
        if self.vocabulary is not None:
            self.vocabulary.read(read_texts(plan, bases, results))
        notes, changed = self._emit(plan, results)
        ended = [item.request for item in plan.items if item.request.finish is not None]
        numbers = {request.id for request in ended}
        found = [note for note in found if note.request not in numbers]
        times = self._times(begun, computed)
        self.recorder.ran(results, found, work, parts, times)
        self.desk.totals.account(self.desk.policy.learn([*notes, *found], work, parts, times), plan.why)
        for request in ended:
            self.desk.table.drop(request)
        return changed

    def _compute(self, plan: Plan, txns: Sequence[Txn], drafts: Drafts) -> Computed:
        """Start the target's pass, let drafters work while it runs, and collect it: when this ends, so has the pass."""
        started = self.compute.start(plan, txns, drafts)
        try:
            with self.compute.place.beside():
                self.drafters.ahead(drafts, started.exits)
            return self.compute.collect(plan, txns, drafts, started)
        finally:
            started.ticket.wait()

    def _commit(self, plan: Plan, txns: Sequence[Txn], results: Sequence[Result]) -> None:
        """Keep what was accepted, contiguous in every component's pool, and drop everything else."""
        move(self.components, self.desk.commit(plan, txns, results))

    def _emit(self, plan: Plan, results: Sequence[Result]) -> tuple[list[Note], list[Request]]:
        """Let the outputs grow, up to the token that ends each; Returns what was taught, and which requests changed."""
        self.session.read(plan.items, results)
        notes = self.desk.emit(plan, results)
        return notes, self.session.settle(plan.items, results)

    def _times(self, begun: float, computed: Computed) -> Times:
        drafting = self.drafters.seconds
        self.drafters.turns.end(drafting, computed.target)
        self.timer.draft += sum(drafting.values())
        for name, count in self.drafters.failed.items():
            self.desk.totals.failed(name, count)
        self.drafters.failed.clear()
        self._booked = self.clock() - begun
        rest = self._booked + self._unbooked - computed.target - sum(drafting.values()) + computed.saved
        self._unbooked = 0.0
        return Times(computed.target, drafting, rest, computed.saved, self.drafters.reads)
