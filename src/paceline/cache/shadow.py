"""The better of two policies, by simulating both on names alone (Fiat et al., 1991; Wei, APPROX 2020)."""

from collections import OrderedDict
from collections.abc import Set as AbstractSet

from paceline.cache.eviction import LRU, Eviction


class Ghost:
    """What a cache of `slots` blocks would hold under a policy in which each use begins and ends at once."""

    def __init__(self, slots: int, policy: Eviction) -> None:
        self.slots = slots
        self.policy = policy
        self.faults = 0
        self._slot: dict[bytes, int] = {}
        self._name: dict[int, bytes] = {}
        self._next: int | None = None
        """The slot that the next fault frees, if that has been decided."""

    def __contains__(self, name: bytes) -> bool:
        return name in self._slot

    def ask(self, name: bytes, parent: bytes) -> bytes | None:
        """Use a block; the name that had to go for it."""
        gone, slot = None, self._slot.get(name)
        if slot is None:
            self.faults += 1
            slot = len(self._slot)
            if slot == self.slots:
                gone, slot = self.peek(), self._doomed()
                del self._slot[gone]
        if slot == self._next:
            self._next = None
        self._slot[name], self._name[slot] = slot, name
        self.policy.ask(slot, name, parent)
        self.policy.offer(slot)
        return gone

    def touch(self, name: bytes) -> None:
        """The end of a use."""
        slot = self._slot.get(name)
        if slot is not None and slot != self._next:
            self.policy.touch(slot)
            self.policy.offer(slot)

    def peek(self) -> bytes:
        """The name that goes at the next fault; the cache must be full."""
        return self._name[self._doomed()]

    @property
    def full(self) -> bool:
        return len(self._slot) == self.slots

    def _doomed(self) -> int:
        if self._next is None:
            self._next = self.policy.victim(self._name.keys())
        return self._next


class Shadow:
    """Forgets what the policy with fewer faults so far would not hold. In paging at most 2 min(one, other) + k faults.

    Proof: when a block that was forgotten at the time s is asked for again, the policy followed at s faults too. Let
    `first` end with fewer faults, F, and t be the last time that `second` was followed. Until t our faults at which
    `first` does not fault are ones of `second`, which had at most F by then; after t they are at most the k blocks that
    `first` held at t. The rest are faults of `first`: F more.
    """

    def __init__(self, blocks: int, first: Eviction, second: Eviction) -> None:
        self._ghosts = Ghost(blocks, first), Ghost(blocks, second)
        self._outside: tuple[OrderedDict[int, None], ...] = OrderedDict(), OrderedDict()
        """For each: candidates that it would not hold; outdated entries are dropped when met."""
        self._names: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}
        self._order = LRU()

    def ask(self, block: int, name: bytes, parent: bytes) -> None:
        self._name(block, name)
        self._order.ask(block, name, parent)
        for ghost, outside in zip(self._ghosts, self._outside):
            gone = ghost.ask(name, parent)
            if gone is not None and gone in self._blocks:
                outside[self._blocks[gone]] = None

    def tell(self, name: bytes, returns: bool) -> None:
        """The client's word on the content that is asked for next, for those of the two that hear it."""
        for ghost in self._ghosts:
            tell = getattr(ghost.policy, "tell", None)
            if tell is not None:
                tell(name, returns)

    def expect(self, name: bytes) -> None:
        """The content that is asked for next comes back for certain, for those of the two that hear it."""
        for ghost in self._ghosts:
            expect = getattr(ghost.policy, "expect", None)
            if expect is not None:
                expect(name)

    def touch(self, block: int) -> None:
        self._order.touch(block)
        for ghost in self._ghosts:
            ghost.touch(self._names[block])

    def offer(self, block: int) -> None:
        self._order.offer(block)
        for ghost, outside in zip(self._ghosts, self._outside):
            if self._names[block] not in ghost:
                outside[block] = None

    def victim(self, candidates: AbstractSet[int]) -> int:
        first, second = self._ghosts
        better = int(second.faults < first.faults)
        block = self._choose(self._ghosts[better], self._outside[better], candidates)
        del self._blocks[self._names.pop(block)]
        return block

    def _choose(self, ghost: Ghost, outside: OrderedDict[int, None], candidates: AbstractSet[int]) -> int:
        while outside:
            block, _ = outside.popitem(last=False)
            if block in candidates and self._names[block] not in ghost:
                return block
        following = self._blocks.get(ghost.peek()) if ghost.full else None
        if following is not None and following in candidates:
            return following
        return self._order.victim(candidates)

    def _name(self, block: int, name: bytes) -> None:
        """A block that left the index unnoticed may have had another name, and the name another block."""
        old = self._names.get(block)
        if old != name:
            if old is not None:
                del self._blocks[old]
            if (other := self._blocks.get(name)) is not None:
                del self._names[other]
            self._names[block], self._blocks[name] = name, block
