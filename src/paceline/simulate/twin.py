"""The deciding half of an engine, run by events in place of models: `Desk`, planner, policy and cache are its own."""

from collections.abc import Collection, Sequence

from paceline.cache.txn import Txn
from paceline.core.component import TARGET
from paceline.core.plan import Item, Plan
from paceline.core.request import Request
from paceline.engine.desk import Desk, lease_of
from paceline.engine.drafter_table import DrafterTable
from paceline.plan.cost import StepTimes
from paceline.simulate.log import Adopted, Arrival, BlocksReserved, Changed, Decision, Joined, Outcome, Setup


class Twin:
    """Decides as the engine of a `Setup` does, given the same events."""

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        self.table = DrafterTable(
            config.length, StepTimes.load(setup.times), cheap_rows=config.cheap_rows, patience=config.patience,
            known=setup.learned,
        )  # fmt: skip
        for drafter, facts in setup.entries.items():
            self.table.enrol(drafter, facts)
        self.desk = Desk.of(config, self.table, setup.groups, setup.states, lagging=setup.lagging, layers=setup.layers)
        self.requests: dict[int, Request] = {}
        """Requests that have not ended, by id."""

    def arrive(self, arrival: Arrival) -> None:
        self.requests[arrival.id] = request = arrival.request()
        if arrival.parent >= 0:
            self.desk.branch(self.requests[arrival.parent], request)
        else:
            self.desk.waiting.append(request)

    def abort(self, request: Request) -> None:
        request.finish = "abort"
        self.desk.leave(request)
        self._forget(request)

    def close(self, request: Request) -> None:
        """A branch ends where it stands."""
        self.desk.close(request)
        if request.finish is not None:
            self._forget(request)

    def join(self, joined: Joined) -> None:
        """Branches join their request."""
        request = self.requests[joined.id]
        request.max_tokens = joined.max_tokens
        self.desk.join(request, joined.branches, joined.tokens, joined.reading)

    def change(self, changed: Changed) -> None:
        """A text is changed between two steps."""
        request = self.requests[changed.id]
        if changed.extend is not None:
            self.desk.extend(request, changed.extend)
        if changed.rewind is not None:
            request.rewind(changed.rewind)
            self.desk.rewound(request)
        if changed.prompt is not None:
            request.replace_prompt(changed.prompt)
            self.desk.restart(request)

    def adopt(self, adopted: Adopted) -> None:
        """Rows whose K/V came from elsewhere enter the prefix cache, if there is room."""
        a = adopted
        txn = self.desk.adopt(a.tokens, a.groups, a.layout, a.extra_key, a.known)
        if txn is not None:
            self.desk.adopted(txn, a.tokens)

    def reserve(self, reserved: BlocksReserved) -> None:
        """Blocks are held for a text that is to come."""
        r = reserved
        if r.blocks is not None:
            self.desk.reserve(r.number, r.blocks)
        else:
            self.desk.reopen(r.number, r.groups, r.layout, r.extra_key)

    def decide(self, now: float, held: Collection[int] = ()) -> tuple[Decision, Plan]:
        """Plan the next step; a request that is pre-empted in it has lost its lease. `held`: as of `Desk.plan`."""
        admitted = self.desk.admit(now)
        plan = self.desk.plan(now, held)
        return Decision.of(admitted, plan), plan

    def fail(self, drafter: str, requests: Sequence[int]) -> None:
        """A drafter failed in this step."""
        self.table.failed(drafter)
        for request in (self.requests[i] for i in requests):
            if not request.arms:
                request.drafter = "none"

    def end(self, plan: Plan, txns: Sequence[Txn], outcome: Outcome) -> None:
        """A step is done."""
        self.desk.commit(plan, txns, outcome.results)
        for item, txn in zip(plan.items, txns):
            _hear_prompt(item, txn)
        for number, group, length in outcome.advanced:
            lease = lease_of(self.requests[number])
            if group == TARGET:
                self.desk.cache.rewind(lease, length)
            else:
                self.desk.cache.advance(lease, group, length)
                self.desk.cache.seal(lease)
        notes = self.desk.emit(plan, outcome.results)
        account = self.desk.policy.learn([*notes, *outcome.found], outcome.work, outcome.parts, outcome.times)
        self.desk.totals.account(account, plan.why)
        for item in plan.items:
            if item.request.finish is not None:
                self._forget(item.request)

    def _forget(self, request: Request) -> None:
        self.desk.table.drop(request)
        del self.requests[request.id]


def _hear_prompt(item: Item, txn: Txn) -> None:
    """Prompt log-probabilities that a pass brings, as far as decisions see them: how many there are."""
    request = item.request
    if request.params.prompt_logprobs is not None and not item.partial:
        known = min(txn.base + item.given + 1, len(request.prompt))
        request.prompt_logprobs += [None] * (known - len(request.prompt_logprobs))
