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
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALE_ENDS = ("_scale_inv", "_scale")
"""Ends of names of what FP8 numbers of a fused tensor are multiplied by."""
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
    """Name of a layout: one of the constants above."""

    def of(self, rows: Tensor) -> Tensor:
        """Rows of the fused matrix that are this part's outputs."""
        if self.turn is None:
            return rows
        return rows[self.turn :: 2] if self.layout == "turns" else rows.chunk(2)[self.turn]

    def fused_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Shape of one expert's fused matrix, [outputs, inputs], from that of the part."""
        return (shape[0] if self.turn is None else 2 * shape[0], shape[1])

    def take(self, stored: Stored, shape: tuple[int, ...], scales: "Scales | None" = None) -> Tensor:
        """As floats, [outputs, inputs] or [outputs]. `scales`: of FP8, in a checkpoint whose config says that it has
        such."""
        whole = stored(f"{self.fused}_bias" if self.bias else self.fused, None)
        if self.number >= len(whole) or whole.dim() != len(shape) + 1:
            raise CheckpointError(f"tensor {self.fused} has shape {tuple(whole.shape)} and no expert {self.number}.")
        scaled = scales is not None and whole.dtype in FLOAT8 and self.layout == "halves" and not self.bias
        if not scaled and (not whole.dtype.is_floating_point or whole.dtype.itemsize < 2):
            raise CheckpointError(
                f"tensor {self.fused} holds experts as {whole.dtype}, which is not served where they lie in one; "
                "use the checkpoint in bfloat16, or one with a tensor for each expert."
            )
        own = whole[self.number]
        turned = not self.bias and self.transposed(own, stored, shape)
        if scales is not None and scaled:
            halves = 0 if self.turn is None else 2 - (not turned)
            own = own.float() * scales.spread(self.fused, len(whole), self.number, own.shape, halves)
        if turned:
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
        if scales.dtype == torch.float8_e8m0fnu:
            scales = scales.view(torch.uint8)
        if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise CheckpointError(
                f"tensor {self.fused}_blocks lies as {blocks.dtype} with scales as {scales.dtype}; MXFP4 has bytes."
            )
        words, exponent = self.of(blocks[self.number]).flatten(1), self.of(scales[self.number])
        codes = torch.stack((words & 15, words >> 4), 2).flatten(1).contiguous()
        checked(codes, shape, self.fused)
        return Groups(codes.view(torch.int8), torch.exp2(exponent.float() - 128), None, 4, FP4)


@dataclass(frozen=True, slots=True)
class Scales:
    """What FP8 numbers of fused tensors are multiplied by: one number for each `block` of (rows, columns), or, where
    that is None, for each row, or for all."""

    stored: Stored
    has: Callable[[str], bool]
    block: tuple[int, int] | None

    def spread(self, fused: str, count: int, number: int, shape: tuple[int, ...], halves: int) -> Tensor:
        """Factors of one expert's matrix of this shape; `halves`: 1 or 2 if its rows or its columns are gates, then
        ups, which have blocks of their own where they were quantised apart; 0: they are not."""
        name = next((fused + end for end in SCALE_ENDS if self.has(fused + end)), None)
        if name is None:
            raise CheckpointError(
                f"tensor {fused} is in FP8, but {fused}{SCALE_ENDS[0]} is missing; download it again."
            )
        found = self.stored(name, None)
        if not found.dtype.is_floating_point:
            raise CheckpointError(f"tensor {name} holds scales as {found.dtype}, not as floats; download it again.")
        scale = found.float()
        if scale.shape in ((count,), (1,), ()):
            return scale.expand(count)[number]
        if scale.dim() != 3 or scale.shape[0] != count:
            raise self.wrong(name, scale, shape)
        own: Tensor = scale[number]
        for axis, size in enumerate(shape):
            each = None if self.block is None else self.block[axis]
            run = shared_run(size, own.shape[axis], each, halves == axis + 1)
            if run is None:
                raise self.wrong(name, scale, shape)
            parts = own.chunk(2, axis) if run < 0 else (own,)
            mine = size // len(parts)
            own = torch.cat([it.repeat_interleave(abs(run), axis).narrow(axis, 0, mine) for it in parts], axis)
        return own

    def wrong(self, name: str, scale: Tensor, shape: tuple[int, ...]) -> CheckpointError:
        blocks = "without blocks" if self.block is None else f"in blocks of {self.block[0]} by {self.block[1]}"
        return CheckpointError(
            f"tensor {name} has shape {tuple(scale.shape)}, which does not fit experts of {tuple(shape)} in FP8 "
            f"{blocks} (quantization_config.weight_block_size); use the checkpoint in bfloat16."
        )


def shared_run(size: int, found: int, each: int | None, apart: bool) -> int | None:
    """How many numbers of an axis of `size` share one of `found` scales; below 0: in each half for itself; None: that
    many scales do not fit, or do in two ways. `each`: numbers of a block; `apart`: the halves are gates and ups."""
    half = size // 2
    if each is None:
        return 1 if found == size else size if found == 1 else -half if apart and found == 2 else None
    whole, split = -(-size // each), 2 * -(-half // each)
    if not apart or half % each == 0:
        return each if found == whole else None
    return None if whole == split else {whole: each, split: -each}.get(found)


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
