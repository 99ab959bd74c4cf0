"""Copies of requests that go on, and room for requests that are to come: `Peek`, `Reserve` and `Settle`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from secrets import token_bytes
from typing import Any

from pydantic import ConfigDict, TypeAdapter, create_model

from paceline.core.component import TARGET
from paceline.core.errors import InputError
from paceline.core.handover import Reservations
from paceline.core.joined import Layout, Stretch
from paceline.core.operations import Reserve
from paceline.core.request import Request
from paceline.engine.desk import Desk, lease_of
from paceline.engine.kv import BlockBytes
from paceline.engine.packing import (
    Origin,
    ParkedRequest,
    check_ids,
    check_layout,
    imported_key,
    opened,
    parsed,
    sealed,
    stretch_type,
    taken,
)
from paceline.engine.recorder import Recorder

PIECE_HEADER = b'{"kind": "piece"'
"""What the header of a piece begins with."""


@dataclass(frozen=True, slots=True)
class PeekedPiece:
    """Sealed blocks of a request, checked. `tokens`: those of these blocks."""

    first: int
    block: int
    tokens: list[int]
    extra_key: str
    layout: Layout
    forms: dict[str, str]
    blocks: list[list[bytes]]


@dataclass(slots=True)
class IncomingBlocks:
    """What has come for a reservation."""

    groups: list[str] = field(default_factory=list)
    """Groups whose K/V comes, the target's included; [] until the first piece."""
    extra_key: str = ""
    layout: Layout = ()
    tokens: list[int] = field(default_factory=list)
    key: str = field(default_factory=lambda: imported_key(token_bytes(32)))
    """Under what its K/V is named: no other request finds what came from elsewhere."""


class Transfers:
    """An engine's side of hand-overs. One thread owns it."""

    def __init__(self, desk: Desk, kv: BlockBytes, origin: Origin) -> None:
        self.desk, self.kv, self.origin = desk, kv, origin
        self.table = Reservations()
        self.incoming: dict[int, IncomingBlocks] = {}

    def peek(self, request: Request, first: int) -> bytes:
        """The sealed blocks of a request from `first` on. InputError where there are fewer."""
        size = self.desk.cache.block_size
        count = 0 if request.lease is None else lease_of(request).sealed
        if not 0 <= first <= count:
            raise InputError(
                f"Request {request.id} has {count} sealed blocks; from_block is {first}, but at most that."
            )
        groups, slots = list[str](), list[int]()
        if request.lease is not None:
            groups = sorted(lease_of(request).groups & self.kv.forms.keys())
            slots = lease_of(request).slots(first * size, count * size)
        blocks = self.kv.read(slots, size, groups) if groups else []
        count = first + len(blocks)
        header = {
            "kind": "piece",
            "model": self.origin.model,
            "first": first,
            "block": size,
            "tokens": request.tokens[first * size : count * size],
            "extra_key": request.extra_key,
            "layout": [each for each in request.layout if each.start <= count * size],
            "blocks": len(blocks),
            "groups": [[g, self.kv.forms[g], len(blocks[0][i]) if blocks else 0] for i, g in enumerate(groups)],
        }
        return sealed(header, [part for parts in blocks for part in parts])

    def reserve(self, wish: Reserve, now: float, recorder: Recorder) -> int:
        """Hold blocks."""
        number = self.table.reserve(wish.blocks, wish.seconds, wish.spare, self.desk.cache.room(), now)
        self.desk.reserve(number, wish.blocks)
        recorder.reserved(number, wish.blocks)
        self.incoming[number] = IncomingBlocks()
        return number

    def fill(self, number: int, packed: bytes, now: float, recorder: Recorder) -> int:
        """Put a piece into a reservation; how many blocks it has then."""
        piece = unpack_piece(packed, self.origin)
        held, here = self.table.get(number, now), self.incoming[number]
        size = self.desk.cache.block_size
        groups = self.kv.alike(piece.forms)
        if piece.block != size:
            raise InputError(
                f"The piece has blocks of {piece.block} tokens, but {size} are expected; park the request."
            )
        if piece.blocks and TARGET not in groups:
            raise InputError("The piece is of other K/V than this engine's; park the request, which computes it again.")
        if not piece.blocks:
            self.table.fill(number, piece.first, 0, now)
            return held.filled
        sizes = {group: self.kv.size(group, size) for group in groups}
        names = list(piece.forms)
        for group in groups:
            if len(piece.blocks[0][names.index(group)]) != sizes[group]:
                raise InputError(f"The piece has another size in {group} than {sizes[group]} bytes a block.")
        known = here.tokens[piece.first * size : (piece.first + len(piece.blocks)) * size]
        alike = (here.groups, here.extra_key, here.layout[: len(piece.layout)]) == (
            groups, piece.extra_key, piece.layout[: len(here.layout)]
        )  # fmt: skip
        if held.filled and (not alike or known != piece.tokens[: len(known)]):
            raise InputError("The piece is of another request than those before it; release the reservation.")
        self.table.fill(number, piece.first, len(piece.blocks), now)
        if not held.filled:
            here.groups, here.extra_key = groups, piece.extra_key
            self.reopen(number, groups, piece.layout, here.key, recorder)
        here.layout = max(here.layout, piece.layout, key=len)
        here.tokens[piece.first * size :] = piece.tokens
        self.write(number, piece.first, [[parts[names.index(group)] for group in groups] for parts in piece.blocks])
        return self.table.open[number].filled

    def reopen(self, number: int, groups: Sequence[str], layout: Layout, extra_key: str, recorder: Recorder) -> None:
        """The blocks of a reservation are for a text of this kind from now on."""
        extra = [group for group in groups if group != TARGET]
        self.desk.reopen(number, extra, layout, extra_key)
        recorder.reserved(number, None, extra, layout, extra_key)

    def write(self, number: int, first: int, blocks: Sequence[Sequence[bytes]]) -> None:
        """K/V of blocks from `first` on, in the groups of the reservation."""
        size, slots = self.desk.cache.block_size, self.desk.reserved[number].slots
        self.kv.write(slots[first * size :], size, self.incoming[number].groups, blocks)

    def check(self, number: int, parked: ParkedRequest, now: float) -> None:
        """InputError unless a parked request continues what has come for a reservation."""
        held, here, size = self.table.get(number, now), self.incoming[number], self.desk.cache.block_size
        tokens = [*parked.fields["prompt"], *parked.fields["output"]]
        if parked.first > held.filled:
            raise InputError(f"The parked request begins with block {parked.first}, but {held.filled} are here.")
        if held.filled and parked.block != size:
            raise InputError(f"The parked request has blocks of {parked.block} tokens, but {size} are expected.")
        alike = (
            here.extra_key == parked.fields["extra_key"] and here.layout == parked.fields["layout"][: len(here.layout)]
        )
        if held.filled and (not alike or tokens[: len(here.tokens)] != here.tokens):
            raise InputError("The parked request is another one than the pieces before it; release the reservation.")

    def settle(self, number: int, parked: ParkedRequest, request: Request, recorder: Recorder) -> None:
        """The blocks of a reservation enter the prefix cache, as those of the request that has come."""
        held, here, size = self.table.open[number], self.incoming.pop(number), self.desk.cache.block_size
        fits = parked.block == size and TARGET in self.kv.alike(parked.forms)
        groups = here.groups if held.filled else self.kv.alike(parked.forms)
        rest = parked.blocks[held.filled - parked.first :] if fits else []
        rest = rest[: held.blocks - held.filled] if set(groups) <= parked.forms.keys() else []
        rows = (held.filled + len(rest)) * size
        if rest:
            if not held.filled:
                here = self.incoming[number] = IncomingBlocks(groups)
                self.reopen(number, groups, request.layout, here.key, recorder)
            else:
                self.incoming[number] = here
            names = list(parked.forms)
            self.write(number, held.filled, [[parts[names.index(group)] for group in groups] for parts in rest])
            del self.incoming[number]
        tokens = request.tokens[:rows]
        request.imported = here.key if rows else ""
        self.desk.settle(number, tokens)
        recorder.settled(number, tokens)
        self.table.settle(number, request.id)

    def release(self, number: int, recorder: Recorder) -> None:
        """Give a reservation back; nothing when it is not there."""
        if number in self.table.open:
            self.table.release(number)
            del self.incoming[number]
            self.desk.settle(number, [])
            recorder.settled(number, [])

    def expire(self, now: float, recorder: Recorder) -> None:
        """Give back those whose time has run out, and forget those whose blocks the desk needed."""
        for number in [number for number in self.table.open if number not in self.desk.reserved]:
            self.table.release(number)
            del self.incoming[number]
        for number in self.table.expired(now):
            self.release(number, recorder)


def is_piece(packed: bytes) -> bool:
    """Whether these are bytes of `Peek`. InputError for damaged bytes."""
    return opened(packed)[0].startswith(PIECE_HEADER)


def unpack_piece(packed: bytes, origin: Origin) -> PeekedPiece:
    """InputError for bytes that are no piece, of another model, or that contradict themselves."""
    text, kv = opened(packed, "piece")
    header = parsed(text, piece_type(), "piece")
    if header.model != origin.model:
        raise InputError(
            "The piece is of another model, or of other dtypes or positions; settle it where it is the same."
        )
    groups: Mapping[str, tuple[str, int]] = {name: (form, size) for name, form, size in header.groups}
    try:
        if len(groups) != len(header.groups):
            raise InputError("a group comes twice")
        sizes = [size for _, size in groups.values()]
        blocks = taken(kv, sizes, header.blocks, header.block, len(header.tokens))
        layout = tuple(Stretch(*stretch) for stretch in header.layout)
        count = header.first * header.block + len(header.tokens)
        check_ids("tokens", header.tokens, origin.vocab_size)
        check_layout(layout, count, origin.joins, whole=False)
        if header.block < 1 or header.first < 0 or len(header.tokens) != header.blocks * header.block:
            raise InputError(f"it has {len(header.tokens)} tokens in {header.blocks} blocks of {header.block}")
    except InputError as error:
        raise InputError(f"The piece cannot be used: {str(error).rstrip('.')}; send it again.") from None
    forms = {name: form for name, (form, _) in groups.items()}
    return PeekedPiece(header.first, header.block, header.tokens, header.extra_key, layout, forms, blocks)


@cache
def piece_type() -> "TypeAdapter[Any]":
    """What the header of a piece is."""
    make: Any = create_model
    header = make(
        "PieceHeader", __config__=ConfigDict(extra="forbid", strict=True), kind=(str, ...), model=(str, ...),
        first=(int, ...), block=(int, ...), tokens=(list[int], ...), extra_key=(str, ...), layout=(stretch_type(), ...),
        blocks=(int, ...), groups=(list[tuple[str, str, int]], ...),
    )  # fmt: skip
    return TypeAdapter(header)
