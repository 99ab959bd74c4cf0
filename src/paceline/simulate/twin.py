"""The deciding half of an engine, run by events in place of models: `Desk`, planner, chooser and cache are its own."""

from collections.abc import Sequence
from itertools import chain

from paceline.cache.txn import Txn
from paceline.core.plan import Item, Note, Plan
from paceline.core.request import Request
from paceline.engine import runs
from paceline.engine.desk import Desk, lease_of
from paceline.engine.roster import Roster
from paceline.plan.cost import StepTimes
from paceline.plan.cut import trim
from paceline.simulate.log import Arrival, Decision, Outcome, Result, Setup


class Twin:
    """Decides as the engine of a `Setup` does, given the same events."""

    def __init__(self, setup: Setup) -> None:
        self.roster = Roster.of(StepTimes.load(setup.times), setup.config.free_rows, setup.config.row)
        for drafter, entry in setup.entries.items():
            self.roster.enrol(drafter, entry)
        self.desk = Desk.of(setup.config, self.roster, setup.groups)
        self.requests: dict[int, Request] = {}
        """Those that have not ended."""

    def arrive(self, arrival: Arrival) -> None:
        self.requests[arrival.id] = request = arrival.request()
        self.desk.waiting.append(request)

    def abort(self, request: Request) -> None:
        request.finish = "abort"
        self.desk.leave(request)
        self._forget(request)

    def decide(self, now: float) -> tuple[Decision, Plan]:
        """The next step; who is pre-empted in it has lost the lease."""
        admitted = self.desk.admit(now)
        plan = self.desk.plan(now)
        return Decision.of(admitted, plan), plan

    def fail(self, drafter: str, requests: Sequence[int]) -> None:
        """A drafter failed in this step."""
        self.roster.chooser.failed(drafter)
        for request in (self.requests[i] for i in requests):
            if not request.arms:
                request.drafter = "none"

    def chain(self, drafter: str) -> bool:
        return self.roster.entries[drafter].chain

    def begin(self, plan: Plan) -> list[Txn]:
        """Reserve the rows of a step."""
        return [self.desk.begin(item, plan.passes) for item in plan.items]

    def end(self, plan: Plan, txns: Sequence[Txn], outcome: Outcome) -> None:
        """A step is done."""
        trim(plan, [result.drafted for result in outcome.results], self.chain)
        for item, txn, result in zip(plan.items, txns, outcome.results, strict=True):
            self.desk.settle(item, txn, result.ranks, result.tokens[:-1])
            _hear_prompt(item, txn)
        for number, group, length in outcome.advanced:
            lease = lease_of(self.requests[number])
            self.desk.cache.advance(lease, group, length)
            self.desk.cache.seal(lease)
        told = [self._emit(item, plan.passes, result) for item, result in zip(plan.items, outcome.results)]
        self.roster.chooser.learn([*chain(*told), *outcome.found], outcome.work, outcome.parts, outcome.times)
        for item in plan.items:
            if item.request.finish is not None:
                self._forget(item.request)

    def _emit(self, item: Item, planned: int, result: Result) -> list[Note]:
        request = item.request
        if not result.tokens:
            return []
        for token in result.tokens[: result.emitted]:
            request.append(token)
        request.finish = result.finish
        if request.finish is not None:
            self.desk.leave(request)
        if result.passes:
            return runs.notes(item, planned, result.passes, result.emitted)
        return [Note(request.id, item.drafter, item.nodes, item.depth, result.offered, result.kept)]

    def _forget(self, request: Request) -> None:
        self.roster.chooser.drop(request)
        del self.requests[request.id]


def _hear_prompt(item: Item, txn: Txn) -> None:
    """Prompt log-probabilities that a pass brings, as far as decisions see them: how many there are."""
    request = item.request
    if request.params.prompt_logprobs is not None:
        known = min(txn.base + item.given + 1, len(request.prompt))
        request.prompt_logprobs += [None] * (known - len(request.prompt_logprobs))
