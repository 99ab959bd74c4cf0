"""Attention on a GPU: one kernel for rows of prompts, of decodes and of trees, straight from the paged pool.

A program takes a tile of one request's queries (rows times the heads that share a key) and keeps a running softmax over
blocks of keys (Dao et al. 2022, FlashAttention, algorithm 1). Keys go by their *place* in the row's own text: a
candidate's ancestors lie behind the prefix, in the order of its path, wherever their slots are. Blocks begin at fixed
places, and so do the spans whose sums are merged by their log-sum-exp (Dao et al. 2023, Flash-Decoding): by a program
of each span where tiles are few, else one after the other in one program, alike. A key that a row does not see
changes no bit. So a row's bits depend on its own text alone: not on batch mates, on the tree it is verified in, or on
how its text was cut. Nothing is read back to the host, and all shapes follow from the number of rows, of requests and
of blocks of a table, so that a pass can be captured. The slow twin is reference.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.attend.device import interpreted
from paceline.attend.fused import Fused
from paceline.attend.guard import guarded
from paceline.attend.turn import turn_and_write
from paceline.core.rows import Rows

KEYS, SPAN = 64, 256
"""Keys that a program looks at together, and those of a span."""
QUERIES = 32
"""Queries of a tile, or the heads that share a key if these are more."""
PATH_NUMBERS = 65
"""Numbers for the path of a row, of which the last is never read."""
MAX_APART_BYTES = 64 << 20
"""Most bytes for the sums of spans that are computed apart."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q, keys, values, out, levels, pieces, bounds, tables, path, limits,
    stride, width, slots, scale, softcap, window, heads,
    GROUP: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    SPAN: tl.constexpr, SIZE: tl.constexpr, PATH: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    APART: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Queries of `pieces[tile]` = (request, first row); `bounds[request]` = (start, given, nodes, base). With APART,
    `out` [T, heads, spans, DIM] float32 are sums of values that weigh e^(score - top) over span `program_id(2)`, and
    `levels` [T, heads, spans, 2] top and the sum of weights; else `out` [T, heads, DIM] is the result."""
    head, part = tl.program_id(1), tl.program_id(2)
    request, first = tl.load(pieces + tl.program_id(0) * 2), tl.load(pieces + tl.program_id(0) * 2 + 1)
    if request < 0:
        return
    bound = bounds + request * 4
    start, given, nodes, base = tl.load(bound), tl.load(bound + 1), tl.load(bound + 2), tl.load(bound + 3)

    query, lane = tl.arange(0, QUERIES), tl.arange(0, LANES)
    rank, inside = first + query // GROUP, lane < DIM
    mine = (query < QUERIES // GROUP * GROUP) & (rank < given + nodes)
    row, which = start + rank, head * GROUP + query % GROUP
    x = tl.load(
        q + row[:, None] * stride + which[:, None] * DIM + lane[None, :],
        mask=mine[:, None] & inside[None, :],
        other=0.0,
    )
    if WIDE:
        x = x.to(tl.float32)
    limit = tl.load(limits + row, mask=mine, other=0)
    longest, fork = tl.max(limit), base + given
    # from `edge` on, each row of a tile with candidates reads keys by its own path
    last = tl.minimum(first + QUERIES // GROUP, given + nodes)
    edge = tl.where(last > given, fork // KEYS * KEYS, longest)
    low = base * 0
    if WINDOWED:
        low = tl.maximum(low, tl.min(tl.where(mine, limit, longest)) - window) // KEYS * KEYS

    all_top = tl.full([QUERIES], float("-inf"), tl.float32)
    all_total = tl.zeros([QUERIES], tl.float32)
    all_mixed = tl.zeros([QUERIES, LANES], tl.float32)
    for span in range(part if APART else low // SPAN, part + 1 if APART else (longest + SPAN - 1) // SPAN):
        begin, end = tl.maximum(span * SPAN, low), tl.minimum(span * SPAN + SPAN, longest)
        shared = (tl.maximum(tl.minimum(edge, end) - begin, 0) + KEYS - 1) // KEYS
        tail = tl.maximum(edge, begin)
        tails = (tl.maximum(end - tail, 0) + KEYS - 1) // KEYS
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, LANES], tl.float32)
        for visit in range(shared + tails * (last - first)):
            behind = visit - shared
            owner = first + tl.maximum(behind, 0) // tl.maximum(tails, 1)
            at = tl.where(behind < 0, begin + visit * KEYS, tail + tl.maximum(behind, 0) % tl.maximum(tails, 1) * KEYS)
            place = at + tl.arange(0, KEYS)
            here, ahead = place < end, place - fork
            node = tl.load(path + (start + owner) * PATH + ahead, mask=(ahead >= 0) & here, other=0)
            slot = tl.where(ahead < 0, place, fork + node)
            block = tl.load(tables + request * width + slot // SIZE, mask=here, other=0)
            where = head.to(tl.int64) * slots + block * SIZE + slot % SIZE
            k = tl.load(keys + where[None, :] * DIM + lane[:, None], mask=here[None, :] & inside[:, None], other=0.0)
            scores = tl.dot(x, k.to(x.dtype), input_precision="ieee") * scale
            if CAPPED:
                scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
            seen = (place[None, :] < limit[:, None]) & ((behind < 0) | (rank == owner))[:, None] & here[None, :]
            if WINDOWED:
                seen = seen & (limit[:, None] - 1 - place[None, :] < window)
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            level = tl.where(higher == float("-inf"), 0.0, higher)
            shares, fade = tl.exp(scores - level[:, None]), tl.exp(top - level)
            v = tl.load(values + where[:, None] * DIM + lane[None, :], mask=here[:, None] & inside[None, :], other=0.0)
            mixed = mixed * fade[:, None] + tl.dot(shares.to(x.dtype), v.to(x.dtype), input_precision="ieee")
            total, top = total * fade + tl.sum(shares, 1), higher
        if APART:
            all_top, all_total, all_mixed = top, total, mixed
        else:
            higher = tl.maximum(all_top, top)
            level = tl.where(higher == float("-inf"), 0.0, higher)
            fade, rise = tl.exp(all_top - level), tl.exp(top - level)
            all_mixed = all_mixed * fade[:, None] + mixed * rise[:, None]
            all_total, all_top = all_total * fade + total * rise, higher

    line = row * heads + which
    if APART:
        line = line * tl.num_programs(2) + part
        tl.store(levels + line * 2, all_top, mask=mine)
        tl.store(levels + line * 2 + 1, all_total, mask=mine)
    else:
        all_mixed = all_mixed / tl.where(mine, all_total, 1.0)[:, None]
    tl.store(out + line[:, None] * DIM + lane[None, :], all_mixed, mask=mine[:, None] & inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    parts, levels, out, limits, spans, heads, DIM: tl.constexpr, LANES: tl.constexpr, SPAN: tl.constexpr
):
    """One query's spans, in their order."""
    line, lane = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    limit = tl.load(limits + line // heads)
    inside = lane < DIM
    top, total, mixed = float("-inf"), 0.0, tl.zeros([LANES], tl.float32)
    for span in range(tl.minimum((limit + SPAN - 1) // SPAN, spans)):
        at = line * spans + span
        level, weight = tl.load(levels + at * 2), tl.load(levels + at * 2 + 1)
        higher = tl.maximum(top, level)
        known = tl.where(higher == float("-inf"), 0.0, higher)
        fade, rise = tl.exp(top - known), tl.exp(level - known)
        mixed = mixed * fade + tl.load(parts + at * DIM + lane, mask=inside, other=0.0) * rise
        total, top = total * fade + weight * rise, higher
    tl.store(out + line * DIM + lane, mixed / tl.where(total > 0, total, 1.0), mask=inside)


def pieces_of(bounds: Tensor, rows: int, each: int) -> Tensor:
    """Tiles (request, first row) of a pass; `bounds` [R, 4] as in `Rows`."""
    return tiles_of(bounds[:, 1] + bounds[:, 2], rows, each)


def tiles_of(counts: Tensor, rows: int, each: int) -> Tensor:
    """Tiles [N, 2] of `each` rows: (group, first row of it), for groups of `counts` [R] rows, `rows` in all; (-1, 0)
    where there are fewer."""
    ends = ((counts + each - 1) // each).cumsum(0)
    tile = torch.arange(min(rows, rows // each + len(counts)), device=counts.device)
    group = torch.searchsorted(ends, tile, right=True)
    before = torch.nn.functional.pad(ends, (1, 0))[group]
    real = group < len(counts)
    return torch.stack((torch.where(real, group, -1), torch.where(real, (tile - before) * each, 0)), 1)


def paths_of(words: Tensor) -> Tensor:
    """[T, 65]: of each row the candidates on its path, by depth, for tree words [T]."""
    bit = torch.arange(PATH_NUMBERS - 1, device=words.device)
    named = (words[:, None] >> bit & 1).bool()
    depth = torch.where(named, named.cumsum(1) - 1, PATH_NUMBERS - 1)
    return words.new_zeros(len(words), PATH_NUMBERS).scatter_(1, depth, bit.expand(len(words), -1))


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
        self.queries = max(QUERIES, triton.next_power_of_2(self.group))
        self.lanes = max(16, triton.next_power_of_2(self.head_dim))
        self.masked, self.hides = Fused(pool, windows, heads, scale, softcap), False

    def prepare(self, rows: Rows) -> None:
        self.hides = any(segment.hidden for segment in rows.segments)
        if self.hides:
            self.masked.prepare(rows)
            return
        self.rows, device = rows, self.slots.device
        self.pieces = pieces_of(rows.bounds, rows.count, self.queries // self.group)
        self.path = paths_of(rows.word)
        self.limits = (rows.position + 1) * (rows.slot >= 0)  # others are of no request
        if any(segment.shift for segment in rows.segments):
            shifts = [segment.shift for segment in rows.segments for _ in range(segment.rows)]
            self.limits += torch.tensor(shifts, device=device)
        shape = (rows.count, self.heads, -(-rows.width * self.block_size // SPAN))
        self.spans = shape[2] if shape[0] * shape[1] * shape[2] * self.head_dim * 4 <= MAX_APART_BYTES else 1
        if self.spans > 1:
            self.parts = torch.empty(*shape, self.head_dim, device=device)
            self.levels = torch.empty(*shape, 2, device=device)

    def turned(self, layer: int, qkv: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """`forward` of queries, keys and values [T, heads + 2 kv_heads, head_dim] that are not rotated yet: this
        rotates the queries in place and writes keys and values to their slots, in one kernel."""
        if self.hides:
            return self.masked.turned(layer, qkv, turn)
        turn_and_write(qkv, turn, self.rows.slot, self.layers[layer])
        return self.read(layer, qkv.narrow(1, 0, self.heads))

    def forward(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        if self.hides:
            return self.masked.forward(layer, q, kv)
        assert kv is not None, "models whose layers share keys and values are Fused's"
        slots = self.layers[layer]
        slots.index_copy_(2, self.rows.slot, guarded(kv.permute(1, 2, 0, 3).to(slots.dtype)))
        return self.read(layer, q)

    def read(self, layer: int, q: Tensor) -> Tensor:
        """Attend over keys and values that are in their slots."""
        rows, slots, window = self.rows, self.layers[layer], self.windows[layer]
        out = q.new_zeros(rows.count, self.heads * self.head_dim)
        apart = self.spans > 1
        grid: Any = (len(self.pieces), self.kv_heads, self.spans)
        _attend[grid](
            q, slots[0], slots[1], self.parts if apart else out, self.levels if apart else out,
            self.pieces, rows.bounds, rows.tables, self.path, self.limits,
            q.stride(0), rows.width, slots.shape[2], self.scale, self.softcap or 1.0, window or 0, self.heads,
            GROUP=self.group, DIM=self.head_dim, LANES=self.lanes, QUERIES=self.queries, KEYS=KEYS, SPAN=SPAN,
            SIZE=self.block_size, PATH=PATH_NUMBERS, CAPPED=self.softcap is not None, WINDOWED=window is not None,
            APART=apart, WIDE=interpreted(), enable_fp_fusion=False,
        )  # fmt: skip
        if apart:
            _join[(rows.count * self.heads,)](
                self.parts, self.levels, out, self.limits, self.spans, self.heads,
                DIM=self.head_dim, LANES=self.lanes, SPAN=SPAN, enable_fp_fusion=False,
            )  # fmt: skip
        return out
