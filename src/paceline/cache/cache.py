"""`Cache`: the face of the cache that the engine uses."""

from collections import Counter
from collections.abc import Iterable, Sequence

from paceline.cache.blocks import PRIVATE_KEY, BlockPool, chain_hash, root_hash
from paceline.cache.eviction import Eviction
from paceline.cache.lease import Lease
from paceline.cache.snapshots import Snapshots
from paceline.cache.txn import Move, Txn
from paceline.core.component import TARGET
from paceline.core.errors import IntegrityError
from paceline.core.joined import Layout, named


class Cache:
    """Block tables of all running requests and the prefixes they share. Book-keeping only: slots and moves go to the
    models, whose pools have num_blocks * block_size slots per group.

    A request lives through open, (begin, commit or abort) repeatedly, close. Engine defects (a lease used after close,
    two open Txns on one lease, a frontier out of range) raise IntegrityError and change nothing.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: Iterable[str] = (TARGET,),
        prefix: bool = True,
        eviction: Eviction | None = None,
        states: Iterable[str] = (),
        lagging: Iterable[str] = (),
        identity: bytes = b"",
        snapshots: int | None = None,
    ) -> None:
        """`identity`, at most 64 bytes: of the model; it is at the root of the name of every block, so that blocks of
        two models never meet. `lagging`: those of `groups` that a shared prefix may lack, for they are computed from
        the tokens alone. `states`: those of `groups` that keep a state of each text, not only rows. It lies with each
        full block, so a shared prefix brings it along; between the ends of blocks only a group's last row has one,
        and to rewind or fork goes back to such an end. `snapshots`: how many of these states are kept at most (None:
        one for each block); a prefix ends, then, where one is."""
        if both := {*states} & {*lagging}:
            raise IntegrityError(f"{min(both)} keeps a state, so a prefix cannot lack it; it cannot lag.")
        kept = None if snapshots is None or not {*states} else Snapshots(snapshots, num_blocks)
        self.pool = BlockPool(num_blocks, block_size, eviction, prefix=prefix, snapshots=kept)
        self.groups = frozenset((TARGET, *groups))
        self.states, self.lagging = frozenset(states), frozenset(lagging)
        self.identity = identity
        self._leases: dict[Lease, None] = {}

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def block_size(self) -> int:
        return self.pool.block_size

    def room(self) -> int:
        """Blocks that are free or evictable."""
        return self.pool.room

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` rows."""
        return self.pool.blocks_for(tokens)

    def needs(self, lease: Lease | None, rows: int) -> int:
        """New blocks that `begin` with these rows would take; None: a request without a lease and without a match."""
        if lease is None:
            return self.blocks_for(rows)
        return max(0, self.blocks_for(lease.length + rows) - len(lease.blocks))

    def gain(self, lease: Lease) -> int:
        """Blocks that would come free if this lease were closed: those that no other lease holds."""
        return sum(self.pool.refs[block] == 1 for block in lease.blocks)

    def open(
        self,
        tokens: Sequence[int],
        groups: Iterable[str] | None = None,
        extra_key: str = "",
        layout: Layout = (),
        returns: int = 0,
    ) -> Lease:
        """A lease for a request with these tokens that keeps `groups` (None: all) complete.

        `lease.length` rows are there already, in every group but those that lag: the longest published prefix of full
        blocks, at most len(tokens) - 1, so that one row remains to be computed. Requests share only under the same
        `extra_key`, and where their tokens stand alike (`layout`).
        Takes no block that is not shared. `returns`: tokens of its text that are asked for again soon, as the client
        says; an eviction policy may believe it.
        """
        extra = (self.groups if groups is None else frozenset(groups)) - {TARGET}
        if not extra <= self.groups:
            raise IntegrityError(f"Groups {sorted(extra - self.groups)} are not among {sorted(self.groups)}.")
        root = root_hash(extra_key, self.identity)
        lease = Lease(
            self.pool, root, dict.fromkeys(sorted(extra), 0), layout=layout, states=self.states, returns=returns,
            private=extra_key.startswith(PRIVATE_KEY),
        )  # fmt: skip
        self._match(lease, tokens)
        self._leases[lease] = None
        return lease

    def names(self, tokens: Sequence[int], extra_key: str = "", layout: Layout = ()) -> list[bytes]:
        """The names of the full blocks that a request with these tokens can share; one token remains to be computed."""
        size, name, out = self.block_size, root_hash(extra_key, self.identity), list[bytes]()
        for start in range(0, len(tokens) - size, size):
            name = chain_hash(name, tokens[start : start + size], named(layout, start, start + size))
            out.append(name)
        return out

    def drop(self, names: Iterable[bytes]) -> None:
        """Take the blocks of these names that no lease holds out of the index."""
        for name in names:
            block = self.pool.index.get(name)
            if block is not None and not self.pool.refs[block]:
                self.pool.forget(block)

    def begin(self, lease: Lease, given: int, nodes: int) -> Txn:
        """Reserve rows for `given` tokens and `nodes` candidates; CapacityError, and nothing changed, without room."""
        return Txn(self._mine(lease), given, nodes)

    def advance(self, lease: Lease, group: str, length: int) -> None:
        """Set how many rows an extra group has complete: between the sealed rows and `lease.length`. Call it once the
        rows are written; `seal` then publishes."""
        least = self._mine(lease).sealed * self.block_size
        if group not in lease.frontier or not least <= length <= lease.length:
            raise IntegrityError(f"Frontier {length} of group {group!r} is outside {least}..{lease.length}.")
        lease.frontier[group] = length

    def seal(self, lease: Lease) -> None:
        """Publish what has become sealed since a drafter's frontier advanced (a commit seals by itself)."""
        self._mine(lease).seal()

    def rewind(self, lease: Lease, length: int) -> int:
        """Forget committed rows from `length` on, in all groups; return the length truly kept. Blocks that are shared
        or published are immutable: inside one, the kept length goes down to its start. No Txn may be open but one whose
        rows wait between two layers, which is aborted."""
        self.restart(lease)
        if lease.txn is not None or not 0 <= length <= lease.length:
            raise IntegrityError(f"Rewind to {length} needs a lease without a Txn and a length in 0..{lease.length}.")
        return lease.cut(length)

    def restart(self, lease: Lease) -> None:
        """Drop the rows that wait between two layers, if any do: they begin again at the first."""
        if (txn := self._mine(lease).txn) is not None and txn.layer:
            txn.abort()

    def fork(self, lease: Lease) -> Lease:
        """A second lease on the same full blocks. It ends at the last full block's end, in groups with a state
        at one with a kept state: what follows in the text has to be computed again. An open Txn stays with the
        original."""
        behind = [value for group, value in lease.frontier.items() if group in self.states]
        rows = self._mine(lease).length // self.block_size * self.block_size
        if self.pool.snapshots is not None and self.states & lease.groups:
            rows = lease.goes_on(min((rows, *behind)))
        full = rows // self.block_size
        frontier = {group: min(value, rows) for group, value in lease.frontier.items()}
        tokens, blocks, names = lease.tokens[:rows], lease.blocks[:full], list(lease.hashes[:full])
        fork = Lease(self.pool, lease.root, frontier, tokens, blocks, names, lease.layout, states=self.states)
        fork.returns, fork.private = lease.returns, lease.private
        for block in fork.blocks:
            self.pool.acquire(block)
        self._leases[fork] = None
        return fork

    def tips(self, group: str) -> list[int]:
        """Pool slots of the group's last row in each text: the states that are needed in addition to those of full
        blocks."""
        return [tip for lease in self._leases if (tip := lease.tip(group)) is not None]

    def ends(self) -> list[int] | None:
        """Pool slots of the ends of blocks whose states are kept in addition to `tips`; None: of all blocks."""
        kept, size = self.pool.snapshots, self.block_size
        return None if kept is None else [block * size + size - 1 for block in kept.blocks]

    def graft(self, lease: Lease, other: Lease, start: int, stop: int) -> list[Move]:
        """Append the rows start .. stop of another lease, in the groups that have them and keep no state, which would
        lack what was before them; the copies are the caller's to do, as after a commit. `lease.layout` says where they
        stand now. CapacityError, and nothing changed, without room."""
        here = self._mine(lease).length
        txn = self.begin(lease, stop - start, 0)
        moves = list(zip(self._mine(other).slots(start, stop), txn.slots, strict=True))
        txn.commit([], other.tokens[start:stop])
        for group, frontier in lease.frontier.items():
            if frontier == here and group not in self.states:
                lease.frontier[group] = here + max(0, min(stop, other.frontier.get(group, 0)) - start)
        lease.seal()
        return moves

    def close(self, lease: Lease, again: bool = False) -> None:
        """Give all blocks back, aborting an open Txn. Published ones stay in the index until evicted. `again`: its
        request waits, and opens another lease on this text."""
        if (txn := self._mine(lease).txn) is not None:
            txn.abort()
        if again:
            self.pool.expect(lease.blocks)
        lease.cut(0)
        del self._leases[lease]

    def drop_prefix(self) -> None:
        """Empty the index; what leases hold stays theirs."""
        watcher, self.pool.watcher = self.pool.watcher, None
        for block in list(self.pool.index.values()):
            self.pool.forget(block)
        self.pool.watcher = watcher
        if watcher is not None:
            watcher.cleared()

    def check_integrity(self) -> None:
        """IntegrityError, naming the block, when the books contradict themselves. O(blocks + tokens): between steps in
        tests, and whenever the engine is idle."""
        self.pool.check(Counter(block for lease in self._leases for block in lease.blocks))
        for lease in self._leases:
            lease.check()

    def _match(self, lease: Lease, tokens: Sequence[int]) -> None:
        size, name = self.block_size, lease.root
        if not self.pool.prefix:
            return
        starts = range(0, len(tokens) - size, size)
        self.pool.queries += len(starts)
        need, names = lease.groups - self.lagging, list[bytes]()
        there = dict.fromkeys(lease.groups & self.lagging, 0)
        for start in starts:
            chunk = tokens[start : start + size]
            name = chain_hash(name, chunk, named(lease.layout, start, start + size))
            block = self.pool.find(name, need, start + size <= lease.returns)
            if block is None:
                break
            for group, rows in there.items():
                if rows == start and group in self.pool.groups[block]:
                    there[group] = start + size
            self.pool.acquire(block)
            self.pool.hits += 1
            lease.blocks.append(block)
            names.append(name)
            lease.tokens.extend(chunk)
        if self.pool.snapshots is not None and self.states & lease.groups:
            self._shorten(lease, len(tokens), self.pool.snapshots)
        lease.frontier = {group: min(there.get(group, lease.length), lease.length) for group in lease.frontier}
        lease.hashes = names[: min((lease.length, *lease.frontier.values())) // size]

    def _shorten(self, lease: Lease, tokens: int, kept: Snapshots) -> None:
        """A prefix ends where a state is kept. What is computed again leaves one where it parts from other texts, and
        behind the last block that a text with the same beginning can share."""
        found, rows = len(lease.blocks), lease.goes_on(lease.length)
        full = rows // self.block_size
        lease.marks = frozenset({found - 1, (tokens - 1) // self.block_size - 1})
        self.pool.hits -= found - full
        surplus = lease.blocks[full:]
        del lease.blocks[full:], lease.tokens[rows:]
        self.pool.release(reversed(surplus))
        if full:
            kept.use(lease.blocks[-1])

    def _mine(self, lease: Lease) -> Lease:
        if lease not in self._leases:
            raise IntegrityError("The lease is closed, or belongs to another cache.")
        return lease
