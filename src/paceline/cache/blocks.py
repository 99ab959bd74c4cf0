"""The pool of blocks and the prefix index over them. Numbers only: the K/V lives in the models' pools.

        allocate                       release, not published
free ────────────> held (refs >= 1) ──────────────────────────> free
                     ^   │ release, published
             acquire │   v
                  evictable (refs 0, in the index) ── evicted by allocate ──> held by another
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from paceline.cache.eviction import LRU, Eviction
from paceline.cache.snapshots import Snapshots
from paceline.core.errors import CapacityError, InputError, IntegrityError


def root_hash(extra_key: str, identity: bytes = b"") -> bytes:
    """Head of a hash chain. `identity` names the model, its dtypes and positions. Whatever changes K/V other than the
    tokens (an adapter, an image), or must keep texts apart (a salt for each tenant), goes into `extra_key`."""
    return blake2b(extra_key.encode(), digest_size=16, person=b"paceline.root", key=identity).digest()


def chain_hash(parent: bytes, tokens: Sequence[int], extra: Sequence[int] = ()) -> bytes:
    """128-bit name of a block: the hash of the block before it and its own token ids, so it names the whole context.
    `extra`: where its tokens stand and what they do not see, if they are not plain (`joined.named`). Cryptographic,
    because a collision would serve one user another one's K/V."""
    return blake2b(parent + array("q", [*tokens, *extra]).tobytes(), digest_size=16).digest()


PRIVATE_KEY = "imported:"
"""What an `extra_key` begins with whose blocks serve one request alone: they are never idle."""


class PoolWatcher(Protocol):
    """Receiver of what enters and leaves the prefix index. Blocks of one request alone are left out, and those whose
    tokens do not stand in the order of their text."""

    def stored(self, root: bytes, parent: bytes | None, name: bytes, tokens: Sequence[int]) -> None:
        """A block is in the index. `root`: head of its hash chain; `parent`: None for a text's first block."""

    def removed(self, name: bytes) -> None:
        """A block is no longer in the index. It may be one that was left out."""

    def cleared(self) -> None:
        """The index is empty."""


class BlockPool:
    """Reference counts, free list, prefix index. Raises IntegrityError when a holder breaks the life cycle above.

    refs[b]     how many leases hold block b
    hashes[b]   its name in the index, None until published
    groups[b]   the groups whose rows are complete in it, empty until published
    parents[b]  the name of the block before it, of published blocks
    tails       evictable blocks that no evictable block continues: a text loses its end first
    hits / queries   blocks found / full blocks that could have been; evictions: published blocks given away
    """

    def __init__(
        self, num_blocks: int, block_size: int, eviction: Eviction | None = None, *, prefix: bool = True,
        snapshots: Snapshots | None = None,
    ) -> None:  # fmt: skip
        if block_size < 1:
            raise InputError(f"block_size is {block_size}, but a block must hold at least 1 token.")
        if num_blocks < 1:
            raise CapacityError(f"The cache has {num_blocks} blocks, but it needs at least 1.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.snapshots = snapshots
        """Where a state is kept, of groups that have one; None: behind each full block."""
        self.prefix = prefix
        """False: nothing is ever published or found."""
        self.eviction: Eviction = LRU() if eviction is None else eviction
        self.refs = [0] * num_blocks
        self.hashes: list[bytes | None] = [None] * num_blocks
        self.groups: list[frozenset[str]] = [frozenset()] * num_blocks
        self.private: set[int] = set()
        """Published blocks that serve one request alone."""
        self.index: dict[bytes, int] = {}
        self.free = list(range(num_blocks - 1, -1, -1))
        self.parents = [b""] * num_blocks
        self.evictable: set[int] = set()
        self.tails: set[int] = set()
        self._behind: Counter[bytes] = Counter()
        """How many evictable blocks continue the block of that name."""
        self.hits = self.queries = self.evictions = 0
        self.on_idle: Callable[[int, bytes], None] | None = None
        """Called with (block, name) when a published block loses its last holder."""
        self.watcher: PoolWatcher | None = None

    @property
    def room(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self.free) + len(self.evictable)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` private blocks with one reference each; CapacityError, and nothing changed, without room."""
        if count > self.room:
            raise CapacityError(
                f"{count} cache blocks of {self.block_size} tokens are needed and {self.room} of {self.num_blocks} are "
                f"free; pre-empt a request, or give the cache at least {self.num_blocks + count - self.room} blocks."
            )
        blocks = []
        for _ in range(count):
            block = self.free.pop() if self.free else self._evict()
            if self.refs[block]:
                raise IntegrityError(f"Block {block} is handed out while {self.refs[block]} leases hold it.")
            self.refs[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, block: int) -> None:
        """One more holder of a held or evictable block."""
        if not self.refs[block]:
            if block not in self.evictable:
                raise IntegrityError(f"Block {block} is free: it has no content to share.")
            self._unpark(block)
        self.refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder fewer of each, in the order given; a text's last block comes first (see `Eviction.touch`)."""
        for block in blocks:
            if not self.refs[block]:
                raise IntegrityError(f"Block {block} is released more often than it was taken.")
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            if self.hashes[block] is None:
                self._give(block)
            else:
                self._park(block)

    def immutable(self, block: int) -> bool:
        """Shared or published: no row in it may be written again."""
        return self.refs[block] > 1 or self.hashes[block] is not None

    def publish(
        self, block: int, name: bytes, groups: frozenset[str], parent: bytes = b"", returns: bool = False,
        private: bool = False,
    ) -> None:  # fmt: skip
        """Enter a held, full, verified block in the index; `parent` is the name of the block before it, if any.

        When the same content is already there (two requests computed one prefix at the same time), the first stays and
        this block remains private to its holders; it is replaced only by a block complete in more groups, or by one
        that has a state where it has none.
        """
        if not self.prefix:
            return
        if not self.refs[block] or self.hashes[block] not in (None, name):
            raise IntegrityError(f"Block {block} cannot be published: it is not held, or holds other content.")
        known = self.index.get(name)
        if known == block:
            self.groups[block] |= groups
            return
        if known is None or groups > self.groups[known] or self._better(block, known, groups):
            if known is not None:
                self.forget(known)
            self.index[name] = block
            self.hashes[block] = name
            self.groups[block] = groups
            self.parents[block] = parent
            if private:
                self.private.add(block)
        self._ask(name, returns)

    def _better(self, block: int, known: int, groups: frozenset[str]) -> bool:
        kept = self.snapshots
        return kept is not None and groups >= self.groups[known] and block in kept and known not in kept

    def find(self, name: bytes, groups: frozenset[str], returns: bool = False) -> int | None:
        """The block of that name with all `groups` complete, or None. Takes no reference."""
        block = self.index.get(name)
        if block is None or not groups <= self.groups[block]:
            return None
        self._ask(name, returns)
        return block

    def expect(self, blocks: Iterable[int]) -> None:
        """Held blocks whose holder gives them back, and comes again for those that are published."""
        expect = getattr(self.eviction, "expect", None)
        if expect is None:
            return
        for block in blocks:
            if (name := self.hashes[block]) is not None:
                expect(name)
                self.eviction.ask(block, name, self.parents[block])

    def forget(self, block: int) -> None:
        """Take a published block out of the index; without a holder it becomes free."""
        name = self.hashes[block]
        if name is None:
            raise IntegrityError(f"Block {block} is not in the index.")
        del self.index[name]
        if self.watcher is not None:
            self.watcher.removed(name)
        self.hashes[block] = None
        self.groups[block] = frozenset()
        self.private.discard(block)
        if block in self.evictable:
            self._unpark(block)
            self._give(block)

    def _give(self, block: int) -> None:
        """A block is free."""
        if self.snapshots is not None:
            self.snapshots.drop(block)
        self.free.append(block)

    def _ask(self, name: bytes, returns: bool) -> None:
        tell = getattr(self.eviction, "tell", None)
        if tell is not None:
            tell(name, returns)
        block = self.index[name]
        self.eviction.ask(block, name, self.parents[block])
        if block in self.tails:
            self.eviction.offer(block)

    def _park(self, block: int) -> None:
        """The last holder of a published block is gone."""
        name, parent = self.hashes[block], self.parents[block]
        assert name is not None
        self.evictable.add(block)
        if self.on_idle is not None and block not in self.private:
            self.on_idle(block, name)
        self.eviction.touch(block)
        self._behind[parent] += 1
        self.tails.discard(self.index.get(parent, -1))
        if not self._behind[name]:
            self.tails.add(block)
            self.eviction.offer(block)

    def _unpark(self, block: int) -> None:
        """A block ceases to be evictable; the one before it may become a tail."""
        self.evictable.remove(block)
        self.tails.discard(block)
        parent = self.parents[block]
        self._behind[parent] -= 1
        if self._behind[parent]:
            return
        del self._behind[parent]
        before = self.index.get(parent)
        if before in self.evictable:
            self.tails.add(before)
            self.eviction.offer(before)

    def _evict(self) -> int:
        block = self.eviction.victim(self.tails)
        if block not in self.tails:
            raise IntegrityError(f"The eviction policy chose block {block}, which is not evictable.")
        self.forget(block)
        self.evictions += 1
        return self.free.pop()

    def check(self, held: Mapping[int, int]) -> None:
        """IntegrityError unless the reference counts are `held` and each block is in exactly one state."""
        free = set(self.free)
        if len(free) != len(self.free):
            raise IntegrityError(f"Block {next(b for b in free if self.free.count(b) > 1)} is twice in the free list.")
        for block in range(self.num_blocks):
            refs, name = self.refs[block], self.hashes[block]
            if refs != held.get(block, 0):
                raise IntegrityError(f"Block {block} counts {refs} holders and has {held.get(block, 0)}.")
            if (block in free) + (block in self.evictable) + (refs > 0) != 1:
                raise IntegrityError(f"Block {block} is not exactly one of free, held and evictable.")
            if name is None and block in self.evictable:
                raise IntegrityError(f"Block {block} is evictable but not published.")
            if name is not None and (block in free or self.index.get(name) != block or not self.groups[block]):
                raise IntegrityError(f"Block {block} has a name that the index does not lead to it.")
        inner = {self.parents[block] for block in self.evictable}
        if wrong := self.tails ^ {block for block in self.evictable if self.hashes[block] not in inner}:
            raise IntegrityError(f"Block {min(wrong)} is a tail and should not be, or the reverse.")
        for name, block in self.index.items():
            if self.hashes[block] != name:
                raise IntegrityError(f"The index leads to block {block}, which has other content.")
