"""Rotations of a pass's positions."""

import numpy as np
import torch
from torch import Tensor

from paceline.model.spec import Rope

Turn = tuple[Tensor, Tensor]
"""cos and signed sin of one pass's positions, [T, 1, rotated] each."""
PLACES = 1024
"""Positions whose rotations are computed at once."""


class Rotary:
    """cos and sin of the rows' positions, from a table that doubles with the longest text so far: one to max_len
    could outweigh the cache of many a chat. They come from numpy, rounded from float64: the first `torch.cos` of a
    process that runs on two threads is now and then off by a last bit, and a text would change with it."""

    def __init__(self, rope: Rope, device: torch.device, dtype: torch.dtype, most: int) -> None:
        """`most`: positions a text can have; the table does not double beyond them."""
        self.most = most
        self.inverse, self.scale, self.device, self.dtype = torch.tensor(rope.inverse), rope.scale, device, dtype
        self.table = self.fill(min(256, most))

    def fill(self, length: int) -> Tensor:
        """[length, 2, 1, rotated]: cos, then signed sin, of every position."""
        table = torch.empty(length, 2, 1, 2 * len(self.inverse), dtype=self.dtype)
        for place, part in zip(torch.arange(length).chunk(-(-length // PLACES)), table.chunk(-(-length // PLACES))):
            wide = (place[:, None].float() * self.inverse).double().numpy()
            cos, sin = (torch.from_numpy(wave(wide)).float() * self.scale for wave in (np.cos, np.sin))
            part.copy_(torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)[:, :, None])
        return table.to(self.device)

    def extend(self, reach: int) -> None:
        """Have every position below `reach` in the table."""
        if reach > len(self.table):
            self.table = self.fill(max(reach, min(2 * len(self.table), self.most)))

    def __call__(self, position: Tensor, reach: int) -> Turn:
        """`reach`: above every position, known on the host."""
        self.extend(reach)
        cos, sin = self.table.index_select(0, position).unbind(1)
        return cos, sin
