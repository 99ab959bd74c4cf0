"""The table of rotations: the same bits in every process, on any number of threads, however it grew."""

import math

import torch

from paceline.model.rotary import Rotary
from paceline.model.spec import Rope


def test_the_table_is_the_rounded_cosine() -> None:
    inverse = (1.0 / 10000.0 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)).tolist()
    rotary = Rotary(Rope(tuple(inverse), 1.25), torch.device("cpu"), torch.float32, 4096)
    first = rotary.table
    rotary.extend(3000)
    assert len(rotary.table) >= 3000 and torch.equal(rotary.table[: len(first)], first)
    for position in 0, 1, 7, 255, 2999:
        for i in 0, 5, 31:
            angle = float(torch.tensor(float(position)) * torch.tensor(inverse[i]))
            cos, sin = (float(torch.tensor(wave(angle)) * 1.25) for wave in (math.cos, math.sin))
            (row_cos,), (row_sin,) = rotary.table[position].tolist()
            assert row_cos[i] == row_cos[i + 32] == cos
            assert row_sin[i + 32] == -row_sin[i] == sin
