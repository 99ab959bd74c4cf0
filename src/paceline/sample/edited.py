"""Rules applied by the native library; the processors are the slow twin."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from paceline.core.warp import Warp
from paceline.native.structs import integers_in, warps_in
from paceline.sample.race import native


def edited(logits: Tensor, warps: Sequence[Warp], paths: Sequence[Sequence[int]]) -> Tensor | None:
    """Copy of logits [N, V] as the rules of each row change them behind its path; None where the library cannot read
    them."""
    it = native(logits)
    if it is None:
        return None
    copy, (rows, width) = logits.clone(memory_format=torch.contiguous_format), logits.shape
    path, lengths = integers_in([*chain.from_iterable(paths)]), integers_in([len(each) for each in paths])
    it.paceline_edit(copy.data_ptr(), rows, width, warps_in(warps), path, lengths, torch.get_num_threads())
    return copy
