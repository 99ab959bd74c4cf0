"""One round of propose and verify on one request: rows reserved by count, then committed or given back (D3)."""

from collections.abc import Sequence
from typing import Any

from paceline.cache.lease import Lease
from paceline.core.errors import IntegrityError

Move = tuple[int, int]
"""(source slot, target slot)."""


class Txn:
    """Rows base .. base+given+nodes of one lease. Made by `Cache.begin` before anything is drawn.

        base              lease.length at begin
        slots             [given + nodes]  pool slot of each row: the given ones, then the candidates by rank
        table             block ids that cover all rows below base + given + nodes

    While it is open its slots may be written, in the pools of all groups, as often as its owner likes, over several
    steps. It ends once, by `commit` or `abort`; a second end raises IntegrityError.

    Between the steps of a prompt that advances by layers `layer` counts those that all its rows have run through, and
    `held` is what they left with; both end with it.
    """

    def __init__(self, lease: Lease, given: int, nodes: int) -> None:
        """CapacityError without room; nothing has changed then."""
        if lease.txn is not None or given < 0 or nodes < 0:
            raise IntegrityError(f"A Txn of {given} + {nodes} rows needs a lease without an open Txn, and counts >= 0.")
        self.lease, self.base, self.given, self.nodes = lease, lease.length, given, nodes
        self.open, self.layer = True, 0
        self.held: Any = None
        need = lease.pool.blocks_for(self.base + self.rows) - len(lease.blocks)
        more = lease.pool.allocate(need)
        if given or self.base:
            lease.reach(more)
        else:
            lease.blocks += more  # held for a text that is to come
        lease.txn = self
        self.table = list(lease.blocks)
        self.slots = lease.slots(self.base, self.base + self.rows)

    @property
    def rows(self) -> int:
        return self.given + self.nodes

    def commit(self, path: Sequence[int], tokens: Sequence[int]) -> list[Move]:
        """Keep the given rows and the accepted candidates, drop the others.

        path: ranks of the accepted candidates among the reserved ones, ascending (parents precede children).
        tokens: ids of the given rows and the path. Returns the copies that make the accepted rows contiguous, none for
        a chain's prefix: the caller does them, in the pool of every group that wrote candidates, all reads before any
        write, before the next pass and before the next `begin`. Then length, table and index are already final.
        """
        self._check(path, tokens)
        self._end()
        drafted = self.slots[self.given :]
        moves = [(drafted[rank], drafted[i]) for i, rank in enumerate(path) if rank != i]
        self.lease.tokens.extend(tokens)
        self.lease.trim()
        self.lease.seal()
        return moves

    def abort(self) -> None:
        """Drop all rows: the lease is as before `begin`. (Prefixes evicted to make room stay evicted.)"""
        self._end()
        self.lease.trim()

    def _check(self, path: Sequence[int], tokens: Sequence[int]) -> None:
        below = [-1, *path]
        if any(a >= b for a, b in zip(below, path)) or below[-1] >= self.nodes:
            raise IntegrityError(f"Path {list(path)} is not an ascending choice of {self.nodes} candidates.")
        if len(tokens) != self.given + len(path):
            raise IntegrityError(f"{len(tokens)} tokens are committed for {self.given} + {len(path)} rows.")

    def _end(self) -> None:
        if not self.open:
            raise IntegrityError("This Txn has ended; it commits or aborts once.")
        self.open, self.layer, self.held = False, 0, None
        self.lease.txn = None
