"""Experts that lie one behind the other in one tensor: read as matrices of one expert each, under the names that others
give them. A family's `Names.fused_experts` says how they lie.

    turns     mlp.experts.gate_up_proj [count, hidden, 2 width], gates and ups in turn, .._bias [count, 2 width];
              mlp.experts.down_proj [count, width, hidden], .._bias [count, hidden] (gpt-oss), or in MXFP4:
              .._blocks [count, outputs, inputs / 32, 16], .._scales [count, outputs, inputs / 32]   uint8
    halves    gates before ups, no biases; mlp.experts.gate_up_proj [count, 2 width, hidden] and mlp.experts.down_proj
              [count, hidden, width] (Qwen 3.5), or, where their shapes say so, both transposed (Qwen3-VL)
"""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.groups import FP4, GROUP, Groups

PART = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
BLOCK_BYTES = 16
"""Bytes of 32 numbers."""
Stored = Callable[[str, tuple[int, ...] | None], Tensor]


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """A matrix, or its bias, of one expert; `fused`: the tensor's name without its end."""

    fused: str
    number: int
    turn: int | None
    """0 for gates, 1 for ups; None: all."""
    bias: bool
    layout: str
    """One of those above."""

    def of(self, rows: Tensor) -> Tensor:
        """Its outputs among those of the fused matrix."""
        if self.turn is None:
            return rows
        return rows[self.turn :: 2] if self.layout == "turns" else rows.chunk(2)[self.turn]

    def fused_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Shape of one expert's fused matrix, [outputs, inputs], from that of the part."""
        return (shape[0] if self.turn is None else 2 * shape[0], shape[1])

    def take(self, stored: Stored, shape: tuple[int, ...]) -> Tensor:
        """As floats, [outputs, inputs] or [outputs]."""
        whole = stored(f"{self.fused}_bias" if self.bias else self.fused, None)
        if self.number >= len(whole) or whole.dim() != len(shape) + 1:
            raise CheckpointError(f"tensor {self.fused} has shape {tuple(whole.shape)} and no expert {self.number}.")
        if not whole.dtype.is_floating_point or whole.dtype.itemsize < 2:
            raise CheckpointError(
                f"tensor {self.fused} holds experts as {whole.dtype}, which is not served where they lie in one; "
                "use the checkpoint in bfloat16, or one with a tensor for each expert."
            )
        own = whole[self.number]
        if not self.bias and self.transposed(own, stored, shape):
            own = own.t()
        mine = self.of(own).contiguous()
        return checked(mine, shape, self.fused)

    def transposed(self, own: Tensor, stored: Stored, shape: tuple[int, ...]) -> bool:
        """Do inputs come before outputs in one expert's matrix `own`? Of a square one the other matrix says it."""
        if self.layout == "turns" or own.shape[0] != own.shape[1]:
            return self.layout == "turns" or own.shape != self.fused_shape(shape)
        stem, _, end = self.fused.rpartition(".")
        other = stored(f"{stem}.{'down_proj' if end == 'gate_up_proj' else 'gate_up_proj'}", None)
        return other.shape[-2] < other.shape[-1]

    def groups(self, stored: Stored, shape: tuple[int, ...]) -> Groups:
        """As MXFP4 has it."""
        blocks, scales = (stored(f"{self.fused}_{end}", None) for end in ("blocks", "scales"))
        if blocks.dim() != 4 or blocks.shape[3] != BLOCK_BYTES or blocks.shape[:3] != scales.shape:
            raise CheckpointError(
                f"tensor {self.fused}_blocks has shape {tuple(blocks.shape)} and scales of {tuple(scales.shape)}; "
                f"served are MXFP4 blocks of {GROUP} numbers in {BLOCK_BYTES} bytes."
            )
        words, exponent = self.of(blocks[self.number]).flatten(1), self.of(scales[self.number])
        codes = torch.stack((words & 15, words >> 4), 2).flatten(1).contiguous()
        checked(codes, shape, self.fused)
        return Groups(codes.view(torch.int8), torch.exp2(exponent.float() - 128), None, 4, FP4)


def checked(found: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    if tuple(found.shape) != shape:
        raise CheckpointError(
            f"tensor {name} holds experts of {tuple(found.shape)} where config.json implies {shape}; the weights and "
            "the config are of different models."
        )
    return found


def expert_part(name: str, place: Container[str], layout: str) -> ExpertPart | None:
    """Which part of a fused tensor has this name; None: it lies as it is called."""
    found = PART.fullmatch(name)
    if found is None:
        return None
    kind = "down" if found[3] == "down" else "gate_up"
    fused = f"{found[1]}.{kind}_proj"
    if fused not in place and f"{fused}_blocks" not in place:
        return None
    if name in place:
        raise CheckpointError(f"the checkpoint holds both {name} and {fused}, which are the same; keep the right one.")
    return ExpertPart(fused, int(found[2]), {"gate": 0, "up": 1}.get(found[3]), found[4] == "bias", layout)
