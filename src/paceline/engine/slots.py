"""Conversations by number and by file name, as llama-server has them: save one's K/V, restore it later, erase it.

A slot is a place that a request has, and where its text stays when it has ended, until another one needs the place: the
one that goes on from it, else any, when all others were used later. Saved are full blocks, in the files of the
K/V directory; a small file names them.

    DIR/slots/<hash of the tenant>/<file name>   JSON: format, model, block size, extra key, token ids, names of blocks

Blocks of saved slots stay in the directory, within limits (`SLOT_SHARE`, `TENANT_SHARE`).
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from paceline.cache.blocks import root_hash
from paceline.core.component import TARGET
from paceline.core.errors import DiskError, InputError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.adapters import ADAPTER_KEY
from paceline.engine.block_files import BlockFiles, names_in
from paceline.engine.block_format import BlockParts, DamagedBlockFile, content, packed_size

if TYPE_CHECKING:
    from paceline.engine.loop import Engine

SLOT_FILE_FORMAT = 2
MAX_SLOT_FILE_BYTES = 64 << 20
SLOT_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
SLOT_SHARE, TENANT_SHARE = 0.75, 0.5
"""Parts of the directory's size that the saved slots of all tenants may take, and those of one."""
SLOT_TRIES = 3
"""Times that the blocks of a slot are written before other processes are too many."""
LEAST_SHARED = 0.5
"""Part of the shorter of two texts that must be alike for one to be taken for the other's continuation."""


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What a saved slot is, next to its blocks."""

    format: int
    model: str
    """Root of the names of its blocks, hexadecimal."""
    block: int
    extra_key: str
    """Under what its blocks are named: the tenant, and a salt where the request had one."""
    tokens: list[int]
    names: list[str]


@dataclass(slots=True)
class Gathered:
    """A slot that is about to be saved: its file, and those of its blocks that are in memory."""

    file: SlotFile
    blocks: list[tuple[bytes, BlockParts]]


@dataclass(eq=False, slots=True)
class SlotText:
    """The text in a slot."""

    tokens: list[int]
    extra_key: str
    key: str
    """Owner: an API key, or nobody."""
    request: Request | None
    """Request that wrote the text; None: it was restored from a file."""
    used: int = 0

    @property
    def busy(self) -> bool:
        return self.request is not None and self.request.finish is None

    @property
    def text(self) -> list[int]:
        """Tokens of the text now."""
        return self.tokens if self.request is None else self.request.tokens


class Slots:
    """The slots of an engine, for its thread; `save` and `load` are for any."""

    def __init__(self, engine: "Engine", files: BlockFiles) -> None:
        self.engine, self.files = engine, files
        self.places: list[SlotText | None] = [None] * engine.config.max_requests
        self._uses = 0
        self._turn = Lock()
        """Held by who saves: no two count the same room as theirs."""
        self._held: dict[Path, tuple[tuple[int, ...], frozenset[bytes]]] = {}
        """Names in the saved files, by what the files were when they were read."""
        self._saving: list[set[bytes]] = []
        """Names of the blocks of slots that are being saved."""
        self.folder = files.path / "slots"
        files.pinned = self.pinned
        files.fit()

    def take(self, request: Request) -> None:
        """Give a request that arrives a place; none where all are busy."""
        free = [at for at, it in enumerate(self.places) if it is None or not it.busy]
        if not free:
            return
        self._uses += 1
        at = max(free, key=lambda at: self.shared(self.places[at], request))
        if not self.shared(self.places[at], request):
            at = min(free, key=self.age)
        self.places[at] = SlotText([], request.extra_key, request.key, request, self._uses)

    def age(self, at: int) -> int:
        it = self.places[at]
        return -1 if it is None else it.used

    @staticmethod
    def shared(it: SlotText | None, request: Request) -> int:
        """Tokens that a request's text shares with a slot's, if they are enough; else 0."""
        if it is None or it.extra_key != request.extra_key:
            return 0
        mine, other = it.text, request.tokens
        low, high = int(LEAST_SHARED * min(len(mine), len(other))) or 1, min(len(mine), len(other))
        if mine[:low] != other[:low] or not high:
            return 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if mine[:middle] == other[:middle] else (low, middle - 1)
        return low

    def get(self, number: int, key: str) -> SlotText:
        """What is in a slot. InputError for a number that there is not, and for another's or an empty slot."""
        if not 0 <= number < len(self.places):
            raise InputError(f"There is no slot {number}; this server has the slots 0 to {len(self.places) - 1}.")
        it = self.places[number]
        if it is None or it.key != key:
            raise InputError(f"Slot {number} is empty; send a prompt first.")
        return it

    def view(self, key: str) -> list[dict[str, Any]]:
        """All slots, for one client: what others have is left out."""
        out, most = list[dict[str, Any]](), self.engine.model.max_len
        for number, it in enumerate(self.places):
            mine = it is not None and it.key == key
            request = it.request if it is not None and mine else None
            busy = it is not None and it.busy
            left = request.left if request is not None and busy else 0
            out.append({
                "id": number, "id_task": -1 if request is None else request.id, "n_ctx": most,
                "speculative": request is not None and request.drafter != "none", "is_processing": busy,
                "n_tokens": len(it.text) if it is not None and mine else 0,
                "next_token": {
                    "has_next_token": left > 0, "n_remain": left,
                    "n_decoded": 0 if request is None else len(request.output),
                },
            })  # fmt: skip
        return out

    # -- saving ------------------------------------------------------------------------------------------------------

    def gather(self, number: int, key: str) -> Gathered:
        """The full blocks of a slot's text that are in memory or on disk. InputError where there are none."""
        disk, it = self.engine.disk, self.get(number, key)
        assert disk is not None
        tokens, layout = [*it.text, 0], self.stand_in(it).layout
        plain = self.engine.cache.names(tokens, it.extra_key)  # never those of K/V from elsewhere
        joined = self.engine.cache.names(tokens, it.extra_key, layout)
        names = [name for name, other in zip(plain, joined) if name == other]  # up to where branches were joined
        pool, size = self.engine.cache.pool, self.engine.cache.block_size
        found, blocks = list[str](), list[tuple[bytes, BlockParts]]()
        for name in names:
            block = pool.index.get(name)
            if block is None and not self.files.has(name):
                break
            found.append(name.hex())
            if block is None:
                continue
            order = sorted(pool.groups[block] & disk.kv.forms.keys())
            [parts] = disk.kv.read(range(block * size, (block + 1) * size), size, order)
            blocks.append((name, {group: (disk.kv.forms[group], part) for group, part in zip(order, parts)}))
        if not found:
            raise InputError(f"Slot {number} has no K/V of a full block of {size} tokens; send it a prompt.")
        root = root_hash(it.extra_key, self.engine.cache.identity).hex()
        file = SlotFile(SLOT_FILE_FORMAT, root, size, it.extra_key, it.text[: len(found) * size], found)
        return Gathered(file, blocks)

    @staticmethod
    def stand_in(it: SlotText) -> Request:
        """A request with the text of a slot."""
        if it.request is not None:
            return it.request
        return Request(-1, it.tokens, SamplingParams(), 0, extra_key=it.extra_key)

    def save(self, gathered: Gathered, name: str, tenant: str) -> int:
        """Write a slot's blocks, then its file; how many bytes they have. DiskError without room: an older file of
        this name is still whole then."""
        path, names = self.path(name, tenant), {*names_in(gathered.file.names)}
        data = json.dumps(asdict(gathered.file)).encode()
        with self._turn:
            self._saving.append(names)
            try:
                for _ in range(SLOT_TRIES):
                    self._keep(gathered, path, names, len(data))
                    if self._replace(path, data, names):
                        break
                else:
                    raise DiskError(f"Slot file {name} cannot be written: other processes take its blocks; try again.")
            finally:
                self._saving.remove(names)
            self.files.slot_bytes()
        return len(data) + self.files.sizes(names)

    def _keep(self, gathered: Gathered, path: Path, names: set[bytes], size: int) -> None:
        """Have all blocks of a slot on disk."""
        self.files.refresh()
        written = sum(max(self.files.sizes([name]), packed_size(name, parts)) for name, parts in gathered.blocks)
        there = names - {name for name, _ in gathered.blocks}
        for share, folder in ((TENANT_SHARE, path.parent.name), (SLOT_SHARE, "*")):
            others = self.held(folder, path) - names
            used = self.files.sizes(others | there) + written + self.files.slot_bytes(folder, path) + size
            if used > share * self.files.limit:
                raise DiskError(
                    f"Slot file {path.name} has no room: saved slots would take {used:,} bytes, and "
                    f"{'all' if folder == '*' else 'yours'} may take {share * self.files.limit:,.0f}; give --kv-disk "
                    f"more, or remove files from {self.folder}."
                )
        kept = self.files.write(gathered.blocks)
        gone = [name for name in there if not self.files.has(name)]
        if kept < len(gathered.blocks) and (refusal := self.files.refusal):
            raise DiskError(f"Slot file {path.name} cannot be written ({refusal}); look at {self.files.path}.")
        if kept < len(gathered.blocks) or gone:
            raise DiskError(
                f"Slot file {path.name} has no room: {kept} of {len(gathered.blocks)} blocks could be kept in "
                f"{self.files.limit:,} bytes, and {len(gone)} are gone; give --kv-disk more, or remove files from "
                f"{self.folder}."
            )

    def _replace(self, path: Path, data: bytes, names: set[bytes]) -> bool:
        """Put a slot's file in its place, whole or not at all: from then on no process lets its blocks go. False where
        one has done so since they were written."""
        part = path.with_name(f".{token_hex(8)}")
        try:
            with self.files.alone():  # who holds the lock may remove parts that were left, and blocks
                if not all(self.files.file(each).exists() for each in names):
                    return False
                self.files.check_free(len(data))
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                try:
                    with os.fdopen(handle, "wb") as file:
                        file.write(data)
                    os.replace(part, path)
                except OSError:
                    part.unlink(missing_ok=True)
                    raise
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DiskError(f"Slot file {path.name} cannot be written ({reason}); look at {path.parent}.") from None
        return True

    def path(self, name: str, tenant: str) -> Path:
        """Where a slot's file lies. InputError for a name that is none."""
        if not SLOT_FILE_NAME.fullmatch(name):
            raise InputError(
                f"filename is {name[:80]!r}, but it must be a plain name: letters, digits, dots, _ and -, 128 at most."
            )
        return self.folder / hashlib.sha256(tenant.encode()).hexdigest()[:16] / name

    def pinned(self) -> set[bytes]:
        """Names of the blocks of all slots that are saved or being saved: they do not go for others."""
        return self.held("*").union(*self._saving)

    def held(self, folder: str, but: Path | None = None) -> set[bytes]:
        """Names of the blocks of the slots that are saved in these folders, `but` for one file."""
        held, known = set[bytes](), dict[Path, tuple[tuple[int, ...], frozenset[bytes]]]()
        for path in self.folder.glob(f"{folder}/*"):
            if path.name.startswith("."):
                continue
            try:
                state = path.lstat()
                now = (state.st_ino, state.st_size, state.st_ctime_ns)
                old, names = self._held.get(path, ((), frozenset()))
                known[path] = (now, names if old == now else frozenset(names_in(self.read(path).names)))
            except (InputError, DiskError, OSError):
                continue
            if path != but:
                held |= known[path][1]
        self._held = known if folder == "*" else {**self._held, **known}
        return held

    # -- restoring ---------------------------------------------------------------------------------------------------

    def load(self, name: str, tenant: str) -> tuple[SlotFile, list[dict[str, bytes]], int]:
        """A saved slot, its blocks as far as they are there, and how many bytes were read. InputError where there is
        none, or it is of another model."""
        path = self.path(name, tenant)
        try:
            file = self.read(path)
        except FileNotFoundError:
            raise InputError(f"There is no saved slot {name}; save one first.") from None
        except OSError as error:
            raise DiskError(f"The saved slot {name} cannot be read ({error.strerror or error}).") from None
        engine, disk = self.engine, self.engine.disk
        assert disk is not None
        if file.extra_key != tenant and not file.extra_key.startswith(
            (f"{tenant}/", f"{tenant}{ADAPTER_KEY}") if tenant else ""
        ):
            raise DiskError(f"The saved slot {name} is damaged: it is of another tenant.")
        if (
            file.model != root_hash(file.extra_key, engine.cache.identity).hex()
            or file.block != engine.cache.block_size
        ):
            raise InputError(f"The saved slot {name} is of another model, or of blocks of another size.")
        try:
            engine.session.check_tokens(file.tokens)
        except InputError as error:
            raise DiskError(f"The saved slot {name} is damaged: {error}") from None
        request = Request(-1, [*file.tokens, 0], SamplingParams(), 0, extra_key=file.extra_key)
        whole = len(file.tokens) == len(file.names) * file.block
        if not whole or [each.hex() for each in disk.names(request.tokens, request)] != file.names:
            raise DiskError(f"The saved slot {name} is damaged: its names are not those of its tokens.")
        extra = disk.kv.forms.keys() - {TARGET}
        blocks, size = list[dict[str, bytes]](), path.stat().st_size
        for each in names_in(file.names):
            found = self.files.read(each, disk.kv.forms, extra)
            if found is None:
                break
            blocks.append(found)
            size += sum(map(len, found.values()))
        return file, blocks, size

    @staticmethod
    def read(path: Path) -> SlotFile:
        """A slot's file. InputError where it is none; OSError."""
        try:
            data, size = content(path, MAX_SLOT_FILE_BYTES)
            if len(data) != size:
                raise DiskError(f"The saved slot {path.name} is too large.")
            file = _SLOT_FILE.validate_json(data, strict=True)
        except (DamagedBlockFile, ValidationError):
            raise DiskError(f"The saved slot {path.name} is damaged; save it again.") from None
        if file.format != SLOT_FILE_FORMAT:
            raise InputError(f"The saved slot {path.name} has format {file.format}, not {SLOT_FILE_FORMAT}.")
        return file

    def put(self, number: int, file: SlotFile, blocks: Sequence[dict[str, bytes]], key: str) -> int:
        """Restore into a slot; how many tokens have their K/V. InputError for a slot that is busy or another's."""
        if not 0 <= number < len(self.places):
            raise InputError(f"There is no slot {number}; this server has the slots 0 to {len(self.places) - 1}.")
        if (it := self.places[number]) is not None and it.busy:
            raise InputError(f"Slot {number} is processing a request; wait for its end, or name another.")
        if it is not None and it.key != key:
            raise InputError(f"Slot {number} is another client's; name another.")
        tokens = file.tokens[: len(blocks) * file.block]
        self.engine.session.check_tokens(tokens)
        found = self.engine.operations.put(tokens, blocks, file.extra_key)
        self._uses += 1
        self.places[number] = SlotText(tokens, file.extra_key, key, None, self._uses)
        return found

    def leave(self, prompt: Sequence[int]) -> None:
        """Empty the places whose request had this prompt and has ended: it was no client's."""
        for at, it in enumerate(self.places):
            if it is not None and it.request is not None and not it.busy and it.request.prompt == [*prompt]:
                self.places[at] = None

    def erase(self, number: int, key: str) -> int:
        """Forget a slot's text, and its K/V where nobody holds it; how many tokens it had."""
        it = self.get(number, key)
        if it.busy:
            raise InputError(f"Slot {number} is processing a request; wait for its end.")
        self.places[number], count = None, len(it.text)
        self.engine.operations.drop([*it.text, 0], self.stand_in(it))
        return count


_SLOT_FILE: TypeAdapter[SlotFile] = TypeAdapter(SlotFile)
