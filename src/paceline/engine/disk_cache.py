"""K/V of idle texts on disk: written behind by the names of their blocks, and found again, also after a restart.

    a block loses its last holder ─▶ idle ─▶ read by the engine, a little each step ─▶ queue ─▶ writer thread ─▶ file
    a request arrives ─▶ its blocks beyond those in memory have files ─▶ reader thread ─▶ prefix cache ─▶ it is queued

A request whose blocks are being read has not arrived yet, as far as decisions see. So a replay needs no disk.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from time import monotonic

from paceline.cache.cache import Cache
from paceline.core.request import Request
from paceline.engine.block_files import BlockFiles
from paceline.engine.block_format import BlockParts
from paceline.engine.desk import matchable
from paceline.engine.kv import BlockBytes

log = logging.getLogger("paceline")
DISK_STEP_BYTES = 2 << 20
"""Maximum bytes of K/V that a step reads for the writer while requests run."""
DISK_QUEUE_BYTES = 64 << 20
"""Bytes that wait for the writer."""
MOST_KEPT_NAMES = 1024
"""Names beyond twice those of all files that are remembered as written."""
DISK_BATCH_FILES = 16
"""Most files that are written under one lock."""
DISK_REFRESH_S = 1.0
"""Time between two looks at what other processes wrote, while nothing is read."""
DISK_WAIT_S = 5.0
"""Longest wait for a disk: then a request is computed."""


@dataclass(eq=False, slots=True)
class Recall:
    """Blocks of a text that are being read."""

    request: Request
    first: int
    """Place, in the text, of the first block that is read."""
    names: list[bytes]
    forms: dict[str, str]
    """{group: form} of the groups that the request keeps. Groups that may lag are read if they are present."""
    until: float
    others: list[Request] = field(default_factory=list)
    """Requests with the same text."""
    blocks: list[dict[str, bytes]] = field(default_factory=list)
    """[block][group], as far as they were there."""
    done: bool = False


class DiskCache:
    """The engine's side, owned by one thread. Its writer and reader threads wait for the disk."""

    def __init__(
        self, files: BlockFiles, cache: Cache, kv: BlockBytes, groups: Callable[[Request], Sequence[str]]
    ) -> None:
        """`groups`: those that a request's lease keeps, the target's included."""
        self.files, self.cache, self.kv, self.groups = files, cache, kv, groups
        self.pending: list[Recall] = []
        """Requests that have not arrived yet, in their order."""
        self.recalled = 0
        """Blocks that were found on disk."""
        self._idle: OrderedDict[int, bytes] = OrderedDict()
        """{block: name} of what is to be written, the longest idle first."""
        self._kept: dict[bytes, frozenset[str]] = {}
        """Groups of the blocks that were written or read."""
        self._changed = Condition()
        self._queued = 0
        self._work: SimpleQueue[tuple[bytes, dict[str, tuple[str, bytes]]] | None] = SimpleQueue()
        self._wanted: SimpleQueue[Recall | None] = SimpleQueue()
        for target in (self._write, self._read):
            Thread(target=target, name=f"paceline-disk{target.__name__}", daemon=True).start()
        self.attach()

    def attach(self) -> None:
        """Follow the cache's pool, which is another one from now on."""
        self.cache.pool.on_idle = self._idle.__setitem__

    # -- from memory to disk -----------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Is there something to write, and room in the queue?"""
        return bool(self._idle) and self._queued < DISK_QUEUE_BYTES

    def store(self, most: int = DISK_STEP_BYTES) -> None:
        """Hand idle blocks to the writer, about `most` bytes of them."""
        pool, size, taken = self.cache.pool, self.cache.block_size, 0
        while self.behind and taken < most:
            block, name = self._idle.popitem(last=False)
            if pool.hashes[block] != name:
                continue
            groups = pool.groups[block]
            if self._kept.get(name, frozenset()) >= groups and self.files.has(name):
                continue
            order = sorted(groups & self.kv.forms.keys())
            [parts] = self.kv.read(range(block * size, (block + 1) * size), size, order)
            self._keep(name, groups)
            count = sum(map(len, parts))
            taken += count
            with self._changed:
                self._queued += count
            self._work.put((name, {group: (self.kv.forms[group], part) for group, part in zip(order, parts)}))

    def _keep(self, name: bytes, groups: frozenset[str]) -> None:
        """Note which parts of a block are on disk; forget blocks whose files are gone."""
        self._kept[name] = groups
        if len(self._kept) > 2 * len(self.files) + MOST_KEPT_NAMES:
            self._kept = {each: groups for each, groups in self._kept.items() if self.files.has(each)}

    def flush(self, seconds: float = 10.0) -> bool:
        """Write all that is idle; False where the disk took longer."""
        until = monotonic() + seconds
        while (self._idle or self._queued) and monotonic() < until:
            self.store(DISK_QUEUE_BYTES)
            with self._changed:
                self._changed.wait_for(lambda: self._queued < DISK_QUEUE_BYTES // 2 or not self._queued, 0.05)
        return not self._idle and not self._queued

    def close(self, seconds: float = 10.0) -> None:
        """Write what is idle, and end the threads."""
        if not self.flush(seconds):
            log.warning("The K/V directory %s is slow: not all that was idle is kept.", self.files.path)
        self.cache.pool.on_idle = None
        self._work.put(None)
        self._wanted.put(None)

    def _write(self) -> None:
        while (first := self._work.get()) is not None:
            batch: list[tuple[bytes, BlockParts]] = [first]
            end = False
            while len(batch) < DISK_BATCH_FILES and not self._work.empty() and not end:
                following = self._work.get()
                end = following is None
                batch += [] if following is None else [following]
            try:
                self.files.write(batch)
            except Exception:  # a defect here must not end what is kept from now on
                log.exception("A block of K/V could not be written.")
            with self._changed:
                self._queued -= sum(len(part) for _, parts in batch for _, part in parts.values())
                self._changed.notify_all()
            if end:
                return

    # -- from disk to memory -----------------------------------------------------------------------------------------

    def names(self, tokens: Sequence[int], request: Request) -> list[bytes]:
        """The names of the full blocks that a text of these tokens can share."""
        return self.cache.names(tokens, request.kv_key, request.layout)

    def known(self, names: Sequence[bytes], groups: frozenset[str]) -> int:
        """Number of leading blocks that are in memory. Does not count as a use."""
        pool = self.cache.pool
        there = takewhile(lambda n: (at := pool.index.get(n)) is not None and groups <= pool.groups[at], names)
        return sum(1 for _ in there)

    def recall(self, request: Request) -> bool:
        """Start reading the blocks of a text that are on disk but not in memory; False if there are none."""
        if not self.cache.pool.prefix or self.cache.pool.room < 2:
            return False
        names, groups = self.names(matchable(request), request), frozenset(self.groups(request))
        first = self.known(names, groups - self.cache.lagging)
        found = list(takewhile(self.files.has, names[first : self.cache.num_blocks]))
        if not found:
            return False
        forms = {group: self.kv.forms[group] for group in sorted(groups) if group in self.kv.forms}
        for each in self.pending:
            if (each.names, each.forms) == (found, forms):
                each.others.append(request)
                return True
        recall = Recall(request, first, found, forms, monotonic() + DISK_WAIT_S)
        self.pending.append(recall)
        self._wanted.put(recall)
        return True

    def arrived(self, wait: bool) -> list[Recall]:
        """Requests whose blocks have been read, or took too long. `wait`: block for a moment if there is nothing else
        to do."""
        if not self.pending:
            return []
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: any(each.done for each in self.pending), 0.05)
            now = monotonic()
            found = [each for each in self.pending if each.done or now > each.until]
        self.pending = [each for each in self.pending if each not in found]
        return found

    def give_up(self, request: Request) -> bool:
        """Admit a request now, without the blocks that are being read for it. False if none are."""
        for each in self.pending:
            if request in each.others:
                each.others.remove(request)
                return True
            if each.request is request:
                if each.others:
                    each.request = each.others.pop(0)
                else:
                    self.pending.remove(each)
                return True
        return False

    def fitting(self, recall: Recall) -> tuple[list[str], list[list[bytes]]]:
        """Groups, and their bytes in each block, that a `Recall` brought and that memory lacks no block before. None
        that are of another size. A group that lags comes where all blocks have it."""
        sizes = {group: self.kv.size(group, self.cache.block_size) for group in recall.forms}
        good = takewhile(
            lambda parts: all(len(part) == sizes[group] for group, part in parts.items()),
            recall.blocks if recall.done else [],
        )
        found = list(good)
        order = [group for group in recall.forms if all(group in parts for parts in found)]
        blocks, groups = [[parts[group] for group in order] for parts in found], frozenset(order)
        names = self.names(matchable(recall.request), recall.request)
        if self.known(names, frozenset(recall.forms) - self.cache.lagging) < recall.first:
            return order, []
        for name in recall.names[: len(blocks)]:
            self._keep(name, self._kept.get(name, frozenset()) | groups)
        self.recalled += len(blocks)
        return order, blocks

    def _next(self) -> Recall | None:
        """Next read; meanwhile the reader learns what other processes wrote. None: the end."""
        while True:
            try:
                return self._wanted.get(timeout=DISK_REFRESH_S)
            except Empty:
                self.files.refresh()

    def _read(self) -> None:
        while (recall := self._next()) is not None:
            blocks = list[dict[str, bytes]]()
            for name in recall.names:
                if monotonic() > recall.until:
                    break
                try:
                    parts = self.files.read(name, recall.forms, self.cache.lagging)
                except Exception:  # a defect here must not keep requests waiting
                    log.exception("A block of K/V could not be read.")
                    parts = None
                if parts is None:
                    break
                blocks.append(parts)
            with self._changed:
                recall.blocks, recall.done = blocks, True
                self._changed.notify_all()
