"""Attention on a GPU: one kernel for rows of prompts, of decodes and of trees, straight from the paged pool.

A program takes a tile of one request's queries (rows times the heads that share a key) and a span of its keys, reads
each block of those once, and keeps a running softmax (Dao et al. 2022, FlashAttention, algorithm 1). Where tiles are
few, as in decoding, texts are cut into spans and a second kernel joins them (Dao et al. 2023, Flash-Decoding).
Candidates are read from their slots behind the prefix; the tree word says which rows see them. Nothing is read back to
the host. The slow twin is reference.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.attend.fused import Fused
from paceline.core.rows import Rows, Segment

KEYS = 64
"""Slots that a program looks at together."""
MIN_TILE_QUERIES, MAX_TILE_QUERIES = 16, 64
"""Queries of a tile: tensor cores take 16 at a time."""
MIN_SPAN_KEYS = 256
"""A text is not cut into shorter spans than this."""
FULL_DEVICE_PROGRAMS = 256
"""Number of programs that fills a device, roughly: from this number on, texts are not cut."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q, keys, values, out, levels, pieces, tables, word, position,
    stride, width, slots, scale, softcap, window, span, heads,
    GROUP: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    SIZE: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Queries of `pieces[tile]` = (request, start, given, nodes, base, first row) over one span of keys. With PARTS,
    `out` [T, heads, spans, DIM] float32 are sums of values that weigh e^(score - top), and `levels` [T, heads, spans,
    2] top and the sum of weights; else `out` [T, heads, DIM] is the result."""
    head, part = tl.program_id(1), tl.program_id(2)
    piece = pieces + tl.program_id(0) * 6
    request, start, given = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
    nodes, base, first = tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)

    query, lane = tl.arange(0, QUERIES), tl.arange(0, LANES)
    rank = first + query // GROUP
    mine = (query < QUERIES // GROUP * GROUP) & (rank < given + nodes)
    row, which = start + rank, head * GROUP + query % GROUP
    inside = lane < DIM
    x = tl.load(
        q + row[:, None] * stride + which[:, None] * DIM + lane[None, :],
        mask=mine[:, None] & inside[None, :],
        other=0.0,
    )
    bits = tl.load(word + row, mask=mine, other=0)
    place = tl.load(position + row, mask=mine, other=0)
    limit = base + tl.minimum(rank + 1, given)

    last = first + QUERIES // GROUP
    end = base + tl.where(last > given, given + nodes, last)
    begin = base * 0
    if WINDOWED:
        begin = tl.maximum(begin, base + tl.minimum(first, given) - window + 1)
    begin += part * span
    end = tl.minimum(end, begin + span)

    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, LANES], tl.float32)
    for at in range(begin, end, KEYS):
        slot = at + tl.arange(0, KEYS)
        here = slot < end
        block = tl.load(tables + request * width + slot // SIZE, mask=here, other=0)
        where = head * slots + block * SIZE + slot % SIZE
        k = tl.load(keys + where[None, :] * DIM + lane[:, None], mask=here[None, :] & inside[:, None], other=0.0)
        scores = tl.dot(x, k.to(x.dtype), input_precision="ieee") * scale
        if CAPPED:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        node = slot - base - given
        candidate = node >= 0
        named = (bits[:, None] >> tl.minimum(tl.maximum(node, 0), 63)[None, :]) & 1
        seen = (slot[None, :] < limit[:, None]) | (candidate[None, :] & (named != 0))
        if WINDOWED:
            depth = tl.load(position + start + given + node, mask=candidate & here, other=0)
            seen = seen & (place[:, None] - tl.where(candidate, depth, slot)[None, :] < window)
        scores = tl.where(seen & here[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        shares, fade = tl.exp(scores - level[:, None]), tl.exp(top - level)
        v = tl.load(values + where[:, None] * DIM + lane[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(shares.to(x.dtype), v.to(x.dtype), input_precision="ieee")
        total, top = total * fade + tl.sum(shares, 1), higher

    line = row * heads + which
    if PARTS:
        line = line * tl.num_programs(2) + part
        tl.store(levels + line * 2, top, mask=mine)
        tl.store(levels + line * 2 + 1, total, mask=mine)
    else:
        mixed = mixed / tl.where(mine, total, 1.0)[:, None]
    tl.store(out + line[:, None] * DIM + lane[None, :], mixed, mask=mine[:, None] & inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _join(parts, levels, out, spans, DIM: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """One query's spans, by their log-sum-exp."""
    line, lane = tl.program_id(0), tl.arange(0, LANES)
    inside = lane < DIM
    top, total, mixed = float("-inf"), 0.0, tl.zeros([LANES], tl.float32)
    for span in range(spans):
        at = line.to(tl.int64) * spans + span
        level, weight = tl.load(levels + at * 2), tl.load(levels + at * 2 + 1)
        higher = tl.maximum(top, level)
        known = tl.where(higher == float("-inf"), 0.0, higher)
        fade, rise = tl.exp(top - known), tl.exp(level - known)
        mixed = mixed * fade + tl.load(parts + at * DIM + lane, mask=inside, other=0.0) * rise
        total, top = total * fade + weight * rise, higher
    tl.store(out + line.to(tl.int64) * DIM + lane, mixed / total, mask=inside)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a pass is cut: `queries` of a tile, its `pieces` [N, 6], and the longest text."""

    queries: int
    pieces: Tensor
    longest: int

    @classmethod
    def of(cls, segments: Sequence[Segment], group: int, device: torch.device) -> "Tiling":
        most = max(segment.rows for segment in segments) * group
        queries = max(
            MIN_TILE_QUERIES, min(MAX_TILE_QUERIES, triton.next_power_of_2(most)), triton.next_power_of_2(group)
        )
        pieces = [
            (request, s.start, s.given, s.nodes, s.base, first)
            for request, s in enumerate(segments)
            for first in range(0, s.rows, queries // group)
        ]
        longest = max(segment.base + segment.rows for segment in segments)
        return cls(queries, torch.tensor(pieces, device=device), longest)

    def spans(self, heads: int) -> int:
        """Number of spans that texts are cut into, for `heads` heads of keys."""
        return min(-(-self.longest // MIN_SPAN_KEYS), -(-FULL_DEVICE_PROGRAMS // (len(self.pieces) * heads)))


class Triton:
    """Implements `Attend` for half-precision and float32 pools. Parameters as of `Reference`. A pass with rows that do
    not see all before them (`Segment.hidden`: a joined text that is computed again) is left to `Fused`."""

    def __init__(
        self, pool: Tensor, windows: Sequence[int | None], heads: int, scale: float, softcap: float | None
    ) -> None:
        layers, _, self.kv_heads, blocks, self.block_size, self.head_dim = pool.shape
        self.slots = pool.view(layers, 2, self.kv_heads, blocks * self.block_size, self.head_dim)
        self.layers = self.slots.unbind()
        self.windows, self.heads, self.scale, self.softcap = windows, heads, scale, softcap
        self.group = heads // self.kv_heads
        self.masked, self.hides = Fused(pool, windows, heads, scale, softcap), False

    def prepare(self, rows: Rows) -> None:
        self.hides = any(segment.hidden for segment in rows.segments)
        if self.hides:
            self.masked.prepare(rows)
            return
        self.rows, self.cut = rows, Tiling.of(rows.segments, self.group, self.slots.device)
        self.spans = self.cut.spans(self.kv_heads)
        shape, device = (rows.count, self.heads, self.spans), self.slots.device
        if self.spans > 1:
            self.parts = torch.empty(*shape, self.head_dim, device=device)
            self.levels = torch.empty(*shape, 2, device=device)

    def forward(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        if self.hides:
            return self.masked.forward(layer, q, kv)
        assert kv is not None, "models whose layers share keys and values are Fused's"
        rows, cut, lanes = self.rows, self.cut, max(16, triton.next_power_of_2(self.head_dim))
        slots, window = self.layers[layer], self.windows[layer]
        slots.index_copy_(2, rows.slot, kv.permute(1, 2, 0, 3).to(slots.dtype))
        out = q.new_empty(rows.count, self.heads * self.head_dim)
        split = self.spans > 1
        grid: Any = (len(cut.pieces), self.kv_heads, self.spans)
        _attend[grid](
            q, slots[0], slots[1], self.parts if split else out, self.levels if split else out,
            cut.pieces, rows.tables, rows.word, rows.position,
            q.stride(0), rows.width, slots.shape[2], self.scale, self.softcap or 1.0, window or 0,
            KEYS * -(-cut.longest // (self.spans * KEYS)), self.heads,
            GROUP=self.group, DIM=self.head_dim, LANES=lanes, QUERIES=cut.queries, KEYS=KEYS, SIZE=self.block_size,
            CAPPED=self.softcap is not None, WINDOWED=window is not None, PARTS=split,
        )  # fmt: skip
        if split:
            _join[(rows.count * self.heads,)](self.parts, self.levels, out, self.spans, DIM=self.head_dim, LANES=lanes)
        return out
