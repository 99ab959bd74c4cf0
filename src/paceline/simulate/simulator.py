"""A discrete-event simulator: the engine's own decisions, a virtual clock, predicted step times, drawn acceptance."""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from paceline.core.errors import CapacityError, IntegrityError
from paceline.core.noise import SimulationNoise
from paceline.core.plan import Item, Plan, Work
from paceline.core.result import Result, Round
from paceline.engine.desk import lease_of
from paceline.engine.measured import measured
from paceline.plan.cost import Drafting, StepTimes, Times, judged
from paceline.simulate.log import Event, Outcome, Step
from paceline.simulate.twin import Twin
from paceline.simulate.workload import Workload, WorkloadJob


def simulate(workload: Workload, *, clients: int | None = None, seed: int = 0) -> list[Event]:
    """The decision log of a simulated run; equal arguments give equal logs. The engine starts with the table that the
    recorded one started with, and learns. `clients`: number of clients, each of which sends its next job as soon as the
    last is done; None: jobs come when they came. CapacityError when a request could never fit the cache."""
    return Simulator(workload, clients, SimulationNoise(seed)).run()


@dataclass(slots=True)
class Simulator:
    workload: Workload
    clients: int | None
    noise: SimulationNoise
    now: float = 0.0
    events: list[Event] = field(default_factory=list)
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """{request: (length of its output, nodes)} of the drafts that were made for it during its latest pass."""

    def run(self) -> list[Event]:
        setup = replace(self.workload.setup, times=deepcopy(self.workload.setup.times))
        twin, queue = Twin(setup), deque(self.workload.jobs)
        self.events = [setup]
        self._check(twin, queue)
        while queue or twin.desk.busy:
            if not twin.desk.busy and self.clients is None:
                self.now = max(self.now, queue[0].at)
            while queue and self._due(queue[0], twin):
                self._submit(queue.popleft(), twin)
            self._step(twin)
        return self.events

    def _due(self, job: WorkloadJob, twin: Twin) -> bool:
        if self.clients is None:
            return job.at <= self.now
        return len({r.group for r in twin.requests.values()}) < self.clients

    def _submit(self, job: WorkloadJob, twin: Twin) -> None:
        at = self.now if self.clients is not None else job.at
        for arrival in job.arrivals:
            arrived = replace(arrival, now=at)
            self.events.append(arrived)
            twin.arrive(arrived)

    def _step(self, twin: Twin) -> None:
        decision, plan = twin.decide(self.now)
        outcome = None
        if plan.items:
            txns = twin.desk.begin(plan)
            outcome = self._outcome(plan, twin)
            twin.end(plan, txns, outcome)
        elif not plan.preempt:
            raise IntegrityError("No request can run and none was pre-empted.")
        self.events.append(Step(self.now, decision, outcome=outcome))
        if outcome is not None:
            self.now += outcome.times.total + self.workload.between

    def _outcome(self, plan: Plan, twin: Twin) -> Outcome:
        """What the target and the drafters would have made of a plan."""
        if plan.passes > 1:
            results = [self._drawn(item, plan.passes) for item in plan.items]
        else:
            draws = [self._draw(item, twin) for item in plan.items]
            results = [self._result(item, *draw) for item, draw in zip(plan.items, draws)]
        advanced = [each for item, result in zip(plan.items, results) for each in self._advances(item, result, twin)]
        done = measured(plan, [item.request.length for item in plan.items], results, twin.table.chain)
        return self._taken(plan, twin, results, advanced, done)

    def _taken(
        self, plan: Plan, twin: Twin, results: list[Result], advanced: list[tuple[int, str, int]],
        done: tuple[Work, list[Drafting]],
    ) -> Outcome:  # fmt: skip
        """Outcome of the step with the seconds it took."""
        times = seconds(self.workload.times, *done)
        times.reads = self._catching(plan, advanced, twin)
        for name, rows in times.reads.items():
            times.drafts.setdefault(name, self.workload.catching * rows)
        return Outcome(results, advanced, *done, times)

    def _drawn(self, item: Item, most: int) -> Result:
        """Result of a run: the next tokens of the recorded output, pass by pass, as many as the draws accept."""
        speech, before = self.workload.outputs[item.request.id], len(item.request.output)
        ahead = speech.tokens[before : before + 1 + item.reserved(most)]
        rounds, count = list[Round](), 0
        while len(rounds) < most and count < len(ahead):
            deep = min(item.chain, item.reserved(most) - count)
            offered, kept = self.workload.rates.draw(item, self.noise, count) if deep > 0 else ([], 0)
            kept = min(kept, len(ahead) - count)
            rounds.append(Round.of(offered, kept))
            count = min(count + kept + 1, len(ahead))
        finish = speech.finish if before + count == len(speech.tokens) else None
        return Result(ahead[:count], list(range(count - 1)), rounds, emitted=count, finish=finish)

    @staticmethod
    def _catching(plan: Plan, advanced: Sequence[tuple[int, str, int]], twin: Twin) -> dict[str, int]:
        """Rows with which drafters catch up with texts that they do not draft for, by drafter."""
        rows, items = dict[str, int](), {item.request.id: item for item in plan.items}
        for number, group, length in advanced:
            item = items[number]
            if not item.nodes or twin.table.entries[item.drafter].group != group:
                arms = (arm for arm in item.request.arms if twin.table.entries[arm].group == group)
                if (keeper := next(arms, None)) is not None:
                    rows[keeper] = rows.get(keeper, 0) + length - lease_of(item.request).frontier[group]
        return rows

    def _draw(self, item: Item, twin: Twin) -> tuple[list[int], int]:
        """Rows per depth of a draft, and how deep it is kept."""
        if item.further and twin.table.entries[item.drafter].ahead == "path":
            return self._prepared(item)
        return self.workload.rates.draw(item, self.noise) if item.completes and item.nodes else ([], 0)

    def _result(self, item: Item, offered: list[int], kept: int) -> Result:
        """The next tokens of the recorded output, as many as the draw says; what follows its end is made up."""
        if not item.completes:
            return Result()
        speech, before = self.workload.outputs[item.request.id], len(item.request.output)
        ahead = speech.tokens[before : before + item.nodes + 1]
        kept = min(kept, len(offered), len(ahead))
        emitted = min(kept + 1, len(ahead))
        return Result(
            [*ahead, 0][: kept + 1],
            list(range(kept)),
            [Round.of(offered, kept)],
            emitted=emitted,
            finish=speech.finish if before + emitted == len(speech.tokens) else None,
        )

    def _prepared(self, item: Item) -> tuple[list[int], int]:
        """The draft that was made during the pass before. If all of it is kept, and the first token of what is drafted
        now is the target's own next one, what is behind that will be the next."""
        at, nodes = self.windows.pop(item.request.id, (0, 0))
        before = len(item.request.output)
        had = min(nodes if at == before else 0, item.nodes)
        drawn = item._replace(nodes=had + 1, depth=max(item.depth, had + 1))
        kept = self.workload.rates.draw(drawn, self.noise)[1]
        if kept > had:
            self.windows[item.request.id] = (before + kept, max(0, min(item.further, item.depth - had) - 1))
        return [1] * had, min(kept, had)

    @staticmethod
    def _advances(item: Item, result: Result, twin: Twin) -> list[tuple[int, str, int]]:
        """How far drafters with K/V of their own get: one that drafts keeps what it computed of what was accepted, one
        that does not catches up at a prompt's end and now and then (`draft.Ask.behind`)."""
        if item.partial:
            return []
        lease = lease_of(item.request)
        known, out = lease.length + item.given, []
        drafting = twin.table.entries[item.drafter].group if item.nodes else None
        for group, frontier in lease.frontier.items():
            if group == drafting:
                count, kept = len(result.rounds[-1].offered), result.rounds[-1].depth
                last = known + len(result.ranks) - kept  # before the last draft
                out.append((item.request.id, group, last + min(max(0, count - 1), kept)))
            elif item.behind(lease.length, frontier) and not twin.table.waits(item.request, group):
                out.append((item.request.id, group, known))
        return out

    def _check(self, twin: Twin, jobs: Sequence[WorkloadJob]) -> None:
        """A request alone, at its longest, must fit the cache, as in the engine."""
        cache = twin.desk.cache
        most = max(cache.blocks_for(len(a.prompt) + a.max_tokens) for job in jobs for a in job.arrivals)
        if most > cache.num_blocks:
            raise CapacityError(
                f"A request needs up to {most} blocks and the cache has {cache.num_blocks}; give it more."
            )


def seconds(times: StepTimes, work: Work, parts: Sequence[Drafting]) -> Times:
    """A step's time by part, as predicted."""
    nodes = judged(parts)
    drafts = {part.drafter: times.of_draft(part) for part in parts}
    rest = times.of_rest(work.requests, nodes, work.passes)
    return Times(times.of_target(work), drafts, rest, times.of_saved(work, parts))
