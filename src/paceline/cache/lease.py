"""What one running request holds: its block table, and how far each group's rows in it are complete."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.cache.blocks import BlockPool, PoolWatcher, chain_hash
from paceline.core import joined
from paceline.core.component import TARGET
from paceline.core.errors import IntegrityError

if TYPE_CHECKING:
    from paceline.cache.txn import Txn


@dataclass(eq=False, slots=True)
class Lease:
    """A block table that grows at its end. Made by `Cache.open` and `Cache.fork`; read by anyone; written by `Cache`
    and `Txn` only.

        blocks       [ b0 ][ b1 ][ b2 ][ b3 ][ b4 ]
        sealed       └─────────┘                     full, complete in every group: immutable, in the index
        frontier     └──────────────┘                rows of an extra group, at least the sealed ones
        length       └─────────────────┘             committed target rows; private from its last, partial block on
        reserved                        └───────┘    rows of the open Txn

    A full block may be shared before it is sealed, by a fork or as a prefix that lacks a group: its target rows are
    never written again, and a lagging group's rows in it may be written by either holder, with the same values, for
    they depend on the tokens alone.
    """

    pool: BlockPool
    root: bytes
    """Head of the hash chain (`extra_key`)."""
    frontier: dict[str, int] = field(default_factory=dict)
    """Complete rows of each extra group; at most `length`."""
    tokens: list[int] = field(default_factory=list)
    """Token ids of the committed rows."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    """Names of the sealed blocks: the hash chain's state."""
    layout: joined.Layout = ()
    """Positions of the tokens in a joined text (`Request.layout`)."""
    states: frozenset[str] = frozenset()
    """Groups that keep a state of the text: it is known behind full blocks (`BlockPool.snapshots`: some of them) and
    behind the group's last row alone, so the group can only be cut there."""
    marks: frozenset[int] = frozenset()
    """Blocks of the text behind which others may go on: their states are kept."""
    returns: int = 0
    """Tokens of the text that are asked for again soon, as the client says."""
    private: bool = False
    """Do the blocks serve this request alone?"""
    txn: "Txn | None" = None
    """The open transaction."""

    @property
    def length(self) -> int:
        """Committed target rows."""
        return len(self.tokens)

    @property
    def sealed(self) -> int:
        """Full blocks that are verified and below every frontier."""
        return len(self.hashes)

    @property
    def groups(self) -> frozenset[str]:
        """The groups that this lease keeps complete and asks of shared blocks."""
        return frozenset((TARGET, *self.frontier))

    @property
    def layer(self) -> int:
        """Layers that the rows of the open Txn have run through in earlier steps."""
        return self.txn.layer if self.txn else 0

    @property
    def reserved(self) -> int:
        """Rows of the open Txn."""
        return self.txn.rows if self.txn else 0

    def slot(self, position: int) -> int:
        """Pool slot of a row; IntegrityError beyond committed and reserved rows."""
        return self.slots(position, position + 1)[0]

    def slots(self, start: int, stop: int) -> list[int]:
        """Pool slots of rows start .. stop."""
        if not 0 <= start <= stop <= self.length + self.reserved:
            raise IntegrityError(f"Rows {start} to {stop} are outside the lease's {self.length} + {self.reserved}.")
        size, blocks = self.pool.block_size, self.blocks
        return [blocks[p // size] * size + p % size for p in range(start, stop)]

    def tip(self, group: str) -> int | None:
        """Pool slot of a group's last row, None where it has none."""
        length = self.length if group == TARGET else self.frontier.get(group, 0)
        return self.slot(length - 1) if length else None

    def goes_on(self, length: int) -> int:
        """The most rows, up to `length`, behind which a state is kept."""
        full, kept = length // self.pool.block_size, self.pool.snapshots
        while kept is not None and full and self.blocks[full - 1] not in kept:
            full -= 1
        return full * self.pool.block_size

    def reach(self, blocks: list[int]) -> None:
        """The table grows by these blocks, of which no row is computed yet."""
        kept = self.pool.snapshots if self.states & self.groups else None
        for block in blocks:
            self.blocks.append(block)
            if kept is not None and (len(self.blocks) % kept.every == 0 or len(self.blocks) - 1 in self.marks):
                kept.add(block)

    def trim(self) -> None:
        """Give back the blocks beyond what committed and reserved rows need, the last one first."""
        keep = self.pool.blocks_for(self.length + self.reserved)
        if keep < len(self.blocks):
            surplus = self.blocks[keep:]
            del self.blocks[keep:]
            self.pool.release(reversed(surplus))

    def seal(self) -> None:
        """Publish the blocks that have become full, verified and complete in every group."""
        size = self.pool.block_size
        while (self.sealed + 1) * size <= min((self.length, *self.frontier.values())):
            parent = self.hashes[-1] if self.hashes else self.root
            name = self.name(parent, self.sealed)
            told = (self.sealed + 1) * size <= self.returns
            block, before = self.blocks[self.sealed], self.pool.index.get(name)
            self.pool.publish(block, name, self.groups, parent, told, self.private)
            if self.pool.watcher is not None and before != block and self.pool.index.get(name) == block:
                self._tell(self.pool.watcher, name)
            self.hashes.append(name)

    def _tell(self, watcher: PoolWatcher, name: bytes) -> None:
        """Tell of the block behind the sealed ones, which has just entered the index."""
        start, stop = self.sealed * self.pool.block_size, (self.sealed + 1) * self.pool.block_size
        if not self.private and not joined.named(self.layout, start, stop):
            watcher.stored(self.root, self.hashes[-1] if self.hashes else None, name, self.tokens[start:stop])

    def name(self, parent: bytes, block: int) -> bytes:
        """Name of a full block that follows the block named `parent`."""
        start, stop = block * self.pool.block_size, (block + 1) * self.pool.block_size
        return chain_hash(parent, self.tokens[start:stop], joined.named(self.layout, start, stop))

    def cut(self, length: int) -> int:
        """Forget committed rows from `length` on, or from the start of the block it falls into, where that is
        immutable; where the target has a state, from the last row before it with one that is kept. Return the length
        kept."""
        size = self.pool.block_size
        if TARGET in self.states:
            length = length if length == self.length else self.goes_on(length)
        elif length < self.length and length % size and self.pool.immutable(self.blocks[length // size]):
            length -= length % size
        del self.tokens[length:]
        for group, frontier in self.frontier.items():
            if frontier > length:
                self.frontier[group] = self.goes_on(length) if group in self.states else length
        del self.hashes[min((length, *self.frontier.values())) // size :]
        self.trim()
        return length

    def check(self) -> None:
        """IntegrityError, naming the block, when table, frontiers and hash chain contradict each other or the pool."""
        size, name = self.pool.block_size, self.root
        if len(set(self.blocks)) < len(self.blocks):
            raise IntegrityError(f"Block {max(self.blocks, key=self.blocks.count)} is twice in one table.")
        if (need := self.pool.blocks_for(self.length + self.reserved)) != len(self.blocks):
            block = self.blocks[-1] if self.blocks else None
            raise IntegrityError(f"A lease holds {len(self.blocks)} blocks, the last {block}, and needs {need}.")
        for group, frontier in self.frontier.items():
            if not self.sealed * size <= frontier <= self.length:
                raise IntegrityError(f"Frontier {frontier} of {group} is outside {self.sealed * size}..{self.length}.")
        if self.sealed * size > self.length:
            raise IntegrityError(f"A lease of {self.length} rows seals {self.sealed} blocks: {self.blocks}.")
        for i, block in enumerate(self.blocks):
            if (i + 1) * size > self.length:
                if self.pool.immutable(block):
                    raise IntegrityError(f"Block {block} is shared or published and has rows that are not verified.")
                continue
            name = self.name(name, i)
            if self.pool.hashes[block] not in (None, name) or (i < self.sealed and self.hashes[i] != name):
                raise IntegrityError(f"Block {block} is published or sealed under a name that its tokens do not have.")
