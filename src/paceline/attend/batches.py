"""How the rows of a pass are cut into padded batches: requests with few rows together, prompts by pieces."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.rows import Rows, Segment

PADDED_ROWS = 16
"""Requests with at most this many rows share one padded batch."""
MIN_COUNTED_ROWS = 4
"""Rows that a request of fewer counts for there: its keys are read all the same."""


Run = tuple[int, int]
"""First and count of consecutive blocks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first .. first+count of a segment."""

    request: int
    segment: Segment
    first: int
    count: int

    @property
    def end(self) -> int:
        """Slots of the prefix that its rows may see."""
        return self.segment.base + min(self.first + self.count, self.segment.given)

    @property
    def nodes(self) -> int:
        """Candidates its rows may see: none if all of its rows are given."""
        return self.segment.nodes if self.first + self.count > self.segment.given else 0


def split(segments: list[Segment], scores: int) -> Iterator[list[Piece]]:
    """Pieces to compute together: short segments while, padded, they have at most `scores` pairs of row and key; long
    ones cut to about as many. So the scratch of a pass is bounded, whatever the requests and their texts."""
    short, rows, keys = list[Piece](), MIN_COUNTED_ROWS, 0
    for piece in (Piece(r, s, 0, s.rows) for r, s in enumerate(segments) if 0 < s.rows <= PADDED_ROWS):
        rows, keys = max(rows, piece.count), max(keys, piece.segment.base + piece.count)
        if short and (len(short) + 1) * rows * keys > scores:
            yield short
            short, rows, keys = [], max(MIN_COUNTED_ROWS, piece.count), piece.segment.base + piece.count
        short.append(piece)
    if short:
        yield short
    for request, segment in enumerate(segments):
        if segment.rows > PADDED_ROWS:
            step = max(PADDED_ROWS, scores // (segment.base + segment.rows))
            for first in range(0, segment.rows, step):
                yield [Piece(request, segment, first, min(step, segment.rows - first))]


@dataclass(slots=True)
class PaddedBatch:
    """R pieces padded to M rows; a padded row repeats the last of its piece, and its result is dropped.

    index [R, M]: numbers of the rows in the pass. target: the same, flat and without padding; keep: where those
    are in the flat [R * M], or None if there is no padding. limit [R, M]: slots that a row sees.
    """

    pieces: list[Piece]
    tables: Tensor
    index: Tensor
    position: Tensor
    limit: Tensor
    target: Tensor
    keep: Tensor | None = None
    parts: dict[int | None, "WindowPart"] = field(default_factory=dict)
    """By window."""

    @property
    def width(self) -> int:
        """Most candidates of a piece."""
        return max(piece.nodes for piece in self.pieces)

    def hide(self, seen: Tensor, slot: Tensor) -> Tensor:
        """seen [R, M, S] without the slots [R, S] that a segment hides."""
        for number, piece in enumerate(self.pieces):
            for first, last in piece.segment.hidden:
                seen[number] &= (slot[number] < first) | (slot[number] >= last)
        return seen

    def tree(self) -> tuple[Tensor, Tensor, Tensor]:
        """Columns [R, 1], one row per piece: the row of its first candidate, the slots before that row, the number of
        candidates."""
        numbers = [[p.segment.start + p.segment.given for p in self.pieces], [p.end for p in self.pieces]]
        numbers.append([p.nodes for p in self.pieces])
        start, end, nodes = torch.tensor(numbers, device=self.index.device)[:, :, None]
        return start, end, nodes


@dataclass(slots=True)
class WindowPart:
    """What the layers of one window share: the blocks to read, and the masks to add to the scores,
    [R * kv_heads or 1, M * group, keys]. `nodes` [R * N]: the rows whose keys `tree` is about."""

    blocks: Tensor | Run
    mask: Tensor
    nodes: Tensor | None = None
    tree: Tensor | None = None
    blind: tuple[Tensor, Tensor] | None = None
    """Which rows see nothing of the blocks, and nothing of the tree, [.., M * group, 1]."""


def pad(rows: Rows, pieces: list[Piece]) -> PaddedBatch:
    """The arithmetic is on the host, where a number costs less than an operation on a tensor of a few."""
    device, most = rows.token.device, max(piece.count for piece in pieces)
    places = [[p.segment.start + p.first + min(i, p.count - 1) for i in range(most)] for p in pieces]
    limits = [[p.segment.base + min(p.first + i + 1, p.segment.given) for i in range(most)] for p in pieces]
    index, limit = torch.tensor([places, limits], device=device)
    tables = rows.tables
    if len(pieces) < len(tables):
        tables = tables[torch.tensor([piece.request for piece in pieces], device=device)]
    batch = PaddedBatch(pieces, tables, index, rows.position[index], limit, index.flatten())
    if any(piece.count < most for piece in pieces):
        kept = [r * most + row for r, piece in enumerate(pieces) for row in range(piece.count)]
        batch.keep = torch.tensor(kept, device=device)
        batch.target = batch.target[batch.keep]
    return batch
