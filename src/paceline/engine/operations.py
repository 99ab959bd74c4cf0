"""How the operations of core/operations.py change an engine, between two steps. The deciding half of each is a method
of `Desk`, which the simulator's twin calls, too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from paceline.cache.txn import Txn
from paceline.core.component import TARGET, Component
from paceline.core.errors import CapacityError, InputError, PacelineError, RefusalError
from paceline.core.joined import cut, joined, shift_of
from paceline.core.operations import (
    Abort,
    Branch,
    Close,
    Extend,
    Fork,
    Join,
    Park,
    Peek,
    Replace,
    Reserve,
    Resume,
    Rewind,
    Settle,
    Submit,
)
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.draft import DRAFTERS
from paceline.engine.branches import BranchFamily
from paceline.engine.components import move, stateful
from paceline.engine.desk import Desk, lease_of
from paceline.engine.disk_cache import DiskCache, Recall
from paceline.engine.drafters import DrafterPool
from paceline.engine.identity import identity_of
from paceline.engine.kv import BlockBytes
from paceline.engine.packing import Origin, ParkedRequest, check_packable, imported_key, pack, unpack
from paceline.engine.session import Session
from paceline.engine.slots import Slots
from paceline.engine.transfer import Transfers, is_piece
from paceline.plan import POLICIES
from paceline.schedule import policies as schedules


class Operations:
    """The door of an engine. One thread owns it."""

    def __init__(
        self, session: Session, desk: Desk, drafters: DrafterPool, components: Mapping[str, Component]
    ) -> None:
        self.session, self.desk, self.drafters, self.components = session, desk, drafters, components
        self.kv = BlockBytes(components, whole=desk.cache.pool.snapshots is None)
        target = components[TARGET]
        self.origin = Origin(identity_of(target), target.vocab_size, "join" in target.abilities)
        self.transfers = Transfers(desk, self.kv, self.origin)
        self.disk: DiskCache | None = None
        self.slots: Slots | None = None

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
        request = self._entered(self.session.live(operation.id))
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
        request = self._entered(self.session.live(operation.id)) if waits else self._changeable(operation.id)
        params = operation.params
        if operation.count < 1:
            raise InputError(f"A request has at least one branch, not {operation.count}.")
        self._check_branch(request, params)
        if request in self.session.adapters.waiting:
            raise InputError(f"Request {request.id} waits for its adapter; it can have branches when it has begun.")
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
            self.desk.table.drop(request)

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
        request = self._entered(self.session.live(number))
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
        request = self.check_parkable(operation.id)
        packed = self._packed(request, now, operation.from_block)
        self.drafters.recorder.operated(operation)
        request.finish = "parked"
        self._leave(request)
        return packed

    def check_parkable(self, number: int) -> Request:
        """The request of this id. InputError or RefusalError when it cannot be parked."""
        request = self._changeable(number)
        check_packable(request)
        return request

    def _packed(self, request: Request, now: float, first: int) -> bytes:
        size, lease = self.desk.cache.block_size, request.lease
        sealed = 0 if lease is None else lease_of(request).sealed
        if not 0 <= first <= sealed:
            raise InputError(
                f"Request {request.id} has {sealed} sealed blocks; from_block is {first}, but at most that."
            )
        groups = [] if lease is None else sorted(lease_of(request).groups)
        slots = [] if lease is None else lease_of(request).slots(first * size, sealed * size)
        forms = {group: self.kv.forms[group] for group in groups if group in self.kv.forms}
        blocks = self.kv.read(slots, size, forms) if forms else []
        text = None if self.session.tokenizer is None else request.text
        return pack(request, self.origin, now, text, size, forms, blocks, first)

    @apply.register
    def _resume(self, operation: Resume, now: float) -> list[Request]:
        parked = unpack(operation.packed, self.origin)
        if parked.first:
            raise InputError(f"The parked request lacks the K/V of its first {parked.first} blocks; `Settle` takes it.")
        request = self._unparked(parked, now, operation.client)
        self._adopt(parked, request, operation.packed)
        self._queue([request])
        return [request]

    @apply.register
    def _peek(self, operation: Peek, now: float) -> bytes:
        return self.transfers.peek(self._changeable(operation.id), operation.from_block)

    @apply.register
    def _reserve(self, operation: Reserve, now: float) -> int:
        self.expire(now)
        return self.transfers.reserve(operation, now, self.drafters.recorder)

    @apply.register
    def _settle(self, operation: Settle, now: float) -> int | list[Request]:
        self.expire(now)
        number, packed, transfers = operation.reservation, operation.packed, self.transfers
        if packed is None:
            transfers.release(number, self.drafters.recorder)
            return 0
        if number in transfers.table.settled:
            request = self.session.requests.get(transfers.table.settled[number])
            if request is None:
                raise InputError(f"Reservation {number} was settled, and its request has ended.")
            return [request]
        if is_piece(packed):
            return transfers.fill(number, packed, now, self.drafters.recorder)
        parked = unpack(packed, self.origin)
        transfers.check(number, parked, now)
        request = self._unparked(parked, now, operation.client)
        transfers.settle(number, parked, request, self.drafters.recorder)
        self._queue([request], found=True)
        return [request]

    def expire(self, now: float) -> None:
        """Give reservations back whose time has run out."""
        self.transfers.expire(now, self.drafters.recorder)

    def _unparked(self, parked: ParkedRequest, now: float, client: str) -> Request:
        """The request, admitted, but not queued yet; nothing has changed where this raises."""
        for group, form in parked.forms.items():
            if self.kv.forms.get(group) == form and parked.blocks and parked.block <= self._most_rows:
                need, have = self.kv.size(group, parked.block), len(parked.blocks[0][list(parked.forms).index(group)])
                if need != have:
                    raise InputError(
                        f"The parked request has {have} bytes a block in {group}, but {need} are expected."
                    )
        schedules.check_wishes(parked.fields["params"], self.session.config.order)
        drafter, arms = self._drafter(parked.fields["drafter"], parked.fields["verifier"])
        request = Request(
            self.session.number(), arms=arms, arrival=now - parked.age,
            **{**parked.fields, "drafter": drafter, "params": replace(parked.fields["params"], client=client)},
        )  # fmt: skip
        request.group = request.id
        request.admitted = None if parked.waited is None else request.arrival + parked.waited
        try:
            self.session.check_prompt(request.prompt)
            if request.adapter:
                request.adapter_slot = self.session.adapters.by_digest(
                    request.adapter, request.params.tenant, request.params.adapter
                )
            self.session.admit([request])
            self.session.retell(request, parked.text)
        except BaseException as error:
            self.session.disown(request)
            if isinstance(error, TypeError | ValueError | OverflowError) and not isinstance(error, PacelineError):
                raise InputError(f"The parked request cannot be used: {error}; park it again.") from None
            raise
        return request

    @property
    def _most_rows(self) -> int:
        return self.desk.cache.num_blocks * self.desk.cache.block_size

    def _drafter(self, drafter: str, verifier: str) -> tuple[str, tuple[str, ...]]:
        """Drafter and arms for a request that comes from elsewhere: under `exact` the text does not depend on
        it, so where the drafter is not known, or is a choice in an engine that chooses nothing, the engine's own does,
        or none."""
        own = self.session.config.drafter
        names = [drafter, own, "none"] if verifier == "exact" else [drafter]
        chooses = POLICIES.card(self.session.config.length).arms and DRAFTERS.card(own).arms
        for name in names[:-1]:
            try:
                if chooses or not DRAFTERS.card(name).arms:
                    return name, self.drafters.arms(name, verifier)
            except PacelineError:
                continue
        if not chooses and verifier != "exact" and DRAFTERS.card(drafter).arms:
            raise RefusalError(f"This engine does not choose between drafters, but the request has {drafter!r}.")
        return names[-1], self.drafters.arms(names[-1], verifier)

    def _adopt(self, parked: ParkedRequest, request: Request, packed: bytes) -> None:
        """Its K/V enters the prefix cache, as far as it fits: of this model and arithmetic, and where there is room. A
        drafter's part that does not fit is computed again. Nobody can tell whether K/V is that of its text, so it is
        found by requests of the same bytes alone."""
        fitting, size = self.kv.alike(parked.forms), self.desk.cache.block_size
        alike = parked.block == size
        if TARGET not in fitting or not parked.rows or (not alike and stateful(self.components)):
            return  # no state lies behind our blocks then, or the numbers are others': the rows are computed again
        tokens, groups = request.tokens[: parked.rows], tuple(group for group in fitting if group != TARGET)
        request.imported = imported_key(packed)
        txn = self.desk.adopt(tokens, groups, request.layout, request.kv_key, known=alike)
        self.drafters.recorder.adopted(tokens, groups, request.layout, request.kv_key, alike)
        if txn is None:
            return
        names = list(parked.forms)
        blocks = [[parts[names.index(group)] for group in fitting] for parts in parked.blocks[txn.base // size :]]
        self._write(request, txn, parked.block, fitting, blocks)
        self.desk.adopted(txn, tokens)

    def _write(self, request: Request, txn: Txn, rows: int, groups: Sequence[str], blocks: list[list[bytes]]) -> None:
        """K/V into a Txn's slots; the request leaves where that fails."""
        try:
            self.kv.write(txn.slots, rows, groups, blocks)
        except BaseException:
            self.desk.cache.close(txn.lease)
            request.finish = "error"
            self._leave(request)
            raise

    def seat(self, now: float) -> None:
        """Queue the requests that have their adapter now; one that cannot have it any more ends."""
        for request in self.session.adapters.seated(now):
            if request.finish is None:
                self._queue([request])
            else:
                self._leave(request)

    def arrive(self, wait: bool) -> None:
        """Queue the requests whose K/V was read from disk. `wait`: a moment for one, where nothing else is to do."""
        assert self.disk is not None
        for recall in self.disk.arrived(wait):
            self._recalled(recall)
            self._queue([recall.request, *recall.others], found=True)

    def _recalled(self, recall: Recall) -> None:
        """K/V from disk enters the prefix cache."""
        assert self.disk is not None
        request, size = recall.request, self.desk.cache.block_size
        found, blocks = self.disk.fitting(recall)
        if not blocks:
            return
        tokens = request.tokens[: (recall.first + len(blocks)) * size]
        groups = tuple(group for group in found if group != TARGET)
        txn = self.desk.adopt(tokens, groups, request.layout, request.kv_key, known=True)
        self.drafters.recorder.adopted(tokens, groups, request.layout, request.kv_key, True)
        if txn is not None:
            self.kv.write(txn.slots, size, found, blocks[txn.base // size - recall.first :])
            self.desk.adopted(txn, tokens)

    def put(self, tokens: list[int], blocks: Sequence[Mapping[str, bytes]], extra_key: str) -> int:
        """Blocks of a text enter the prefix cache; how many of its tokens are there then."""
        size = self.desk.cache.block_size
        groups = sorted(set[str].intersection(*({*each} for each in blocks))) if blocks else []
        extra = tuple(group for group in groups if group != TARGET)
        txn = self.desk.adopt(tokens, extra, (), extra_key, known=True)
        self.drafters.recorder.adopted(tokens, extra, (), extra_key, True)
        if txn is not None:
            parts = [[each[group] for group in groups] for each in blocks[txn.base // size :]]
            self.kv.write(txn.slots, size, groups, parts)
            self.desk.adopted(txn, tokens)
        names, index = self.desk.cache.names([*tokens, 0], extra_key), self.desk.cache.pool.index
        return size * sum(name in index for name in names)

    def drop(self, tokens: list[int], request: Request) -> None:
        """K/V of these tokens of a request leaves the prefix cache where nobody holds it."""
        self.desk.drop(tokens, request.kv_key, request.layout)
        self.drafters.recorder.dropped(tokens, request.kv_key, request.layout)

    def _entered(self, request: Request) -> Request:
        """The request, which arrives now if it still waits for a disk."""
        if self.disk is not None and self.disk.give_up(request):
            self._queue([request], found=True)
        return request

    def _queue(self, requests: list[Request], found: bool = False) -> None:
        """`found`: nothing more is looked for on disk."""
        if any(request.adapter and not request.adapter_slot for request in requests):
            self.session.adapters.waiting.extend(requests)  # samples of one prompt: all of them
            return
        if self.disk is not None and not found:
            requests = [request for request in requests if not self.disk.recall(request)]
        self.desk.waiting.extend(requests)
        for request in requests:
            if self.slots is not None:
                self.slots.take(request)
            self.drafters.recorder.arrived(request)

    def _leave(self, request: Request) -> None:
        self.desk.leave(request)
        self.session.leave(request)
        self.desk.table.drop(request)

    def _again(self, request: Request) -> None:
        """Restart what follows a text that has changed."""
        self.drafters.forget(request)
        self.session.again(request)
