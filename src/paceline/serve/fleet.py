"""Several models in one process: loaded on their first request, unloaded when idle or when others need the room."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

from paceline.core.errors import CapacityError, InputError, PacelineError
from paceline.draft import DRAFTERS
from paceline.engine.adapters import adapters_of, loras_of
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.budget import parse_bytes, shape_of
from paceline.engine.door import DOOR
from paceline.engine.options import Options
from paceline.engine.pair import drafter_of, paths
from paceline.engine.totals import Snapshot, Totals, added
from paceline.model.chain import is_chain, parts_of_chain
from paceline.model.pull import have
from paceline.reason.ensemble import load
from paceline.serve.admission import Gate
from paceline.serve.calls import HttpCall
from paceline.serve.encoders import encoder_at
from paceline.serve.errors import ApiError
from paceline.serve.pools import Pools, give_back
from paceline.serve.server import ModelFigures, Server, unknown_model
from paceline.serve.settings import Settings

log = logging.getLogger("paceline")
UNLOADED_CONTEXT_TOKENS = 1 << 20
"""Tokens of the longest context of a model that is not loaded yet."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""How long a model that could not be loaded is left alone: the time doubles with each failure, up to the last."""
ROOM_S, TURN_S = 30.0, 5.0
"""How long a model that is to be loaded waits for room in all, and for the calls of one model to end. Then that one
goes on, and the choice is made again."""
SILENT_S = 2.0
"""How long a client may take to read an answer that is complete, where its model is in the way of another."""
LOAD_S, CLOSE_S = 900.0, 30.0
"""How long a load may take, and the end of an engine, before nobody waits for it any more."""
NO_LOAD = Snapshot(0, 0, 1, 0, 0, Totals())


@dataclass(eq=False)
class Member:
    """One model of the fleet."""

    name: str
    options: Mapping[str, Any]
    """Keyword arguments of `AsyncLLM`."""
    bytes: int
    """Bytes that it may take; 0: not counted."""
    server: Server | None = None
    gate: Gate | None = None
    users: int = 0
    """Calls that use it or wait for it; while there are any it stays."""
    calls: set[HttpCall] = field(default_factory=set)
    """Calls that use the model's server now."""
    used: float = 0.0
    """Time at which the last call ended."""
    loading: "asyncio.Task[None] | None" = None
    gone: asyncio.Event | None = None
    """Set while the model is to be unloaded: new calls wait for it, so that calls before them get their turn."""
    loads: int = 0
    unloads: int = 0
    failures: int = 0
    """Loads that failed since the last that did not."""
    failed: str = ""
    """Reason for which the last load failed."""
    retry: float = 0.0
    """When the next load may be tried."""
    retired: Totals = field(default_factory=Totals)
    """Counts of the model's engines that were unloaded."""

    @property
    def state(self) -> str:
        if self.server is not None:
            return "loaded" if self.gone is None else "unloading"
        return "loading" if self.loading is not None else "failed" if self.failures else "unloaded"

    @property
    def totals(self) -> Totals:
        return self.retired if self.server is None else added(self.retired, self.server.snapshot.totals)


class Fleet:
    """A `Host` of several models. For the event loop; engines are made and ended in other threads, one at a time."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, Any]],
        settings: Settings,
        *,
        memory: int | str | None = None,
        idle_s: float = 0.0,
    ) -> None:
        """models: {name: keyword arguments of `AsyncLLM`}. memory: bytes for all that is loaded at one time, of which
        a model gets its own `memory`, else an equal share. idle_s: seconds after its last answer until a model is
        unloaded; 0: never. Raises InputError."""
        if not models:
            raise InputError("models is empty; name at least one.")
        self.settings, self.idle_s, self.pools = settings, idle_s, Pools(settings.queue_limit, settings.parted)
        self.budget = None if memory is None else parse_bytes(memory)
        share = None if self.budget is None else self.budget // len(models)
        self.members: dict[str, Member] = {}
        for name, options in models.items():
            own = options.get("memory") or share
            size = 0 if own is None else parse_bytes(own)
            if self.budget is not None and size > self.budget:
                raise InputError(
                    f"memory of model {name!r} is {size} bytes, more than the {self.budget} for all of them."
                )
            given = options if own is None else {**options, "memory": own}
            self.members[name] = Member(name, given, size)
        self._turn = asyncio.Lock()

    # -- as a host -----------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return next(iter(self.members))

    @property
    def max_len(self) -> int:
        return max((server.max_len for server in self._servers()), default=UNLOADED_CONTEXT_TOKENS)

    @property
    def alive(self) -> bool:
        return all(server.alive for server in self._servers())

    def stuck(self) -> float:
        return max((server.llm.stuck() for server in self._servers()), default=0.0)

    @property
    def snapshot(self) -> Snapshot:
        now = [server.snapshot for server in self._servers()] or [NO_LOAD]
        return Snapshot(
            sum(s.running for s in now),
            sum(s.waiting for s in now),
            sum(s.blocks for s in now),
            sum(s.used for s in now),
            sum(s.cached for s in now),
            added(*(member.totals for member in self.members.values())),
            gpu=now[0].gpu,
        )

    @property
    def max_requests(self) -> int:
        return sum(server.max_requests for server in self._servers()) or 1

    def cards(self) -> list[dict[str, Any]]:
        adapters = (s.adapter_cards(m.name) for m in self.members.values() if (s := m.server) is not None)
        return [*map(self._card, self.members.values()), *chain.from_iterable(adapters)]

    def _card(self, member: Member) -> dict[str, Any]:
        server = member.server
        card = {"id": member.name, "object": "model", "created": 0, "owned_by": "paceline", "max_model_len": None}
        known = card if server is None else server.card(member.name)
        more = {"error": member.failed} if member.failures else {}
        counts = {"loads": member.loads, "unloads": member.unloads}
        return {**known, "state": member.state, "loaded": server is not None, **counts, **more}

    def figures(self) -> dict[str, ModelFigures]:
        return {name: self._figures(member) for name, member in self.members.items()}

    def _figures(self, member: Member) -> ModelFigures:
        now = NO_LOAD if member.server is None else member.server.snapshot
        return ModelFigures(
            member.totals, now.running, now.waiting, member.server is not None, member.loads, member.unloads
        )

    def first(self) -> AsyncLLM | None:
        return next((server.llm for server in self._servers()), None)

    async def warm_up(self) -> None:
        """Nothing: each model is loaded by its first request."""

    async def of(self, name: str | None) -> Server:
        """The model, loaded if need be, and kept until the call that asks has ended."""
        member = self.members.get(self.model if name is None else name) or self._with_adapter(str(name))
        if member is None:
            raise unknown_model(str(name), list(self.members))
        while member.gone is not None:
            await member.gone.wait()
        member.users += 1
        try:
            if member.server is None:
                await asyncio.shield(self._loading(member))
        except BaseException:
            self._leave(member)
            raise
        server = member.server
        assert server is not None
        self._tie(member, server)
        return server if name in self.members else server.called(name)

    def _with_adapter(self, name: str) -> Member | None:
        """The model that has an adapter or a fine-tune of this name, loaded or in its options; of a chain the one that
        has all its parts, else the first with a zoo, which says what is wrong."""
        parts = parts_of_chain(name)

        def knows(member: Member, one: str) -> bool:
            if member.server is not None:
                return member.server.adapters.knows(one)
            loras, tunes = (member.options.get(each) or () for each in ("lora", "zoo"))
            return one in loras_of(loras) or one in adapters_of(tunes, "zoo")

        def has(member: Member) -> bool:
            return all(knows(member, one) for one in parts)

        found = next(filter(has, self.members.values()), None)
        if found is None and is_chain(name):
            return next((each for each in self.members.values() if each.options.get("zoo")), None)
        return found

    def _tie(self, member: Member, server: Server) -> None:
        """To the call that is being served: it goes through this model's gate, and its end gives the model back."""
        call = DOOR.get()
        assert isinstance(call, HttpCall), "a fleet serves calls that came through the guard"
        call.decode = server.text.decode
        member.calls.add(call)
        call.ends += [lambda: member.calls.discard(call), lambda: self._leave(member)]
        if member.gate is None:
            wish = self.settings
            member.gate = Gate(
                server.max_requests, wish.queue_limit, wish.max_prompt_tokens, wish.max_output_tokens, call.gate.seen,
                max_nodes=wish.max_nodes, parted=call.gate.budget.parted,
            )  # fmt: skip
        call.gate = member.gate

    # -- loading and unloading -------------------------------------------------------------------------------------

    def _servers(self) -> Sequence[Server]:
        return [member.server for member in self.members.values() if member.server is not None]

    def _leave(self, member: Member) -> None:
        member.users -= 1
        self._rested(member)

    def _rested(self, member: Member) -> None:
        """Called when it may have become unused."""
        member.used = monotonic()
        if not member.users and self.idle_s:
            asyncio.get_running_loop().call_later(self.idle_s, self._look, member)

    def _look(self, member: Member) -> None:
        """Has it been idle all the time since?"""
        if self._idle(member):
            self._task = asyncio.ensure_future(self._rest(member))

    def _idle(self, member: Member) -> bool:
        late = monotonic() - member.used >= self.idle_s - 0.001
        return not member.users and member.server is not None and late

    async def _rest(self, member: Member) -> None:
        async with self._turn:
            if self._idle(member):
                await self._unload(member)

    def _loading(self, member: Member) -> "asyncio.Task[None]":
        """One task for all waiting requests; it continues when they leave."""
        if member.loading is None:
            if (wait := member.retry - monotonic()) > 0:
                raise not_loaded(member, wait)
            member.loading = asyncio.ensure_future(self._load(member))
        return member.loading

    async def _load(self, member: Member) -> None:
        try:
            async with self._turn:
                await self._make_room(member)
                log.info("Loading %s.", member.name)
                member.server = await self._in_time(asyncio.ensure_future(asyncio.to_thread(self._made, member)))
                member.loads += 1
                member.failures, member.failed = 0, ""
                self._rested(member)
        except ApiError:
            raise
        except Exception as error:  # of whatever kind: it must not hurt the other models
            if not isinstance(error, PacelineError):
                log.exception("Loading %s failed.", member.name)
            member.failures += 1
            member.failed = str(error).strip().rstrip(".") or type(error).__name__
            wait = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** (member.failures - 1))
            member.retry = monotonic() + wait
            raise not_loaded(member, wait) from None
        finally:
            member.loading = None

    @staticmethod
    async def _in_time(making: "asyncio.Task[Server]") -> Server:
        """What a load brings. One that comes too late is ended when it is there."""
        done, _ = await asyncio.wait((making,), timeout=LOAD_S)
        if done:
            return making.result()

        def end(late: "asyncio.Task[Server]") -> None:
            if not late.cancelled() and late.exception() is None:
                late.result().llm.close(CLOSE_S)

        making.add_done_callback(end)
        raise CapacityError(f"it took longer than {LOAD_S:.0f} s")

    def _made(self, member: Member) -> Server:
        """An engine and the server around it; what was begun is ended where the rest fails. In a thread."""
        llm = load(**member.options)
        try:
            return Server(llm, replace(self.settings, models=None, served_model_name=(member.name,)), self.pools)
        except BaseException:
            llm.close()
            raise

    async def _make_room(self, member: Member) -> None:
        """Unload others, the one used longest ago first, once nobody uses them. ApiError 503 where they stay in use."""
        end = monotonic() + ROOM_S
        while self.budget is not None and self._loaded_bytes() + member.bytes > self.budget:
            loaded = [m for m in self.members.values() if m.server is not None]
            victim = min(loaded, key=lambda m: (m.users > 0, m.used))
            if not await self._unload(victim):
                if monotonic() > end:
                    message = f"Model {member.name!r} has no room: the others are in use. Try again in {TURN_S:.0f} s."
                    retry = {"Retry-After": f"{TURN_S:.0f}"}
                    raise ApiError(503, message, param="model", code="model_busy", headers=retry)
                await self._some_rest(loaded)

    def _loaded_bytes(self) -> int:
        return sum(m.bytes for m in self.members.values() if m.server is not None)

    @staticmethod
    async def _some_rest(loaded: Sequence[Member]) -> None:
        """Until nobody uses one of them; for a turn at most, in which those who had to wait are served."""
        end = monotonic() + TURN_S
        while all(m.users for m in loaded) and monotonic() < end:
            await asyncio.sleep(0.02)

    @staticmethod
    def _hurry(member: Member) -> None:
        """End the calls whose samples are complete and whose clients do not read them."""
        for call in [*member.calls]:
            if call.complete is not None and monotonic() - call.complete > SILENT_S:
                message = "The answer was not read in time, and its model had to make room for another; ask again."
                call.stop(ApiError(503, message, code="model_unloaded", headers={"Retry-After": "1"}))

    async def _unload(self, member: Member) -> bool:
        """Unload it when its last call has ended; False if that takes too long. New requests wait until then, and ask
        again."""
        member.gone, end = asyncio.Event(), monotonic() + TURN_S
        try:
            while member.users:
                if monotonic() > end:
                    return False
                self._hurry(member)
                await asyncio.sleep(0.005)
            server, member.server, member.gate = member.server, None, None
            assert server is not None
            log.info("Unloading %s.", member.name)
            await asyncio.to_thread(server.llm.close, CLOSE_S)
            member.retired = added(member.retired, server.llm.snapshot.totals).retired()
            member.unloads += 1
            del server
            await asyncio.to_thread(give_back)
            return True
        finally:
            member.gone.set()
            member.gone = None

    async def unload(self, name: str) -> None:
        """Unload a model, once its last call has ended; it continues when who asks leaves. ApiError 404 for a name that
        is not served, 503 where it stays in use."""
        member = self.members.get(name)
        if member is None:
            raise unknown_model(name, list(self.members))
        await asyncio.shield(self._told_to_go(member))

    async def _told_to_go(self, member: Member) -> None:
        async with self._turn:
            if member.server is not None and not await self._unload(member):
                message = f"Model {member.name!r} is in use; try again in {TURN_S:.0f} s."
                raise ApiError(503, message, param="model", code="model_busy", headers={"Retry-After": f"{TURN_S:.0f}"})

    def close(self) -> None:
        """End all engines."""
        for server in self._servers():
            server.llm.close()


def not_loaded(member: Member, wait: float) -> ApiError:
    """503 with the reason, and when a request may try again."""
    seconds = max(1, round(wait))
    message = f"Model {member.name!r} could not be loaded ({member.failed}). The next try is in {seconds} s."
    headers = {"Retry-After": str(seconds)}
    return ApiError(503, message, param="model", code="model_not_loaded", headers=headers)


def check_members(fleet: Fleet) -> None:
    """Raise InputError for an encoder, for a drafter that is unknown, and for a model whose files are here and that its
    share of the memory cannot hold."""
    for member in fleet.members.values():
        options = {name: value for name, value in member.options.items() if name != "small"}
        wish = Options(**options)
        if encoder_at(wish.model):
            raise InputError(
                f"Model {member.name!r} is an encoder, which writes no text; it gets a server of its own: "
                f"paceline serve {wish.model}"
            )
        try:
            DRAFTERS.card(drafter_of(wish)[0])
        except InputError as error:
            raise InputError(f"Model {member.name!r}: {error}") from None
        files = [None if at is None else local(at) for at in paths(wish)]
        if not member.bytes or files[0] is None:
            continue
        try:
            shape_of(wish, files[0], files[1])
        except CapacityError as error:
            raise InputError(f"Model {member.name!r}: {error}") from None


def local(model: str | Path) -> Path | None:
    """Where a model lies on this machine, if it does: nothing is fetched."""
    return Path(model) if Path(model).exists() else have(str(model))
