"""The fast form where operations, not arithmetic, cost the time: one softmax over prefix and tree together."""

from torch import Tensor

from paceline.attend.batches import PaddedBatch, Run, WindowPart
from paceline.attend.guard import guarded
from paceline.attend.reference import Reference, as_run, log_sum_exp
from paceline.core.rows import Rows

Reach = tuple[Tensor | Run, int, int]
"""Blocks to read, and first and count of the slots in them that the row sees."""


class Fused(Reference):
    """Reads candidates where every row has just been written, from their slots: they follow the prefix in the
    same blocks, so the tree word becomes columns of the one mask, and nothing has to be merged. A lone row, the whole
    pass of a plain step or a draft step, needs no mask at all: its keys are cut to those it sees."""

    lone: dict[int | None, Reach] | None = None
    """By window, when the pass is a single given row."""

    def prepare(self, rows: Rows) -> None:
        self.lone = None
        first = rows.segments[0]
        if len(rows.segments) == 1 and first.rows == first.given == 1 and not first.hidden:
            self.slot = rows.slot
            self.lone = {window: self.cut(rows, first.base, window) for window in set(self.windows)}
        else:
            super().prepare(rows)

    def cut(self, rows: Rows, position: int, window: int | None) -> Reach:
        start = 0 if window is None else max(0, position - window + 1)
        first, last = start // self.block_size, position // self.block_size
        blocks = as_run(rows.tables[0, first : last + 1])
        return blocks, start - first * self.block_size, position + 1 - start

    def forward(self, layer: int, q: Tensor, kv: Tensor | None) -> Tensor:
        if self.lone is None:
            return super().forward(layer, q, kv)
        if kv is not None:
            self.layers[layer].index_copy_(2, self.slot, guarded(kv.permute(1, 2, 0, 3).to(self.stored)))
        blocks, first, count = self.lone[self.windows[layer]]
        if isinstance(blocks, Tensor):
            read = self.pools[layer].index_select(2, blocks).view(self.parts, self.kv_heads, -1, self.head_dim)
            seen = read.narrow(2, first, count)
        else:
            seen = self.layers[layer].narrow(2, blocks[0] * self.block_size + first, count)
        keys, values = self.wide(seen, 1)
        query = q.reshape(self.kv_heads, self.group, self.head_dim).to(self.exact)
        scores = self.scores(query, keys, None)
        shares = scores.softmax(-1)
        out = shares.bmm(values)
        if self.sinks:
            out = out.mul_(self.rest(layer, log_sum_exp(scores, shares), 1))
        return out.view(1, -1).to(q.dtype)

    def part(self, rows: Rows, batch: PaddedBatch, window: int | None) -> WindowPart:
        blocks, slot = self.reach(batch, [piece.end + piece.nodes for piece in batch.pieces], window)
        seen, key = batch.hide(slot[:, None, :] < batch.limit[:, :, None], slot), slot
        if batch.width:
            start, end, nodes = batch.tree()
            node = slot - end
            inside = (node >= 0) & (node < nodes)
            node.clamp_(0, batch.width - 1)
            named = (rows.word[batch.index][:, :, None] >> node[:, None, :] & 1).bool()
            seen = seen | (named & inside[:, None, :])
            candidate = (start + node).clamp_(max=len(rows.token) - 1)
            key = rows.position[candidate].where(inside, slot)  # a candidate's position is its depth, not its slot
        return WindowPart(blocks, self.mask(seen, batch.position, key, window))
