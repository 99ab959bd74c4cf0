"""K/V and states of blocks as bytes: what parked requests, copies between engines and files on disk are made of."""

from collections.abc import Iterable, Mapping, Sequence

from paceline.cache.blocks import BlockPool
from paceline.core.component import Component
from paceline.engine.identity import forms_of


class BlockBytes:
    """Reads and writes the blocks of an engine's components. One thread owns it."""

    def __init__(self, components: Mapping[str, Component], whole: bool = True) -> None:
        """`whole`: each block has everything that a text continues from. A block that may lack a state is neither sent
        nor received."""
        self.components = components
        self.groups = forms_of(components)
        self.forms = self.groups if whole else {}
        """{group: name of what its K/V is} of the groups that have some."""
        self._sizes: dict[tuple[str, int], int] = {}

    def alike(self, forms: Mapping[str, str]) -> list[str]:
        """Sorted groups whose K/V fits here: same name and same form."""
        return sorted(group for group, form in forms.items() if self.forms.get(group) == form)

    def size(self, group: str, rows: int) -> int:
        """Bytes of one block of this number of rows in a group."""
        if (group, rows) not in self._sizes:
            self._sizes[group, rows] = len(self.components[group].read(list(range(rows))))
        return self._sizes[group, rows]

    def read(self, slots: Sequence[int], rows: int, groups: Iterable[str]) -> list[list[bytes]]:
        """The bytes of each block of this number of rows, in each group: [block][group]."""
        groups = list(groups)
        return [
            [self.components[group].read(list(slots[at : at + rows])) for group in groups]
            for at in range(0, len(slots) // rows * rows, rows)
        ]

    def write(self, slots: Sequence[int], rows: int, groups: Sequence[str], blocks: Sequence[Sequence[bytes]]) -> None:
        """Write the bytes of `read` into slots. InputError if they are not of this number of rows."""
        for number, parts in enumerate(blocks):
            here = list(slots[number * rows : (number + 1) * rows])
            for group, part in zip(groups, parts, strict=True):
                self.components[group].write(here, part)

    def wipe(self, pool: BlockPool, holders: Mapping[int, int]) -> None:
        """Zero the blocks that nobody else holds ({block: how many of those that give it up}), and let no request find
        any of them: logits were not finite, so K/V may be NaN, and a masked key of who has the block next has
        weight 0, but 0 times NaN is NaN."""
        for block, count in holders.items():
            if pool.hashes[block] is not None:
                pool.forget(block)
            if pool.refs[block] > count:
                continue
            slots = range(block * pool.block_size, (block + 1) * pool.block_size)
            for group in self.groups:
                self.components[group].write(list(slots), bytes(self.size(group, len(slots))))
