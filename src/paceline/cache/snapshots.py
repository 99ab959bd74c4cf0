"""Which ends of blocks have the state of their text kept, where a budget holds fewer than one for each block."""

from paceline.core.errors import InputError


class Snapshots:
    """Blocks behind whose last row a state is kept in every group of states: at most `limit`.

    A block enters when it is handed out, before a row of it is computed, and leaves when another needs the place or the
    block is free: so what is here is there, once the block is full. It never enters twice. The one that was used
    longest ago goes first, of those that one text alone used; of shared ones, where they take more than half.
    """

    def __init__(self, limit: int, blocks: int) -> None:
        """Arguments: `limit` in states, at least 1, else InputError; `blocks` of the pool. Each text leaves a state
        behind every n-th of its blocks, with n so that those of a full pool fit."""
        if limit < 1:
            raise InputError(f"The budget holds {limit} states, but it must hold at least 1.")
        self.limit, self.every = limit, -(-blocks // limit)
        self.evictions = 0
        self._once: dict[int, None] = {}
        self._shared: dict[int, None] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._once or block in self._shared

    def __len__(self) -> int:
        return len(self._once) + len(self._shared)

    @property
    def blocks(self) -> list[int]:
        return [*self._once, *self._shared]

    def add(self, block: int) -> None:
        """A block's state will be kept; that of another goes, where the budget is full."""
        while len(self) >= self.limit:
            crowded = not self._once or len(self._shared) > self.limit // 2
            self.drop(next(iter(self._shared if crowded else self._once)))
            self.evictions += 1
        self._once[block] = None

    def use(self, block: int) -> None:
        """A text goes on from this state."""
        if block in self:
            self.drop(block)
            self._shared[block] = None

    def drop(self, block: int) -> None:
        """Keep the state no longer; nothing where none is kept."""
        self._once.pop(block, None)
        self._shared.pop(block, None)
