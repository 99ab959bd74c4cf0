"""How the rows of a pass are cut into padded batches: requests with few rows together, prompts by pieces."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.rows import Rows, Segment

FEW = 16
"""Requests with at most this many rows share one padded batch."""


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
    """Pieces to compute together: all short segments at once, long ones cut to about `scores` pairs of row and key."""
    short = [Piece(r, s, 0, s.rows) for r, s in enumerate(segments) if 0 < s.rows <= FEW]
    if short:
        yield short
    for request, segment in enumerate(segments):
        if segment.rows > FEW:
            step = max(FEW, scores // (segment.base + segment.rows))
            for first in range(0, segment.rows, step):
                yield [Piece(request, segment, first, min(step, segment.rows - first))]


@dataclass(slots=True)
class Batch:
    """R pieces padded to M rows; a padded row repeats the last of its piece, and its result is dropped.

    index [R, M]: numbers of the rows in the pass. target: the same, flat and without padding; keep: where those
    are in the flat [R * M], or None if there is no padding. limit [R, M]: slots that a row sees.
    start, end, nodes [R, 1]: first candidate's row, slots of the prefix, candidates.
    """

    pieces: list[Piece]
    tables: Tensor
    index: Tensor
    position: Tensor
    word: Tensor
    limit: Tensor
    start: Tensor
    end: Tensor
    nodes: Tensor
    target: Tensor
    keep: Tensor | None = None
    parts: dict[int | None, "Part"] = field(default_factory=dict)
    """By window."""

    @property
    def width(self) -> int:
        """Most candidates of a piece."""
        return max(piece.nodes for piece in self.pieces)


@dataclass(slots=True)
class Part:
    """What the layers of one window share: the blocks to read, whole runs as a slice, and the masks to add to
    the scores, [R * kv_heads or 1, M * group, keys]. `nodes` [R * N]: the rows whose keys `tree` is about."""

    blocks: Tensor | slice
    mask: Tensor
    nodes: Tensor | None = None
    tree: Tensor | None = None


def pad(rows: Rows, pieces: list[Piece]) -> Batch:
    device, most = rows.token.device, max(piece.count for piece in pieces)
    numbers = [
        (p.request, p.segment.start, p.segment.base, p.segment.given, p.first, p.count, p.end, p.nodes) for p in pieces
    ]
    request, start, base, given, first, count, end, nodes = torch.tensor(numbers, device=device).T[:, :, None]
    place = torch.arange(most, device=device)
    index = start + first + torch.minimum(place, count - 1)
    limit = base + torch.minimum(first + place + 1, given)
    batch = Batch(
        pieces,
        rows.tables[request[:, 0]],
        index,
        rows.position[index],
        rows.word[index],
        limit,
        start + given,
        end,
        nodes,
        index.flatten(),
    )
    if any(piece.count < most for piece in pieces):
        batch.keep = (place < count).flatten().nonzero().flatten()
        batch.target = batch.target[batch.keep]
    return batch
