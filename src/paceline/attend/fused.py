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
            node = slot - batch.end
            inside = (node >= 0) & (node < batch.nodes)
            node = node.clamp(0, batch.width - 1)
            named = (batch.word[:, :, None] >> node[:, None, :] & 1).bool()
            seen = seen | (named & inside[:, None, :])
            # A candidate's position is its depth, not its slot; the clamp keeps a look-up for no one in range.
            key = rows.position[(batch.start + node).clamp_(max=len(rows.token) - 1)].where(inside, slot)
        return Part(blocks, self.mask(seen, batch.position, key, window))
