"""The cache against a model: a K/V pool is a list that holds, per slot, the whole context its row was computed from."""

from collections.abc import Collection
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.cache.blocks import chain_hash, root_hash
from paceline.cache.cache import Cache
from paceline.cache.lease import Lease
from paceline.cache.policies import policy
from paceline.cache.txn import Txn
from paceline.core.errors import CapacityError

Context = tuple[str, tuple[int, ...]]
"""(extra key, tokens up to and with the row's own)."""
PICK = st.integers(0, 99)
TEXT = st.builds(lambda n, odd: [int(i == odd) for i in range(n)], st.integers(0, 9), st.integers(0, 19))
"""Mostly zeros: requests often share a prefix."""
TREE = st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 1)), max_size=7)
"""(parent, token) of each candidate."""
MOST = 4
"""Leases alive at once."""


@dataclass(eq=False)
class Sequence:
    """What the engine would know of one request, and what the cache must agree with."""

    lease: Lease
    key: str
    tokens: list[int]
    """Committed."""
    txn: Txn | None = None
    given: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    drafted: bool = False
    """The drafter's pool got the rows of the open Txn too."""

    def path(self, node: int) -> list[int]:
        """Ranks from depth 1 down to a candidate."""
        return [] if node < 0 else [*self.path(self.parents[node]), node]

    def context(self, node: int) -> Context:
        return self.key, (*self.tokens, *self.given, *(self.drawn[i] for i in self.path(node)))


class Followed:
    """What a subscriber of K/V events knows."""

    def __init__(self) -> None:
        self.held: dict[bytes, tuple[int, ...]] = {}

    def stored(self, root: bytes, parent: bytes | None, name: bytes, tokens: Collection[int]) -> None:
        assert name not in self.held
        assert name == chain_hash(parent or root, list(tokens))
        self.held[name] = tuple(tokens)

    def removed(self, name: bytes) -> None:
        del self.held[name]

    def cleared(self) -> None:
        self.held.clear()


class CacheMachine(RuleBasedStateMachine):
    """Random sessions on a small cache. Every rule may meet any number of open transactions of other requests."""

    eviction = "lru"

    @initialize(block_size=st.integers(1, 3), blocks=st.integers(4, 12), prefix=st.sampled_from([True, True, False]))
    def start(self, block_size: int, blocks: int, prefix: bool) -> None:
        forget = policy(self.eviction)(blocks)
        self.cache = Cache(blocks, block_size, groups=("target", "draft"), prefix=prefix, eviction=forget)
        self.pools: dict[str, list[Context | None]] = {
            "target": [None] * (blocks * block_size),
            "draft": [None] * (blocks * block_size),
        }
        self.live: list[Sequence] = []
        self.followed = self.cache.pool.watcher = Followed()

    @invariant()
    def a_watcher_knows_what_is_published(self) -> None:
        assert self.followed.held.keys() == self.cache.pool.index.keys()

    @property
    def idle(self) -> list[Sequence]:
        return [s for s in self.live if s.txn is None]

    @property
    def busy(self) -> list[Sequence]:
        return [s for s in self.live if s.txn is not None]

    @property
    def lagging(self) -> list[Sequence]:
        return [s for s in self.live if s.lease.frontier.get("draft", len(s.tokens)) < len(s.tokens)]

    def reserve(self, seq: Sequence, given: list[int], tree: list[tuple[int, int]]) -> bool:
        """Begin, and write the rows as a forward pass would."""
        fits = self.cache.needs(seq.lease, len(given) + len(tree)) <= self.cache.room()
        before = (self.cache.room(), list(seq.lease.blocks))
        try:
            txn = self.cache.begin(seq.lease, len(given), len(tree))
        except CapacityError:
            assert not fits and before == (self.cache.room(), list(seq.lease.blocks))
            return False
        assert fits and len(txn.slots) == len(given) + len(tree) == len(set(txn.slots))
        seq.txn, seq.given = txn, given
        seq.parents, seq.drawn = [min(p, i - 1) for i, (p, _) in enumerate(tree)], [t for _, t in tree]
        seq.drafted = seq.lease.frontier.get("draft") == seq.lease.length
        rows = [(seq.key, (*seq.tokens, *given[: i + 1])) for i in range(len(given))]
        rows += [seq.context(node) for node in range(len(tree))]
        for pool in ("target", "draft")[: 1 + seq.drafted]:
            for slot, context in zip(txn.slots, rows):
                self.pools[pool][slot] = context
        return True

    def settle(self, seq: Sequence, node: int, advance: bool) -> None:
        """Commit the path down to a candidate, and copy as the models would."""
        assert seq.txn is not None
        path = seq.path(min(node, len(seq.drawn) - 1))
        new = [*seq.given, *(seq.drawn[i] for i in path)]
        moves = seq.txn.commit(path, new)
        assert path != list(range(len(path))) or not moves
        for pool in self.pools.values():
            for (_, target), context in zip(moves, [pool[source] for source, _ in moves]):
                pool[target] = context
        seq.tokens, seq.txn = seq.tokens + new, None
        if seq.drafted and advance:
            self.cache.advance(seq.lease, "draft", len(seq.tokens))
            self.cache.seal(seq.lease)

    @precondition(lambda self: len(self.live) < MOST)
    @rule(text=TEXT, draft=st.booleans(), key=st.sampled_from(["", "", "adapter"]), prefill=st.booleans())
    def open(self, text: list[int], draft: bool, key: str, prefill: bool) -> None:
        lease = self.cache.open(text, ("target", "draft") if draft else ("target",), key)
        assert lease.length <= max(0, len(text) - 1)
        assert set(lease.frontier.values()) <= {lease.length}
        seq = Sequence(lease, key, text[: lease.length])
        self.live.append(seq)
        if prefill and self.reserve(seq, text[lease.length :], []):
            self.settle(seq, -1, advance=True)

    @precondition(lambda self: bool(self.idle))
    @rule(pick=PICK, given=TEXT, tree=TREE)
    def begin(self, pick: int, given: list[int], tree: list[tuple[int, int]]) -> None:
        self.reserve(self.idle[pick % len(self.idle)], given, tree)

    @precondition(lambda self: bool(self.busy))
    @rule(pick=PICK, node=st.integers(-1, 6), advance=st.booleans())
    def commit(self, pick: int, node: int, advance: bool) -> None:
        self.settle(self.busy[pick % len(self.busy)], node, advance)

    @precondition(lambda self: bool(self.idle))
    @rule(pick=PICK, given=TEXT, tree=TREE, node=st.integers(-1, 6))
    def step(self, pick: int, given: list[int], tree: list[tuple[int, int]], node: int) -> None:
        seq = self.idle[pick % len(self.idle)]
        if self.reserve(seq, given, tree):
            self.settle(seq, node, advance=True)

    @precondition(lambda self: bool(self.busy))
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        seq = self.busy[pick % len(self.busy)]
        assert seq.txn is not None
        seq.txn.abort()
        seq.txn = None

    @precondition(lambda self: bool(self.idle))
    @rule(pick=PICK, back=st.integers(0, 9))
    def rewind(self, pick: int, back: int) -> None:
        seq = self.idle[pick % len(self.idle)]
        length = max(0, len(seq.tokens) - back)
        kept = self.cache.rewind(seq.lease, length)
        assert length - self.cache.block_size < kept <= length
        del seq.tokens[kept:]

    @precondition(lambda self: 0 < len(self.live) < MOST)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        seq = self.live[pick % len(self.live)]
        fork = self.cache.fork(seq.lease)
        size = self.cache.block_size
        assert fork.length == len(seq.tokens) // size * size and fork.blocks == seq.lease.blocks[: fork.length // size]
        self.live.append(Sequence(fork, seq.key, seq.tokens[: fork.length]))

    @precondition(lambda self: bool(self.lagging))
    @rule(pick=PICK, rows=st.integers(1, 9), seal=st.booleans())
    def advance(self, pick: int, rows: int, seal: bool) -> None:
        seq = self.lagging[pick % len(self.lagging)]
        start = seq.lease.frontier["draft"]
        stop = min(start + rows, len(seq.tokens))
        for position, slot in zip(range(start, stop), seq.lease.slots(start, stop)):
            self.pools["draft"][slot] = (seq.key, tuple(seq.tokens[: position + 1]))
        self.cache.advance(seq.lease, "draft", stop)
        if seal:
            self.cache.seal(seq.lease)

    @precondition(lambda self: bool(self.live))
    @rule(pick=PICK, drop=st.integers(0, 7))
    def close(self, pick: int, drop: int) -> None:
        self.cache.close(self.live.pop(pick % len(self.live)).lease)
        if drop == 7:
            self.cache.drop_prefix()
            assert not self.cache.pool.index

    @invariant()
    def books_are_right(self) -> None:
        self.cache.check_integrity()
        held = {block for s in self.live for block in s.lease.blocks}
        assert self.cache.room() == self.cache.num_blocks - len(held)

    @invariant()
    def every_lease_reads_its_own_context(self) -> None:
        for seq in self.live:
            lease = seq.lease
            assert lease.tokens == seq.tokens and (lease.txn is seq.txn)
            for group, frontier in {"target": lease.length, **lease.frontier}.items():
                read = [self.pools[group][slot] for slot in lease.slots(0, frontier)]
                assert read == [(seq.key, tuple(seq.tokens[: i + 1])) for i in range(frontier)], group

    @invariant()
    def every_index_entry_names_what_its_slots_hold(self) -> None:
        size = self.cache.block_size
        for name, block in self.cache.pool.index.items():
            for group in self.cache.pool.groups[block]:
                key, tokens = self.pools[group][block * size + size - 1] or ("", ())
                chain = root_hash(key)
                for start in range(0, len(tokens), size):
                    chain = chain_hash(chain, tokens[start : start + size])
                assert chain == name, group
