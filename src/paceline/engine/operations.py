"""How the operations of core/operations.py change an engine, between two steps. The deciding half of each is a method
of `Desk`, which the simulator's twin calls, too."""

from collections.abc import Mapping
from functools import singledispatchmethod
from typing import Any

from paceline.core.component import TARGET, Component
from paceline.core.errors import CapacityError, InputError, RefusalError
from paceline.core.joined import cut, joined, shift_of
from paceline.core.operations import Abort, Branch, Close, Extend, Fork, Join, Park, Replace, Resume, Rewind, Submit
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.branches import BranchFamily
from paceline.engine.components import move, stateful
from paceline.engine.desk import Desk, lease_of
from paceline.engine.drafters import DrafterPool
from paceline.engine.packing import pack, unpack
from paceline.engine.session import Session


class Operations:
    """The door of an engine. One thread owns it."""

    def __init__(
        self, session: Session, desk: Desk, drafters: DrafterPool, components: Mapping[str, Component]
    ) -> None:
        self.session, self.desk, self.drafters, self.components = session, desk, drafters, components

    @singledispatchmethod
    def apply(self, operation: Any, now: float) -> Any:
        """The requests that it made, or of `Park` bytes. InputError, and nothing has changed, for one that names an
        unknown or ended request, or cannot be done."""
        raise InputError(f"{operation!r} is not an operation of core/operations.py.")

    @apply.register
    def _submit(self, operation: Submit, now: float) -> list[Request]:
        o = operation
        requests = self.session.submit(o.prompt, o.params, now, o.lineage, o.offset)
        self._queue(requests)
        return requests

    @apply.register
    def _abort(self, operation: Abort, now: float) -> None:
        request = self.session.live(operation.id)
        for branch in self.desk.branches.get(request.id, BranchFamily(request)).live.copy():
            self._abort(Abort(branch), now)
        self.drafters.recorder.operated(operation)
        request.finish = "abort"
        self._leave(request)

    @apply.register
    def _extend(self, operation: Extend, now: float) -> None:
        request = self._changeable(operation.id)
        self.session.check_tokens(operation.tokens)
        if len(operation.tokens) >= request.left:
            raise InputError(
                f"{len(operation.tokens)} tokens do not fit request {request.id}, which may get {request.left} more "
                "and needs room for one; raise its max_tokens."
            )
        if request.params.logprobs is not None:
            raise RefusalError("A request with log-probabilities cannot be extended: new tokens have none.")
        self.drafters.recorder.operated(operation)
        self.desk.extend(request, operation.tokens)
        self.session.extend(request, operation.tokens)

    @apply.register
    def _fork(self, operation: Fork, now: float) -> list[Request]:
        request = self._changeable(operation.id)
        if operation.count < 1:
            raise InputError(f"A fork makes at least one request, not {operation.count}.")
        children = [request.fork(self.session.number()) for _ in range(operation.count)]
        for child in children:
            child.arrival = now
        self.session.admit(children)
        self._queue(children)
        return children

    @apply.register
    def _branch(self, operation: Branch, now: float) -> list[Request]:
        waits = operation.id in self.desk.branches
        request = self.session.live(operation.id) if waits else self._changeable(operation.id)
        params = operation.params
        if operation.count < 1:
            raise InputError(f"A request has at least one branch, not {operation.count}.")
        self._check_branch(request, params)
        children = [request.branch(self.session.number(), params) for _ in range(operation.count)]
        for child in children:
            child.arrival = now
        self.session.admit(children)
        self.drafters.forget(request)
        for child in children:
            self.desk.branch(request, child)
            self.drafters.recorder.arrived(child)
        return children

    def _check_branch(self, request: Request, params: SamplingParams | None) -> None:
        """Can it have branches, with these parameters?"""
        if "join" not in self.components[TARGET].abilities:
            raise RefusalError(
                "This model cannot join branches: some of its layers see a window of the text, or keep a state of it."
            )
        wishes = params or request.params
        if request.params.logprobs is not None or wishes.logprobs is not None:
            raise RefusalError("A request with log-probabilities cannot have branches: joined tokens have none.")
        if wishes.n != 1 or (wishes.drafter or request.drafter) != request.drafter:
            raise InputError("Branches have their request's drafter, and n of 1; leave both out.")
        if (wishes.verifier or request.verifier) != request.verifier:
            raise InputError("Branches have their request's verifier; leave it out.")

    @apply.register
    def _close(self, operation: Close, now: float) -> None:
        request = self._changeable(operation.id)
        if self.desk.branches.of(request) is None:
            raise InputError(f"Request {request.id} is not a branch to be joined; abort it to end it.")
        self.drafters.recorder.operated(operation)
        self.desk.close(request)
        if request.finish is not None:
            self.session.leave(request)
            self.desk.policy.drop(request)

    @apply.register
    def _join(self, operation: Join, now: float) -> None:
        request = self.session.live(operation.id)
        family = self.desk.branches.get(request.id)
        if family is None:
            raise InputError(f"Request {request.id} has no branches to join.")
        branches = family.named(operation.branches)
        self.session.check_tokens(operation.tokens)
        if not operation.tokens:
            raise InputError("A join has at least one token after the branches: the text continues from it.")
        layout = joined(branches[0].common, [(len(branch.tokens), branch.layout) for branch in branches])
        size = sum(len(branch.tokens) - branch.common for branch in branches)
        output = len(request.output) + size + len(operation.tokens)
        shift = shift_of(layout)
        room = self.session.longest - len(request.prompt)
        if output >= room:
            raise CapacityError(
                f"The joined text of {output + len(request.prompt)} tokens leaves no room in the context and the "
                f"cache, which hold {self.session.longest}; join fewer or shorter branches."
            )
        if output - shift >= request.max_tokens:
            raise InputError(
                f"The longest branch and {len(operation.tokens)} tokens are {output - shift} tokens of output, and "
                f"request {request.id} may get {request.max_tokens} and needs room for one; raise its max_tokens."
            )
        for number in family.live.copy():
            self._abort(Abort(number), now)
        request.max_tokens = min(request.max_tokens, room - shift)
        reading = self.drafters.hidden.groups
        self.drafters.recorder.joined(operation, request.max_tokens, reading)
        before = len(request.output)
        moves = self.desk.join(request, operation.branches, operation.tokens, reading)
        move(self.components, moves)
        self.session.extend(request, request.output[before:])

    def _changeable(self, number: int) -> Request:
        """The request of this id. InputError when it waits for its branches, or has ended."""
        request = self.session.live(number)
        if number in self.desk.branches:
            raise InputError(f"Request {number} waits for its branches; join or abort them first.")
        if request.closing is not None:
            raise InputError(f"Branch {number} has ended.")
        return request

    @apply.register
    def _rewind(self, operation: Rewind, now: float) -> None:
        request = self._changeable(operation.id)
        if not 0 <= operation.length <= len(request.output):
            raise InputError(
                f"Request {request.id} has {len(request.output)} tokens of output; it cannot be rewound to "
                f"{operation.length}."
            )
        place = len(request.prompt) + operation.length
        if place < request.common or cut(request.layout, place) is None:
            raise InputError(
                f"Request {request.id} cannot be rewound to {operation.length}: that is before it became a branch, or "
                "inside branches that were joined."
            )
        self.drafters.recorder.operated(operation)
        request.rewind(operation.length, operation.redraw)
        self.desk.rewound(request)
        self._again(request)

    @apply.register
    def _replace(self, operation: Replace, now: float) -> None:
        request = self._changeable(operation.id)
        if request.common:
            raise InputError(f"Request {request.id} is a branch; its prompt is its request's.")
        self.session.check_prompt(operation.prompt)
        self.session.check_capacity(len(operation.prompt), request.max_tokens + request.shift)
        self.drafters.recorder.operated(operation)
        request.replace_prompt(operation.prompt)
        self.desk.restart(request)
        self._again(request)

    @apply.register
    def _park(self, operation: Park, now: float) -> bytes:
        request = self._changeable(operation.id)
        rows, kv = 0, dict[str, bytes]()
        if request.lease is not None:
            lease = lease_of(request)
            rows = lease.sealed * lease.pool.block_size
            slots = lease.slots(0, rows)
            kv = {group: self.components[group].read(slots) for group in sorted(lease.groups)} if rows else {}
        packed = pack(request, rows, kv, self.components, self.desk.cache.block_size)
        self.drafters.recorder.operated(operation)
        self._leave(request)
        return packed

    @apply.register
    def _resume(self, operation: Resume, now: float) -> list[Request]:
        packed = unpack(operation.packed, self.components)
        arms = self.drafters.arms(packed.fields["drafter"], packed.fields["verifier"])
        kept = {name: value for name, value in packed.fields.items() if name != "lineage"}
        request = Request(
            self.session.number(), params=packed.params, eos=self.session.eos, arms=arms, arrival=now,
            lineage=tuple(packed.fields["lineage"]), layout=packed.layout, **kept,
        )  # fmt: skip
        request.group = request.id
        self.session.check_prompt(request.prompt)
        self.session.admit([request])
        groups = tuple(group for group in packed.kv if group in self.components)
        alike = packed.block == self.desk.cache.block_size or not stateful(self.components)
        rows = packed.rows if alike else 0  # else no state lies behind our blocks: the rows are computed again
        txn = self.desk.adopt(request.tokens[:rows], groups, packed.layout)
        if txn is not None:
            for group in groups:
                self.components[group].write(txn.slots, packed.kv[group])
            self.desk.adopted(txn, request.tokens[: packed.rows])
            self.drafters.recorder.adopted(request.tokens[: packed.rows], groups, packed.layout)
        self._queue([request])
        return [request]

    def _queue(self, requests: list[Request]) -> None:
        self.desk.waiting.extend(requests)
        for request in requests:
            self.drafters.recorder.arrived(request)

    def _leave(self, request: Request) -> None:
        self.desk.leave(request)
        self.session.leave(request)
        self.desk.policy.drop(request)

    def _again(self, request: Request) -> None:
        """Restart what follows a text that has changed."""
        self.drafters.forget(request)
        self.session.again(request)
