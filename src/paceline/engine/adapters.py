"""Adapters of an engine by name: loaded, used, replaced and unloaded while requests run.

    read (any thread) ─▶ enter (engine's thread) ─▶ use, at a request's arrival ─▶ hold until it has ended ─▶ idle
                                                     └▶ waiting, while others in use leave no room for it

A request keeps the version that it began with: an adapter that is unloaded or replaced under its name leaves memory
with its last request. Where there are too many, idle ones leave memory, the one unused for longest first; their names
stay, and the next request reads them again. Where all are in use, a request waits and has not arrived yet, as far as
decisions see: its turn comes when another adapter is idle.

Fine-tunes and chains of them (engine/zoo.py) are adapters, too, which put whole layers in place of the model's. A chain
that nobody has named before is put together when the first request names it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.core.errors import CapacityError, CheckpointError, InputError, PacelineError, RefusalError
from paceline.core.request import Request
from paceline.engine.own_drafts import OwnDrafts, with_own
from paceline.engine.zoo import MOST_CHAINS, Zoo
from paceline.model.blockzoo import located
from paceline.model.chain import Chain, is_chain, read_chain, shown
from paceline.model.chained import ChainWeights
from paceline.model.lora import MAX_LORA_RANK, LoraWeights, read_lora

log = logging.getLogger("paceline")
MOST_ADAPTERS = 1000
"""Largest `max_loras`."""
MOST_ADAPTER_NAMES = 10_000
"""Most adapters that requests can name."""
ADAPTER_PATIENCE_S = 2.0
"""Wait for room after which requests for adapters that are in memory wait, too, in the order of their arrival."""
ADAPTER_KEY = "\x1flora:"
"""Between a tenant and the digest of an adapter, in the name under which K/V is kept. No tenant's name has it."""
OWN_DRAFT = ",draft="
"""Between the directories of an adapter and of its own draft."""


class TableOfSlots(Protocol):
    """What of a decoder holds adapters (model/adapters.py, model/native_adapters.py)."""

    bytes: dict[int, int]

    def install(self, slot: int, weights: LoraWeights) -> int: ...
    def remove(self, slot: int) -> None: ...


class NoAdapterError(InputError):
    """No adapter has this name, or none has it any more."""


class LostAdapterError(CheckpointError):
    """An adapter has left memory, and its files cannot be read again."""


class AdapterWaitError(CapacityError):
    """Adapters in use leave no room for another one now."""


@dataclass(eq=False, slots=True)
class LoadedAdapter:
    """A version of an adapter."""

    name: str
    path: Path | Chain
    """Path of the adapter's files, or the chain of layers that it stands for."""
    digest: str
    rank: int
    draft: Path | None = None
    """Path of the adapter's own draft, if it has one."""
    slot: int = 0
    """Slot of the adapter in memory; 0: it is not in memory."""
    users: set[object] = field(default_factory=set)
    """Ids of the requests that are computed with it, and embeddings."""
    waiters: set[int] = field(default_factory=set)
    """Ids of the requests that wait for room for it."""
    used: int = 0
    """When a request last began with it, in arrivals."""


class Adapters:
    """The adapters of an engine. One thread owns it; `read` is for any."""

    def __init__(
        self, model: Any, most: int = 16, memory: int | None = None, max_rank: int = MAX_LORA_RANK,
        drafts: OwnDrafts | None = None,
    ) -> None:  # fmt: skip
        """`most`: adapters in memory at one time; `memory`: their bytes."""
        if not 0 < most <= MOST_ADAPTERS:
            raise InputError(f"max_loras is {most}, but it must be between 1 and {MOST_ADAPTERS}.")
        self.model, self.most, self.memory, self.max_rank, self.drafts = model, most, memory, max_rank, drafts
        self.named: dict[str, LoadedAdapter] = {}
        self.leaving: list[LoadedAdapter] = []
        """Versions that were unloaded or replaced while requests used them."""
        self.waiting: list[Request] = []
        """Requests without room for their adapter, the longest first."""
        self._wanted: dict[int, LoadedAdapter] = {}
        """What each of them waits for: also when it is unloaded meanwhile."""
        self.loads = self.unloads = 0
        self._uses = 0
        self.zoo: Zoo | None = None
        """Fine-tunes of the model, where it has some."""

    @property
    def table(self) -> TableOfSlots:
        """Table of the decoder."""
        table: TableOfSlots = self.model.adapt()
        return table

    @property
    def bytes(self) -> int:
        """What all adapters in memory take."""
        return self._held if self.named or self.leaving else 0

    @property
    def _held(self) -> int:
        """Bytes of all slots, with that of an adapter that is being installed."""
        return sum(self.table.bytes.values()) + (0 if self.drafts is None else self.drafts.bytes)

    @property
    def running(self) -> list[str]:
        """Names of those that requests are computed with now."""
        return sorted(each.name for each in self._all() if each.users)

    @property
    def awaited(self) -> list[str]:
        """Names of those that requests wait for, since others in use leave no room."""
        return sorted({each.name for each in self._all() if each.waiters})

    @property
    def places(self) -> dict[str, str]:
        """{name: where it lies, or its layers}, but for chains that are named by their layers."""
        found = sorted(self.named.items())
        return {n: shown(it.path) if isinstance(it.path, tuple) else str(it.path) for n, it in found if not is_chain(n)}

    def serves(self, name: str) -> bool:
        """May a request name this?"""
        return name in self.named or (self.zoo is not None and is_chain(name))

    def knows(self, name: str) -> bool:
        """Is this an adapter, a fine-tune, or the base's own name in chains?"""
        return name in self.named or (self.zoo is not None and name in self.zoo.models)

    def parts(self, digest: str) -> bool:
        """Whether the adapter with this digest has layers of its own."""
        return any(it.digest == digest for it in self._all() if isinstance(it.path, tuple))

    def _all(self) -> tuple[LoadedAdapter, ...]:
        return *self.named.values(), *self.leaving

    def chain(self, name: str) -> LoadedAdapter:
        """Serve a chain under its own name. InputError for one that cannot be; CapacityError where too many are in
        use."""
        assert self.zoo is not None
        chain = read_chain(name)
        given = {link.model for link in chain} - self.zoo.models.keys()
        loras = {it: path for it in given if it in self.named and isinstance(path := self.named[it].path, Path)}
        made = self.zoo.composed(chain, {it: self.lora(path) for it, path in loras.items()})
        known = [it for it in self.named.values() if is_chain(it.name)]
        if len(known) >= MOST_CHAINS:
            idle = [it for it in known if not it.users and not it.waiters]
            if not idle:
                raise CapacityError(f"{len(known)} chains are in use; try again later.")
            self.remove(min(idle, key=lambda it: it.used).name)
        self.enter(name, chain, made)
        return self.named[name]

    def read(self, path: Path | Chain, draft: Path | None = None) -> LoraWeights | ChainWeights:
        """An adapter's weights, checked against the model, with its own draft."""
        if isinstance(path, Path):
            weights = self.lora(path)
            if draft is None:
                return weights
            if self.drafts is None:
                raise RefusalError(f"No adapter has a draft of its own here ({draft}).")
            return with_own(weights, self.drafts.read(draft))
        assert self.zoo is not None
        loras = {link.model: self.named[link.model].path for link in path if link.model not in self.zoo.models}
        return self.zoo.composed(path, {it: self.lora(at) for it, at in loras.items() if isinstance(at, Path)})

    def lora(self, path: Path) -> LoraWeights:
        """A pair of factors for each linear layer, from a directory or a file."""
        if not hasattr(self.model, "adapt"):
            raise RefusalError("This model cannot have adapters.")
        return read_lora(path, self.model.spec, self.max_rank)

    def check_name(self, name: str, replace: bool) -> None:
        """InputError for a name that is none, or that is taken."""
        if not name or len(name) > 200 or not name.isprintable():
            raise InputError(f"{name[:40]!r} cannot be the name of an adapter; give a short text.")
        if name not in self.named and len(self.named) >= MOST_ADAPTER_NAMES:
            raise CapacityError(
                f"{len(self.named):,} adapters have names here, which is the most; unload others first."
            )
        if name in self.named and not replace:
            raise InputError(f"The adapter {name!r} is loaded already; unload it first, or load it in place.")

    def enter(
        self, name: str, path: Path | Chain, weights: LoraWeights | ChainWeights, replace: bool = False,
        draft: Path | None = None,
    ) -> None:  # fmt: skip
        """Serve an adapter under this name, of which `read` gave the weights; where those in use leave no room, its
        first request reads it. CapacityError where there is never room; nothing has changed then."""
        self.check_name(name, replace)
        if isinstance(path, Path) and is_chain(name):
            raise InputError(f"{name[:40]!r} cannot be the name of an adapter: it is that of a chain.")
        known = self.named.get(name)
        if known is not None and known.digest == weights.digest:
            known.path, known.draft = path, draft
            return
        made = LoadedAdapter(name, path, weights.digest, weights.rank, draft)
        try:
            self._install(made, weights)
        except AdapterWaitError:
            made.slot = 0
        if known is not None:
            self.remove(name)
        self.named[name] = made

    def remove(self, name: str) -> None:
        """Serve an adapter no more. It stays in memory for the requests that use it. InputError for an unknown name."""
        if name not in self.named:
            raise InputError(f"There is no adapter {name[:100]!r} here.")
        gone = self.named.pop(name)
        if gone.users or gone.waiters:
            self.leaving.append(gone)
        else:
            self._evict(gone)
        self.unloads += 1

    def key(self, tenant: str, name: str, now: float | None = None) -> tuple[str, str, int]:
        """(name of K/V, digest, slot) for a request that arrives; ("tenant", "", 0) without an adapter. InputError for
        an adapter that is not here. Where others leave no room for it, AdapterWaitError; with `now`, the slot is 0: the
        request must wait, then as when others have waited for long."""
        if not name:
            return tenant, "", 0
        found = self.named.get(name)
        if found is None and self.serves(name):
            found = self.chain(name)
        if found is None:
            known = ", ".join(sorted(self.named)) or "none"
            raise NoAdapterError(f"There is no adapter {name[:100]!r} here; known: {known}.")
        if now is not None and self._late(now):
            return kv_name(tenant, found.digest), found.digest, 0
        try:
            return self._ready(found, tenant)
        except AdapterWaitError:
            if now is None:
                raise
            return kv_name(tenant, found.digest), found.digest, 0

    def _late(self, now: float) -> bool:
        """Has somebody waited for long?"""
        return bool(self.waiting) and now - self.waiting[0].arrival > ADAPTER_PATIENCE_S

    def seated(self, now: float) -> list[Request]:
        """Waiting requests whose adapter is in memory now, and those that have ended because their adapter is gone."""
        found = list[Request]()
        for request in list(self.waiting):
            try:
                mine = self._wanted[request.id]
                key, digest, slot = self._ready(mine, request.params.tenant)
                if request.output and digest != request.adapter:  # it was parked, and goes on by one version alone
                    raise InputError(f"The adapter {mine.name!r} has changed at {mine.path}.")
                request.extra_key, request.adapter, request.adapter_slot = key, digest, slot
            except AdapterWaitError:
                if self._late(now):
                    break
                continue
            except PacelineError as error:
                log.warning("Request %d cannot have its adapter any more: %s", request.id, error)
                request.finish, request.error = "error", str(error)
            self.hold(request)
            self._leave_line(request)
            found.append(request)
        return found

    def by_digest(self, digest: str, tenant: str, name: str = "") -> int:
        """The slot of an adapter for a request that comes from elsewhere. A chain of this name is put together where
        nobody has named it here. InputError where it is not here."""
        found = next((each for each in self._all() if each.digest == digest), None)
        if found is None and name not in self.named and self.serves(name) and self.chain(name).digest == digest:
            found = self.named[name]
        if found is None:
            raise InputError(f"The parked request needs the adapter with digest {digest[:32]}; load it first.")
        try:
            _, now, slot = self._ready(found, tenant)
        except AdapterWaitError:
            return 0
        if now != digest:
            raise InputError(
                f"The parked request needs the adapter {found.name!r} as it was; {found.path} has changed."
            )
        return slot

    def _ready(self, found: LoadedAdapter, tenant: str) -> tuple[str, str, int]:
        if not found.slot:
            weights = self._again(found)
            if weights.digest != found.digest:
                log.info("The adapter %s has changed at %s; its new version is served.", found.name, found.path)
                found.digest, found.rank = weights.digest, weights.rank
            self._install(found, weights)
        self._uses += 1
        found.used = self._uses
        return kv_name(tenant, found.digest), found.digest, found.slot

    def _again(self, found: LoadedAdapter) -> LoraWeights | ChainWeights:
        """The weights of an adapter that has left memory. The log alone says where its files are."""
        try:
            return self.read(found.path, found.draft)
        except (CheckpointError, RefusalError, InputError) as error:
            log.warning("The adapter %s cannot be read again: %s", found.name, error)
            raise LostAdapterError(
                f"The adapter {found.name!r} has left memory for others, and its files cannot be read again; load it "
                "again, or unload it. The server's log says why."
            ) from None

    def hold(self, request: Request) -> None:
        """A request was admitted, or has its adapter now."""
        if request.adapter_slot:
            self._of(request.adapter_slot).users.add(request.id)
        elif request.adapter and request.id not in self._wanted:
            every = self._all()
            self._wanted[request.id] = mine = next(each for each in every if each.digest == request.adapter)
            mine.waiters.add(request.id)

    def _leave_line(self, request: Request) -> None:
        """A request waits no more."""
        if request in self.waiting:
            self.waiting.remove(request)
        if (mine := self._wanted.pop(request.id, None)) is not None:
            mine.waiters.discard(request.id)
            self._part(mine)

    def lend(self, name: str, user: object) -> int:
        """The slot of an adapter, held for `user` until `give_back`; 0 without a name. Raises as `key`."""
        slot = self.key("", name)[2]
        if slot:
            self._of(slot).users.add(user)
        return slot

    def release(self, request: Request) -> None:
        """A request has ended."""
        self._leave_line(request)
        self.give_back(request.adapter_slot, request.id)

    def give_back(self, slot: int, user: object) -> None:
        """Something that used an adapter has ended."""
        if not slot:
            return
        mine = self._of(slot)
        mine.users.discard(user)
        self._part(mine)

    def _part(self, it: LoadedAdapter) -> None:
        """Let go of a version that was unloaded, once nobody uses it or waits for it."""
        if it in self.leaving and not it.users and not it.waiters:
            self.leaving.remove(it)
            self._evict(it)

    def _of(self, slot: int) -> LoadedAdapter:
        return next(each for each in self._all() if each.slot == slot)

    def _put(self, slot: int, weights: LoraWeights | ChainWeights) -> int:
        """Weights into a slot; how many bytes are taken."""
        if isinstance(weights, LoraWeights):
            size = self.table.install(slot, weights)
            return size if self.drafts is None else size + self.drafts.install(slot, weights)
        self.model.chains.install(slot, weights)
        return 0 if weights.delta is None else self.table.install(slot, weights.delta)

    def _take_out(self, slot: int) -> None:
        self.table.remove(slot)
        if self.drafts is not None:
            self.drafts.remove(slot)
        if self.zoo is not None:
            self.model.chains.remove(slot)

    def _install(self, it: LoadedAdapter, weights: LoraWeights | ChainWeights) -> None:
        here = [each for each in self._all() if each.slot]
        while len(here) >= self.most:
            here.remove(self._make_room(here, it.name, f"{len(here)} adapters are in memory, all in use"))
        taken = {each.slot for each in here}
        slot = next(number for number in range(1, self.most + 2) if number not in taken)
        try:
            size = self._put(slot, weights)
            if self.memory is not None and size > self.memory:  # no other one leaves memory for it
                raise CapacityError(
                    f"There is no room for the adapter {it.name!r}: it takes {size:,} bytes, but all adapters together "
                    f"may take {self.memory:,}; raise lora_memory to {size:,} or more."
                )
            while self.memory is not None and self._held > self.memory:
                why = f"it takes {size:,} bytes, and adapters may take {self.memory:,}"
                here.remove(self._make_room(here, it.name, why))
        except Exception:  # a part of it may be there already
            self._take_out(slot)
            raise
        it.slot = slot
        self.loads += 1

    def _make_room(self, here: list[LoadedAdapter], name: str, why: str) -> LoadedAdapter:
        idle = [each for each in here if not each.users]
        if not idle:
            kind = AdapterWaitError if here else CapacityError
            raise kind(
                f"There is no room for the adapter {name!r}: {why}; try again later, or raise max_loras or lora_memory."
            )
        oldest = min(idle, key=lambda each: each.used)
        self._evict(oldest)
        return oldest

    def _evict(self, it: LoadedAdapter) -> None:
        if it.slot:
            self._take_out(it.slot)
            it.slot = 0


def kv_name(tenant: str, digest: str) -> str:
    """Under what K/V that is computed with an adapter is kept."""
    return f"{tenant}{ADAPTER_KEY}{digest}"


def adapters_of(named: Mapping[str, str | Path] | Sequence[str], option: str = "lora") -> dict[str, Path]:
    """{name: directory} of an option: such a mapping, or texts NAME=DIR. InputError for what is none."""
    if isinstance(named, Mapping):
        return {str(name): located(path) for name, path in named.items()}
    found = dict[str, Path]()
    for text in named:
        name, sign, path = str(text).partition("=")
        if not (name and sign and path) or name in found or "\0" in path:
            raise InputError(f"{option} is {text!r}, but NAME=DIR is expected, and each name once.")
        found[name] = located(path)
    return found


def loras_of(named: Mapping[str, str | Path] | Sequence[str]) -> dict[str, tuple[Path, Path | None]]:
    """{name: (directory, that of its own draft)} of the option lora: texts NAME=DIR or NAME=DIR,draft=DIR. InputError
    for what is none."""
    given = [str(path) for path in named.values()] if isinstance(named, Mapping) else [str(text) for text in named]
    parts = [text.partition(OWN_DRAFT) for text in given]
    for text, (path, sign, draft) in zip(given, parts):
        if (sign and not (path and draft)) or "\0" in text:
            raise InputError(f"lora is {text!r}, but NAME=DIR{OWN_DRAFT}DIR is expected.")
    first = [path for path, _, _ in parts]
    places = adapters_of(dict(zip(named, first)) if isinstance(named, Mapping) else first)
    drafts = [located(draft) if sign else None for _, sign, draft in parts]
    return {name: (path, draft) for (name, path), draft in zip(places.items(), drafts)}
