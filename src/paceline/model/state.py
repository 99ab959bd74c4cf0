"""States of recurrent layers: one for a text, not one for each token, and so a kind of K/V group of its own.

A state stands for all rows of a text up to one, and is named by the pool slot of that row. It is known in two forms:

    an *anchor*     the state itself, as large as it is: behind the last row of each block, or of those blocks that a
                    budget of states has room for (`keep`), and behind the last given row of a pass
    a *record*      what one row brings to each layer, some numbers: behind each candidate, and behind the last given
                    rows. A state is that of the anchor before it, and the records since then, replayed

A pass begins each text with the state of the row before its first one, and never writes that: it takes the anchor,
and computes the recorded rows again, as if they were rows of its own (STree's activation replay, arXiv 2505.14969). It
leaves records under the slots of its rows. To commit is then what it is for K/V: the accepted rows' slots are moved
together. To roll back is nothing. Only the row that comes to lie at such an end gets its whole state at once: that
block may be shared from then on. `keep` drops what no text goes on from.
"""

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.errors import InputError, IntegrityError
from paceline.core.forest import MAX_CANDIDATES
from paceline.core.rows import Rows

LAST = MAX_CANDIDATES + 1
"""Given rows that are recorded: a draft model's drafted tokens may be given ones, and of them any may be the last
that is kept (draft/pearl.py)."""
Shape = tuple[int, ...]


class StatePool:
    """The states of one layer: as many places as were ever needed at once. A state has parts: the last inputs of a
    convolution, a matrix."""

    def __init__(self, parts: Sequence[tuple[Shape, torch.dtype]], device: torch.device) -> None:
        self.parts, self.device = tuple(parts), device
        self.tips: list[list[Tensor]] = []
        """[place][part]"""
        self.addresses = [array("Q") for _ in parts]
        """Addresses of each part of those."""

    @property
    def bytes(self) -> int:
        """Bytes of one state."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.parts)

    def zeros(self) -> list[Tensor]:
        """The state that a text begins with."""
        return [torch.zeros(shape, dtype=dtype, device=self.device) for shape, dtype in self.parts]

    def take(self, place: int) -> list[Tensor]:
        """The parts of a state; not copies."""
        return self.tips[place]

    def reach(self, place: int) -> None:
        """Make room for a state in this place."""
        while place >= len(self.tips):
            self.tips.append(self.zeros())
            for each, part in zip(self.addresses, self.tips[-1]):
                each.append(part.data_ptr())

    def put(self, place: int, parts: Sequence[Tensor]) -> None:
        """Write a state."""
        self.reach(place)
        for mine, part in zip(self.take(place), parts, strict=True):
            mine.copy_(part)


@dataclass(slots=True)
class Part:
    """One text's rows among all N: recorded ones, which are replayed, then given ones, then candidates."""

    begin: int | None
    """Place of the state that they begin with; None: the text begins here, with zeros."""
    first: int
    """The first of them among all N rows."""
    known: int
    given: int
    parents: list[int]
    """Parent of each candidate, among the candidates; -1: the last given row (or recorded one, where none is given)."""
    anchors: list[tuple[int, int]]
    """(row, counted from `first`; place) of the states that are left whole, ascending."""

    @property
    def chain(self) -> int:
        """Rows before the candidates."""
        return self.known + self.given

    @property
    def rows(self) -> int:
        return self.chain + len(self.parents)


@dataclass(slots=True)
class Scan:
    """A pass as recurrent layers see it: T rows of its own, N with those that are replayed, over R texts."""

    parts: list[Part]
    replayed: list[int]
    """Places of the records of the replayed rows, text by text."""
    kept: list[int]
    """Rows of the pass that are recorded, ascending, and where."""
    places: list[int]
    states: "States"
    own: Tensor
    """[T] the pass's own rows among all N"""
    _windows: dict[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """N"""
        return self.parts[-1].first + self.parts[-1].rows

    def everything(self, index: int, rows: Tensor) -> Tensor:
        """All N rows [N, n], of which `rows` [T, n] are the pass's own, of the recurrent layer `index`."""
        if not self.replayed:
            return rows
        whole = rows.new_empty(self.count, rows.shape[1])
        whole[self.own] = rows
        others = torch.ones(self.count, dtype=torch.bool, device=rows.device)
        others[self.own] = False
        whole[others] = self.states.records[index][self.replayed].to(rows.dtype)
        return whole

    def start(self, index: int, text: int) -> list[Tensor]:
        """The parts of the state that a text begins with, copied."""
        pool, place = self.states.pools[index], self.parts[text].begin
        if place is None:
            return pool.zeros()
        return [part.clone() for part in pool.take(place)]

    def record(self, index: int, rows: Tensor) -> None:
        """Leave the records of the pass's own rows [T, n]."""
        self.states.write_records(index, self.places, rows[self.kept])

    def anchor(self, index: int, place: int, parts: Sequence[Tensor]) -> None:
        """Leave a whole state."""
        self.states.pools[index].put(place, parts)

    def window(self, length: int) -> Tensor:
        """[N, length] of each row: where it and the `length` - 1 rows before it on its own path lie, the oldest first,
        among [R * (length - 1) rows that the states stand for, N rows]."""
        if length not in self._windows:
            before, behind, windows = length - 1, len(self.parts) * (length - 1), list[list[int]]()
            for text, part in enumerate(self.parts):
                past = list(range(text * before, (text + 1) * before))
                for row in range(part.rows):
                    if row >= part.chain:
                        parent = part.parents[row - part.chain]
                        above = part.chain + parent if parent >= 0 else part.chain - 1
                        past = windows[part.first + above][1:] if above >= 0 else self._begin(text, before)
                    windows.append([*past, behind + part.first + row])
                    past = windows[-1][1:]
            self._windows[length] = torch.tensor(windows, dtype=torch.int64, device=self.own.device).view(-1, length)
        return self._windows[length]

    @staticmethod
    def _begin(text: int, before: int) -> list[int]:
        return list(range(text * before, (text + 1) * before))


@dataclass(slots=True)
class Record:
    """What is kept of one row."""

    place: int
    before: int | None
    """The slot of the row before it; None: the text begins with it."""


Replay = Callable[[Scan], None]
"""Computes the replayed rows of a scan through each recurrent layer, and leaves the anchors."""


class States:
    """Where the states of a model's recurrent layers lie, by slots of the engine's pool."""

    def __init__(self, block_size: int, device: torch.device, replay: Replay) -> None:
        """`replay`: computes recorded rows again where a whole state is needed outside a pass."""
        self.block_size, self.device, self.replay = block_size, device, replay
        self.pools: list[StatePool] = []
        self.records: list[Tensor] = []
        """Records of each layer [places, numbers of a row]."""
        self.tips: dict[int, int] = {}
        """{slot: place} of the anchors."""
        self.whole: set[int] | None = None
        """Slots whose rows leave an anchor; None: the ends of all blocks."""
        self.known: dict[int, Record] = {}
        """{slot: record}"""
        self._free: list[int] = []
        self._free_records: list[int] = []

    def add(self, parts: Sequence[tuple[Shape, torch.dtype]], record: int, dtype: torch.dtype) -> None:
        """One more recurrent layer, whose state has these parts, and to which a row brings `record` numbers."""
        self.pools.append(StatePool(parts, self.device))
        self.records.append(torch.zeros(0, record, dtype=dtype, device=self.device))

    def is_end(self, slot: int) -> bool:
        """Is this slot the last of its block?"""
        return slot % self.block_size == self.block_size - 1

    def lasting(self, slot: int) -> bool:
        """Does the row in this slot leave an anchor that stays?"""
        return self.is_end(slot) if self.whole is None else slot in self.whole

    def chain(self, slot: int) -> tuple[int | None, list[int]]:
        """(slot of the anchor, None where the text begins; slots of the records since then, the oldest first) that the
        state behind the row in this slot is made of. Raises IntegrityError if it was not kept."""
        at, since = slot, list[int]()
        while at not in self.tips:
            if at not in self.known:
                raise IntegrityError(f"No state is kept behind the row in slot {slot}.")
            since.append(at)
            before = self.known[at].before
            if before is None:
                return None, since[::-1]
            at = before
        return at, since[::-1]

    def place(self, slot: int) -> int:
        """Place of the anchor behind the row in this slot."""
        return self.tips[slot]

    def make(self, slot: int) -> int:
        """The place for an anchor behind the row in this slot."""
        if slot not in self.tips:
            self.tips[slot] = self._free.pop() if self._free else len(self.tips)
        return self.place(slot)

    def make_record(self, slot: int, before: int | None) -> int:
        """The place for the record of the row in this slot."""
        place = self.known[slot].place if slot in self.known else None
        if place is None:
            place = self._free_records.pop() if self._free_records else len(self.known)
        self.known[slot] = Record(place, before)
        return place

    def reach(self, index: int, places: Sequence[int]) -> Tensor:
        """The records of a layer, with room for these."""
        pool = self.records[index]
        if (most := max(places, default=-1)) >= len(pool):
            more = pool.new_zeros(max(most + 1, 2 * len(pool)) - len(pool), pool.shape[1])
            self.records[index] = pool = torch.cat((pool, more))
        return pool

    def write_records(self, index: int, places: Sequence[int], rows: Tensor) -> None:
        pool = self.reach(index, places)
        if places:
            pool[torch.tensor(places, device=self.device)] = rows.to(pool.dtype)

    def blank(self, slots: Sequence[int]) -> None:
        """Put zeros behind the rows in these slots."""
        for slot in slots:
            place = self.make(slot)
            for pool in self.pools:
                pool.put(place, pool.zeros())

    def drop(self, slot: int) -> None:
        """Forget what is known behind this slot."""
        if slot in self.tips:
            self._free.append(self.tips.pop(slot))
        if slot in self.known:
            self._free_records.append(self.known.pop(slot).place)

    def keep(self, slots: Collection[int], ends: Collection[int] | None = None) -> None:
        """Drop all but what the states behind these slots are made of, and the anchors behind `ends`, where there are
        some; None: behind the ends of all blocks. Rows in `ends` leave an anchor from now on."""
        self.whole = None if ends is None else {*ends, *slots}
        needed = {slot for slot in self.tips if self.lasting(slot)}
        for slot in slots:
            anchor, since = self.chain(slot)
            needed |= {*since, *([] if anchor is None else [anchor])}
        for slot in (self.tips.keys() | self.known.keys()) - needed:
            self.drop(slot)
        for slot in self.tips.keys() & self.known.keys():  # the state is whole
            self._free_records.append(self.known.pop(slot).place)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """What is known behind slots, from slot to slot, all read before any is written. A slot without leaves none."""
        moved, settled = dict(zip(source, target)), set[int]()
        for s, t in moved.items():
            if self.lasting(t) and (s in self.known or s in self.tips):
                self.settle(s, t)
                settled.add(t)
        taken = [(t, self.known.pop(s, None), self._lift(s)) for s, t in moved.items()]
        for t in moved.values():
            if t not in settled:
                self.drop(t)
            elif t in self.known:
                self._free_records.append(self.known.pop(t).place)
        for t, record, place in taken:
            if record is not None:
                before = record.before
                self.known[t] = Record(record.place, before if before is None else moved.get(before, before))
            if place is not None and t not in settled:
                self.tips[t] = place
            elif place is not None:
                self._free.append(place)

    def _lift(self, slot: int) -> int | None:
        """The place of the anchor behind a slot, which loses it; None where that stays."""
        return None if self.lasting(slot) else self.tips.pop(slot, None)

    def settle(self, slot: int, end: int) -> None:
        """Make the whole state behind the row in `slot`, for the end of a block that it is moved to."""
        anchor, since = self.chain(slot)
        begin = None if anchor is None else self.place(anchor)
        place = self.make(end)
        if not since:
            for pool in self.pools:
                pool.put(place, pool.zeros() if begin is None else [part.clone() for part in pool.take(begin)])
            return
        part = Part(begin, 0, len(since), 0, [], [(len(since) - 1, place)])
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.replay(Scan([part], [self.known[it].place for it in since], [], [], self, none))

    def scan(self, rows: Rows) -> Scan:
        """The scan of a pass, with slots for the states and records that it leaves."""
        count, parts, own, replayed = rows.count, list[Part](), list[int](), list[int]()
        slots, words = rows.numbers[2 * count : 3 * count], rows.numbers[3 * count : 4 * count]
        kept, left, first = list[int](), list[tuple[int, int | None]](), 0
        tables = rows.numbers[4 * count : 4 * count + len(rows.segments) * rows.width]
        for number, segment in enumerate(rows.segments):
            root = self._before(tables, number * rows.width, segment.base) if segment.base else None
            anchor, since = (None, list[int]()) if root is None else self.chain(root)
            begin = None if anchor is None else self.place(anchor)
            replayed += [self.known[slot].place for slot in since]
            known, whole = len(since), dict[int, int]()
            start, end = segment.start, segment.start + segment.given
            before = root
            for row in range(start, end):
                slot = slots[row]
                self.drop(slot)
                if row >= end - LAST:
                    kept.append(row)
                    left.append((slot, before))
                if row == end - 1 or row == end - 1 - LAST or self.lasting(slot):
                    whole[known + row - start] = slot
                before = slot
            parents = list[int]()
            for rank in range(segment.nodes):
                above = (words[end + rank] & (1 << 64) - 1) & (1 << rank) - 1
                parents.append(above.bit_length() - 1)
                slot = slots[end + rank]
                self.drop(slot)
                kept.append(end + rank)
                left.append((slot, slots[end + parents[-1]] if parents[-1] >= 0 else before))
                if self.lasting(slot):
                    whole[known + segment.given + rank] = slot
            own += range(first + known, first + known + segment.rows)
            anchors = [(row, self.make(slot)) for row, slot in sorted(whole.items())]
            parts.append(Part(begin, first, known, segment.given, parents, anchors))
            first += known + segment.rows
        places = [self.make_record(slot, before) for slot, before in left]
        return Scan(parts, replayed, kept, places, self, torch.tensor(own, dtype=torch.int64, device=self.device))

    def _before(self, tables: Sequence[int], at: int, base: int) -> int:
        """The slot of the row before a text's row `base`."""
        return tables[at + (base - 1) // self.block_size] * self.block_size + (base - 1) % self.block_size

    # -- as bytes ----------------------------------------------------------------------------------------------------

    def read(self, slots: Sequence[int]) -> bytes:
        """States at the ends of blocks among these slots, layer by layer; zeros where none was left. Nothing where a
        budget decides which there are."""
        found = [self.tips.get(slot) for slot in self._ends(slots)]
        states = [[pool.zeros() if place is None else pool.take(place) for place in found] for pool in self.pools]
        parts = [part for each in states for part in zip(*each)]
        return b"".join(
            p.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for part in parts for p in part
        )

    def _ends(self, slots: Sequence[int]) -> list[int]:
        return [slot for slot in slots if self.is_end(slot)] if self.whole is None else []

    def size(self, slots: Sequence[int]) -> int:
        """Bytes of what `read` returns."""
        return len(self._ends(slots)) * sum(pool.bytes for pool in self.pools)

    def write(self, slots: Sequence[int], packed: bytes) -> None:
        """Put what `read` gave. InputError when the bytes are not of these blocks."""
        if len(packed) != self.size(slots):
            raise InputError(
                f"The packed states have {len(packed)} bytes, but {self.size(slots)} are expected: they are another "
                "model's, or of blocks of another size."
            )
        at, places = 0, [self.make(slot) for slot in self._ends(slots)]
        for pool in self.pools:
            for place in places:
                pool.reach(place)
            for number, (shape, dtype) in enumerate(pool.parts):
                size = math.prod(shape) * dtype.itemsize
                for place in places:
                    if size:
                        flat = torch.frombuffer(bytearray(packed[at : at + size]), dtype=dtype)
                        pool.take(place)[number].copy_(flat.view(shape))
                    at += size
