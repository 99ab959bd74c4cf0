"""States of recurrent layers: one for a text, not one for each token, and so a kind of K/V group of its own.

A state stands for all rows of a text up to one, and is named by the pool slot of that row:

    the last slot of a block     the state lies with the block, as K/V do: what a prefix of full blocks is shared with
    any other slot               a *tip*: a text's latest row, or a candidate of the pass at work

A pass begins each text with the state of the row before its first one, and never writes that. It leaves the states of
its candidates (each from its own parent's), of its last given rows, and at the ends of blocks, in the slots of those
rows. To commit is then what it is for K/V: the accepted rows' slots are moved together, and the next pass begins behind
them. To roll back is nothing. `keep` drops the tips that no text ends with.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.errors import InputError, IntegrityError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.rows import Rows
from paceline.model import pages

LAST = MAX_CANDIDATES + 1
"""Given rows whose states are left: a draft model's drafted tokens may be given ones, and of them any may be the last
that is kept (draft/pearl.py)."""


class StatePool:
    """The states of one layer: `blocks` places with the blocks, and behind them places for tips, of which there are as
    many as were ever needed at once."""

    def __init__(self, blocks: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.blocks, self.shape, self.dtype, self.device = blocks, shape, dtype, device
        self.ends = pages.tensor((blocks, *shape), dtype, device)
        self.tips = torch.zeros(0, *shape, dtype=dtype, device=device)

    def take(self, places: Sequence[int]) -> Tensor:
        """States [N, *shape], copied."""
        out = torch.empty(len(places), *self.shape, dtype=self.dtype, device=self.device)
        for part, mine, at in self._parts(places):
            out.index_copy_(0, mine, part.index_select(0, at))
        return out

    def put(self, places: Sequence[int], states: Tensor) -> None:
        """Write states [N, *shape]; no place comes twice."""
        if (most := max(places, default=0) - self.blocks) >= len(self.tips):
            room = max(most + 1, 2 * len(self.tips)) - len(self.tips)
            self.tips = torch.cat((self.tips, self.tips.new_zeros(room, *self.shape)))
        for part, mine, at in self._parts(places):
            part.index_copy_(0, at, states.index_select(0, mine).to(self.dtype))

    def _parts(self, places: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(the part of the pool, which of `places` are in it, where in it)"""
        ends = [i for i, place in enumerate(places) if place < self.blocks]
        tips = [i for i, place in enumerate(places) if place >= self.blocks]

        def numbers(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self.device)

        return [
            (part, numbers(mine), numbers([places[i] - first for i in mine]))
            for part, mine, first in ((self.ends, ends, 0), (self.tips, tips, self.blocks))
            if mine
        ]


@dataclass(slots=True)
class Scan:
    """A pass as recurrent layers see it: T rows over R texts, each row behind its parent."""

    begin: list[int | None]
    """[R] place of the state that a text begins with; None: it begins here, with zeros."""
    text: list[int]
    """[T] its text"""
    parent: list[int]
    """[T] the row before it in its text, always an earlier one; -1: the state that the text begins with."""
    kept: list[int]
    """Rows whose states are kept, ascending."""
    places: list[int]
    """Where each of those goes."""
    pools: "list[StatePool]"
    device: torch.device
    _windows: dict[int, Tensor] = field(default_factory=dict)

    def start(self, index: int) -> Tensor:
        """States [R, *shape] of a layer that the texts begin with. `index`: its number among the recurrent ones."""
        pool = self.pools[index]
        states = pool.take([place or 0 for place in self.begin])
        for text, place in enumerate(self.begin):
            if place is None:
                states[text] = 0
        return states

    def keep(self, index: int, states: Tensor) -> None:
        """Leave the states [kept, *shape] of a layer for later passes."""
        self.pools[index].put(self.places, states)

    def window(self, length: int) -> Tensor:
        """[T, length] of each row: where it and the `length` - 1 rows before it on its own path lie, the oldest first,
        among [R * (length - 1) rows that the states stand for, T rows of the pass]."""
        if length not in self._windows:
            before, behind, windows = length - 1, len(self.begin) * (length - 1), list[list[int]]()
            for row, (text, parent) in enumerate(zip(self.text, self.parent)):
                past = list(range(text * before, (text + 1) * before)) if parent < 0 else windows[parent][1:]
                windows.append([*past, behind + row])
            self._windows[length] = torch.tensor(windows, dtype=torch.int64, device=self.device).view(-1, length)
        return self._windows[length]


class States:
    """Where the states of a model's recurrent layers lie, by slots of the engine's pool."""

    def __init__(self, blocks: int, block_size: int, device: torch.device) -> None:
        self.blocks, self.block_size, self.device = blocks, block_size, device
        self.pools: list[StatePool] = []
        self.tips: dict[int, int] = {}
        """{slot: place}"""
        self._free: list[int] = []

    def add(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """One more recurrent layer."""
        self.pools.append(StatePool(self.blocks, shape, dtype, self.device))

    def is_end(self, slot: int) -> bool:
        """Is it the last of its block?"""
        return slot % self.block_size == self.block_size - 1

    def place(self, slot: int) -> int:
        """Place of the state after the row in this slot. Raises IntegrityError if it was not kept."""
        if self.is_end(slot):
            return slot // self.block_size
        if slot not in self.tips:
            raise IntegrityError(f"No state is kept behind the row in slot {slot}.")
        return self.tips[slot]

    def make(self, slot: int) -> int:
        """The place for a state behind the row in this slot."""
        if not self.is_end(slot) and slot not in self.tips:
            self.tips[slot] = self._free.pop() if self._free else self.blocks + len(self.tips)
        return self.place(slot)

    def drop(self, slot: int) -> None:
        if slot in self.tips:
            self._free.append(self.tips.pop(slot))

    def keep(self, slots: Collection[int]) -> None:
        """Drop all tips but those of these slots."""
        for slot in self.tips.keys() - slots:
            self.drop(slot)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy states from slot to slot, all read before any is written. A slot without a state leaves none."""
        known = [(s, t) for s, t in zip(source, target) if self.is_end(s) or s in self.tips]
        places = [self.place(s) for s, _ in known]
        states = [pool.take(places) for pool in self.pools]
        for t in {*target} - {t for _, t in known}:
            self.drop(t)
        places = [self.make(t) for _, t in known]
        for pool, each in zip(self.pools, states):
            pool.put(places, each)

    def scan(self, rows: Rows) -> Scan:
        """This pass, with a place for each state that it leaves."""
        count = rows.count
        slots, words = rows.numbers[2 * count : 3 * count], rows.numbers[3 * count : 4 * count]
        begin, text, parent, kept = list[int | None](), list[int](), list[int](), list[int]()
        tables = rows.numbers[4 * count : 4 * count + len(rows.segments) * rows.width]
        for number, segment in enumerate(rows.segments):
            before = self._before(tables, number * rows.width, segment.base) if segment.base else 0
            begin.append(self.place(before) if segment.base else None)
            first = segment.start + segment.given
            for row in range(segment.start, first):
                parent.append(row - 1 if row > segment.start else -1)
                if row >= first - LAST or self.is_end(slots[row]):
                    kept.append(row)
                else:
                    self.drop(slots[row])
            for rank in range(segment.nodes):
                above = (words[first + rank] & (1 << 64) - 1) & (1 << rank) - 1
                root = first - 1 if segment.given else -1
                parent.append(first + above.bit_length() - 1 if above else root)
                kept.append(first + rank)
            text += [number] * segment.rows
        places = [self.make(slots[row]) for row in kept]
        return Scan(begin, text, parent, kept, places, self.pools, self.device)

    def _before(self, tables: Sequence[int], at: int, base: int) -> int:
        """The slot of the row before a text's row `base`."""
        return tables[at + (base - 1) // self.block_size] * self.block_size + (base - 1) % self.block_size

    # -- as bytes ----------------------------------------------------------------------------------------------------

    def read(self, slots: Sequence[int]) -> bytes:
        """States at the ends of blocks among these slots, layer by layer."""
        places = [self.place(slot) for slot in slots if self.is_end(slot)]
        return b"".join(pool.take(places).cpu().view(torch.uint8).numpy().tobytes() for pool in self.pools)

    def size(self, slots: Sequence[int]) -> int:
        """Bytes of what `read` returns."""
        return sum(map(self.is_end, slots)) * sum(
            pool.ends[0].numel() * pool.ends.element_size() for pool in self.pools
        )

    def write(self, slots: Sequence[int], packed: bytes) -> None:
        """Put what `read` gave. InputError when the bytes are not of these blocks."""
        if len(packed) != self.size(slots):
            raise InputError(
                f"The packed states have {len(packed)} bytes, but {self.size(slots)} are expected: they are another "
                "model's, or of blocks of another size."
            )
        at, places = 0, [self.place(slot) for slot in slots if self.is_end(slot)]
        for pool in self.pools:
            size = len(places) * pool.ends[0].numel() * pool.ends.element_size()
            if size:
                flat = torch.frombuffer(bytearray(packed[at : at + size]), dtype=pool.dtype)
                pool.put(places, flat.view(len(places), *pool.shape).to(self.device))
            at += size
