"""Blocks of K/V as files: one for each, by its name. What is found there is looked at as input is.

    DIR/blocks/<name>.kv   see block_format.py
    DIR/lock               held by whichever process writes, so that several processes may share a directory

A file is written next to its place and renamed when whole: a crash loses the block in the making. Its time of change is
that of its last use, so the order in which blocks go survives a restart.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from threading import Lock
from time import monotonic, sleep

from paceline.cache.eviction import LRU, Eviction
from paceline.core.errors import InputError
from paceline.engine.block_format import (
    BlockParts,
    DamagedBlockFile,
    StoredPart,
    distrust,
    distrust_parent,
    packed,
    read_file,
    read_header,
    stored,
)

log = logging.getLogger("paceline")
BLOCK_FILE_SUFFIX, PARTIAL_SUFFIX = ".kv", ".part"
DISK_FREE_BYTES = 256 << 20
"""What stays free on the disk."""
DISK_LOCK_S = 2.0
"""Longest wait for another process that writes."""
DISK_PAUSE_S = 30.0
"""Pause of all writing after a disk refused."""
MOST_FILE_PARTS = 6
"""Parts that a file keeps; those that were written last stay."""


class BlockFiles:
    """Blocks by name, in a directory, in at most `limit` bytes. Thread-safe. A disk that refuses costs the block, never
    the caller: reads find nothing, writes return False, and one warning says why."""

    def __init__(self, path: Path, limit: int, eviction: Callable[[], Eviction] = LRU) -> None:
        """InputError where the directory cannot be made or used, or others can write to it."""
        if limit < 1:
            raise InputError(f"The size of the K/V directory is {limit} bytes, but it must be at least 1.")
        if "\0" in str(path):
            raise InputError("The path of the K/V directory has a zero byte; give another.")
        self.path, self.limit, self.blocks = path, limit, path / "blocks"
        self.pinned: Callable[[], Collection[bytes]] = frozenset
        """Names that do not go."""
        self.evictions, self.damaged = 0, 0
        self._mutex = Lock()
        self._sizes: dict[bytes, int] = {}
        self._total = self._beside = 0
        """Bytes of all blocks, and of the files of saved slots, which count towards the limit, too."""
        self._number: dict[bytes, int] = {}
        """For the eviction policy, which knows numbers."""
        self._name: dict[int, bytes] = {}
        self._policy, self._next = eviction(), 0
        self._seen = -1
        """Time of the directory's last change that is known of, in nanoseconds."""
        self._paused, self._refusal, self._warned = 0.0, "", ""
        try:
            for part in (path, self.blocks):
                part.mkdir(parents=True, exist_ok=True, mode=0o700)
                check_directory(part, distrust(part.lstat(), stat.S_ISDIR))
            slots = path / "slots"
            for part in (slots, *slots.glob("*")) if os.path.lexists(slots) else ():
                check_directory(part, distrust(part.lstat(), stat.S_ISDIR))
            for part in path.resolve().parents:
                check_directory(part, distrust_parent(part.stat()))
            with self.alone():
                for left in self.blocks.glob(
                    f".*{PARTIAL_SUFFIX}"
                ):  # of one that was killed: who writes holds the lock
                    left.unlink(missing_ok=True)
                for left in slots.glob("*/.*"):
                    left.unlink(missing_ok=True)
                self._scan()
        except OSError as error:
            raise InputError(f"K/V cannot be kept in {path} ({error.strerror or error}); give another.") from None
        except TimeoutError as error:
            raise InputError(f"K/V cannot be kept in {path} ({error}); give another.") from None

    # -- reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all known files."""
        return self._total

    def has(self, name: bytes) -> bool:
        """Is a file of this name known of? The disk is not asked: `refresh` learns what other processes wrote."""
        return name in self._sizes

    def refresh(self) -> None:
        """Learn what other processes wrote and removed. It may wait for the disk."""
        try:
            if self._changed() != self._seen:
                with self._mutex:
                    self._scan()
        except OSError:
            return

    @property
    def refusal(self) -> str:
        """Why nothing is written now; "" where nothing is against it."""
        return self._refusal if monotonic() < self._paused else ""

    def slot_bytes(self, folder: str = "*", but: Path | None = None) -> int:
        """Bytes of the files of the slots that are saved in these folders, without their blocks, `but` for one file."""
        found = {file: size_of(file) for file in (self.path / "slots").glob(f"{folder}/*")}
        if folder == "*":
            self._beside = sum(found.values())
        return sum(size for file, size in found.items() if file != but)

    def sizes(self, names: Iterable[bytes]) -> int:
        """Bytes of those of these blocks that are there."""
        return sum(self._sizes.get(name, 0) for name in names)

    def read(
        self, name: bytes, forms: Mapping[str, str], optional: Collection[str] = ()
    ) -> dict[str, bytes] | None:  # fmt: skip
        """The bytes of each of these groups, of these forms; None where they are not all there but for the `optional`
        ones, or the file is damaged, which removes it."""
        try:
            found = read_file(self.file(name), name, forms, optional)
        except FileNotFoundError:
            self._forget(name)
            return None
        except DamagedBlockFile as error:
            self.damaged += 1
            self._warn(f"K/V in {self.file(name)} is not used, because {error}; it is computed again")
            self._drop(name)
            return None
        except (OSError, ValueError) as error:
            self._warn(f"K/V in {self.blocks} cannot be read ({error})")
            return None
        if found is not None:
            self.touch(name)
        return found

    def touch(self, name: bytes) -> None:
        """The block was used."""
        with self._mutex:
            if name in self._number:
                self._ask(name)
        try:
            os.utime(self.file(name))
        except OSError:
            return

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, batch: Sequence[tuple[bytes, BlockParts]]) -> int:
        """Keep blocks, each by its name; how many are kept now. Others go for them."""
        if not batch or monotonic() < self._paused:
            return 0
        done = 0
        try:
            with self.alone(), self._mutex:
                if self._changed() != self._seen:
                    self._scan()
                for name, parts in batch:
                    done += self._write(name, parts)
                self._seen = self._changed()
        except (OSError, TimeoutError) as error:
            self._paused, self._refusal = monotonic() + DISK_PAUSE_S, getattr(error, "strerror", None) or str(error)
            self._warn(f"K/V cannot be written to {self.path} ({error}); what is idle is not kept for now")
        return done

    def _write(self, name: bytes, parts: BlockParts) -> bool:
        mine = [(group, form, data) for group, (form, data) in sorted(parts.items())]
        if name in self._sizes:
            named = {(group, form) for group, form, _ in mine}
            if named <= read_header(self.file(name)):
                self._ask(name)
                return True
            mine = [*(part for part in self._stored(name) if part[:2] not in named), *mine][-MOST_FILE_PARTS:]
        data = packed(name, mine)
        if len(data) > self.limit or not self._make_room(len(data) - self._sizes.get(name, 0), name):
            return False
        self.check_free(len(data))
        at = self.blocks / f".{name.hex()}.{os.getpid()}{PARTIAL_SUFFIX}"
        try:
            handle = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            os.replace(at, self.file(name))
        except BaseException:
            at.unlink(missing_ok=True)
            raise
        self._enter(name, len(data))
        return True

    def fit(self) -> None:
        """Let blocks go until the directory is within its limit, which may be smaller than it was."""
        try:
            with self.alone(), self._mutex:
                if self._changed() != self._seen:
                    self._scan()
                if not self._make_room(0, b""):
                    self._warn(
                        f"Saved slots take {self._total + self._beside:,} bytes of {self.path}, more than its limit of "
                        f"{self.limit:,}; remove files below {self.path / 'slots'}"
                    )
                self._seen = self._changed()
        except (OSError, TimeoutError) as error:
            self._warn(f"K/V in {self.path} cannot be brought down to {self.limit:,} bytes ({error})")

    def check_free(self, more: int) -> None:
        """OSError where this number of bytes would leave too little of the disk free."""
        if disk_usage(self.blocks).free < DISK_FREE_BYTES + more:
            raise OSError(f"less than {DISK_FREE_BYTES >> 20} MiB would be left free on the disk")

    def _stored(self, name: bytes) -> list[StoredPart]:
        """What is in a block's file; nothing where it cannot be used."""
        try:
            return stored(self.file(name), name)
        except (DamagedBlockFile, OSError, ValueError):
            return []

    def _make_room(self, more: int, keep: bytes) -> bool:
        """Let blocks go until this many bytes fit; False where those that may go are too few."""
        more += self._beside
        if self._total + more <= self.limit:
            return True
        held = {*self.pinned(), keep}
        candidates = {number for name, number in self._number.items() if name not in held}
        while self._total + more > self.limit:
            if not candidates:
                return False
            number = self._policy.victim(candidates)
            candidates.discard(number)
            name = self._name[number]
            self.file(name).unlink(missing_ok=True)
            self._leave(name)
            self.evictions += 1
        return True

    # -- book-keeping ------------------------------------------------------------------------------------------------

    def file(self, name: bytes) -> Path:
        """Where the block of this name lies."""
        return self.blocks / f"{name.hex()}{BLOCK_FILE_SUFFIX}"

    def _changed(self) -> int:
        return self.blocks.stat().st_mtime_ns

    def _scan(self) -> None:
        """Learn what is there, in the order of last use."""
        self._seen = self._changed()
        found = list[tuple[int, bytes, int]]()
        for entry in os.scandir(self.blocks):
            name = name_of(entry.name)
            if name is None:
                continue
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(state.st_mode):
                found.append((state.st_mtime_ns, name, state.st_size))
        self.slot_bytes()
        there = {name for _, name, _ in found}
        for name in [name for name in self._sizes if name not in there]:
            self._leave(name)
        for _, name, size in sorted(found):
            if self._sizes.get(name) != size:
                self._enter(name, size)

    def _enter(self, name: bytes, size: int) -> None:
        self._total += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        if name not in self._number:
            self._number[name], self._name[self._next] = self._next, name
            self._next += 1
        self._ask(name)

    def _ask(self, name: bytes) -> None:
        number = self._number[name]
        self._policy.ask(number, name, b"")
        self._policy.offer(number)

    def _leave(self, name: bytes) -> None:
        self._total -= self._sizes.pop(name)
        del self._name[self._number.pop(name)]

    def _forget(self, name: bytes) -> None:
        with self._mutex:
            if name in self._sizes:
                self._leave(name)

    def _drop(self, name: bytes) -> None:
        try:
            self.file(name).unlink(missing_ok=True)
        except OSError:
            return
        self._forget(name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Alone among all processes. TimeoutError where another one does not let go."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            until = monotonic() + DISK_LOCK_S
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() > until:
                        raise TimeoutError("another process holds its lock") from None
                    sleep(0.01)
            yield
        finally:
            os.close(handle)

    def _warn(self, words: str) -> None:
        """Once for each reason."""
        if words != self._warned:
            self._warned = words
            log.warning("%s.", words)


def check_directory(path: Path, reason: str | None) -> None:
    """InputError where there is a reason against it."""
    if reason is not None:
        raise InputError(f"K/V is not kept in {path}, because {reason}; give a directory of your own.")


def name_of(file: str) -> bytes | None:
    """The name of the block that a file is for; None: it is for none."""
    text = file.removesuffix(BLOCK_FILE_SUFFIX)
    if len(file) != 32 + len(BLOCK_FILE_SUFFIX) or len(text) != 32 or set(text) - set("0123456789abcdef"):
        return None
    return bytes.fromhex(text)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where it is gone."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def names_in(files: Iterable[str]) -> list[bytes]:
    """The names among hexadecimal texts; InputError for one that is none."""
    found = [name_of(f"{text}{BLOCK_FILE_SUFFIX}") for text in files]
    if None in found:
        raise InputError("A block's name is not 32 hexadecimal digits.")
    return [name for name in found if name is not None]
