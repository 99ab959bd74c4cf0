"""Some outputs of a matrix, taken out of it as they lie: a head over a draft vocabulary."""

import torch
from torch import Tensor

from paceline.model import pages
from paceline.model.grouped import RECORD, ScaleForm, head_bytes, planes
from paceline.model.groups import GROUP
from paceline.model.linear import Linear
from paceline.model.packed import BLOCK_OUTPUTS, Packed, address
from paceline.native.structs import CLinear


def taken(head: Linear, words: Tensor) -> Linear | None:
    """The outputs `words` int64 [N] of a matrix, each with the bits that it has there; None: this packing cannot be
    taken apart."""
    if hasattr(head, "outputs") and hasattr(head, "weight"):
        kept: Linear = head.outputs(words.to(head.weight.device))
        return kept
    if not isinstance(head, Packed):
        return None
    each = torch.nn.functional.pad(words.cpu(), (0, -len(words) % BLOCK_OUTPUTS))
    c = head.c
    weight = of_groups(head, each) if c.form else of_tiles(head.weight, each)
    bias, scale, sums = (None if part is None else part[each] for part in (head.bias, head.scale, head.sums))
    numbers = c.inputs, len(words), c.form, c.bits, c.table, c.spread, c.power
    return Packed(
        weight, bias, scale, sums, CLinear(address(weight), address(scale), address(sums), address(bias), *numbers)
    )


def of_tiles(tiles: Tensor, outputs: Tensor) -> Tensor:
    """packed.py: [block, step, half, 16, output, e]."""
    block, half, lane = outputs // BLOCK_OUTPUTS, outputs % BLOCK_OUTPUTS // 16, outputs % 16
    rows = tiles[block, :, half, :, lane].view(-1, 2, 16, *(tiles.shape[i] for i in (1, 3, 5)))
    to = pages.take(rows.nbytes).view(tiles.dtype).view(*(rows.shape[i] for i in (0, 3, 1, 4, 2, 5)))
    return to.copy_(rows.permute(0, 3, 1, 4, 2, 5))


def of_groups(packed: Packed, outputs: Tensor) -> Tensor:
    """grouped.py: of each record the planes of its head [.., output], then lines [half, .., output, 4]."""
    c, form, size = packed.c, ScaleForm(packed.c.form), packed.weight.shape[1]
    block, lane, blocks = outputs // BLOCK_OUTPUTS, outputs % BLOCK_OUTPUTS, len(outputs) // BLOCK_OUTPUTS
    to = pages.take(blocks * size).view(blocks, size)
    words, words_to = packed.weight.view(torch.int32), to.view(torch.int32)
    groups, at = -(-c.inputs // GROUP), 0
    for first in range(0, groups, RECORD):
        count = min(RECORD, groups - first)
        place = at
        for number, kind in planes(form, count, c.spread):
            shape, end = (number, BLOCK_OUTPUTS, kind.itemsize), place + number * BLOCK_OUTPUTS * kind.itemsize
            plane = packed.weight[:, place:end].view(-1, *shape)[block, :, lane]
            to[:, place:end] = plane.view(blocks, BLOCK_OUTPUTS, number, -1).transpose(1, 2).flatten(1)
            place = end
        at += head_bytes(form, count, c.spread)
        lines, end = count * c.bits, at + count * c.bits * 128
        codes = words[:, at // 4 : end // 4].view(-1, 2, lines, 16)[block, lane // 16, :, lane % 16]
        words_to[:, at // 4 : end // 4] = codes.view(blocks, 2, 16, lines).transpose(2, 3).flatten(1)
        at = end
    return to
