"""One softmax over prefix and tree together: the fast form where operations, not arithmetic, cost the time."""

from paceline.attend.batches import Batch, Part
from paceline.attend.reference import Reference
from paceline.core.rows import Rows


class Fused(Reference):
    """Reads candidates where every row has just been written, from their slots: they follow the prefix in the
    same blocks, so the tree word becomes columns of the one mask, and nothing has to be merged."""

    def part(self, rows: Rows, batch: Batch, window: int | None) -> Part:
        blocks, slot = self.reach(batch, [piece.end + piece.nodes for piece in batch.pieces], window)
        seen, key = slot[:, None, :] < batch.limit[:, :, None], slot
        if batch.width:
            start, end, nodes = batch.tree()
            node = slot - end
            inside = (node >= 0) & (node < nodes)
            node.clamp_(0, batch.width - 1)
            named = (rows.word[batch.index][:, :, None] >> node[:, None, :] & 1).bool()
            seen = seen | (named & inside[:, None, :])
            candidate = (start + node).clamp_(max=len(rows.token) - 1)
            key = rows.position[candidate].where(inside, slot)  # a candidate's position is its depth, not its slot
        return Part(blocks, self.mask(seen, batch.position, key, window))
