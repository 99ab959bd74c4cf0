"""Adapters of the native decoder, packed as native/lora.h reads them. The reference form is model/adapters.py."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import RefusalError
from paceline.model import pages
from paceline.model.lora import LoraPair, LoraWeights, fused, interleaved
from paceline.model.lora_places import lora_places
from paceline.model.spec import ModelSpec
from paceline.native.structs import CDelta, CModel

NATIVE_MATRICES = ("mixer.qkv", "mixer.value", "mixer.out", "ffn.gate_up", "ffn.down")
"""In the order of lora.h."""
RECURRENT_INPUTS = ("mixer.inner", "mixer.inner.inner")
"""What stands for the first of these in a layer with a state."""
MOST_ADAPTER_SLOTS = 1024
LINE = pages.CACHE_LINE_BYTES


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """Factors of a matrix: down [rank/8][in/32, 8, 32] and up [columns, 16] in bfloat16, tile [out/16 + 2, 2] int32:
    first column in `up`, and first number of the low rank + 65,536 x columns."""

    down: Tensor
    up: Tensor
    tile: Tensor
    rank: int
    width: int
    """Inputs, with those that are zero."""

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.down, self.up, self.tile

    @property
    def c(self) -> CDelta:
        return CDelta(*(part.data_ptr() for part in self.parts), self.rank, self.width)


def pack_delta(pair: LoraPair) -> PackedDelta:
    """Packed factors: of each 16 outputs pairs of the columns between the first and the last that is not zero."""
    down, up = (part.to(torch.bfloat16) for part in pair)
    odd = len(down) % 2
    down = torch.nn.functional.pad(down, (0, -down.shape[1] % 32, 0, odd))
    up = torch.nn.functional.pad(up, (0, odd))
    tiles = torch.nn.functional.pad(up, (0, 0, 0, -len(up) % 32)).view(-1, 16, len(down) // 2, 2)
    used = (tiles != 0).any(3).any(1).int()
    kept = (used.cummax(1).values & used.flip(1).cummax(1).values.flip(1)).bool()
    counts = 2 * kept.sum(1)
    table = torch.zeros(len(tiles) + 2, 2, dtype=torch.int32)
    table[1:, 0] = torch.nn.functional.pad(counts.cumsum(0), (0, 1), value=int(counts.sum()))
    table[:-2, 1] = 2 * used.argmax(1) + (counts << 16)
    by_inputs = [eight.view(len(eight), -1, 32).transpose(0, 1).flatten() for eight in torch.split(down, 8)]
    return PackedDelta(torch.cat(by_inputs), tiles.transpose(1, 2)[kept].reshape(-1, 16), table, *down.shape)


def side_by_side(deltas: Sequence[PackedDelta]) -> tuple[list[PackedDelta], Tensor]:
    """Factors in one piece of memory, each part from a cache line on, as passes read them; and that memory."""
    sizes = [-(-part.nbytes // LINE) * LINE for each in deltas for part in each.parts]
    memory = pages.zeros(sum(sizes))
    rooms, moved = iter(torch.split(memory, sizes)), list[PackedDelta]()
    for each in deltas:
        places = [next(rooms)[: part.nbytes].view(part.dtype).view(part.shape) for part in each.parts]
        for place, part in zip(places, each.parts):
            place.copy_(part)
        packed, raised, tile = places
        moved.append(PackedDelta(packed, raised, tile, each.rank, each.width))
    return moved, memory


class NativeAdapters:
    """The adapters of a native decoder, by slot."""

    def __init__(self, spec: ModelSpec, apart: Sequence[bool], model: CModel) -> None:
        """`apart`: whether a layer has the values in a matrix of their own."""
        self.spec, self.apart, self.model = spec, apart, model
        self.bytes: dict[int, int] = {}
        """What the adapter in a slot takes."""
        self._held: dict[int, tuple[Tensor, Any]] = {}
        self._ranks: dict[int, int] = {}
        self._table = (ctypes.c_void_p * MOST_ADAPTER_SLOTS)()

    def install(self, slot: int, weights: LoraWeights) -> int:
        """Put an adapter into a slot; how many bytes it takes."""
        deltas, held, rank = (CDelta * (len(self.spec.layers) * len(NATIVE_MATRICES)))(), dict[int, PackedDelta](), 0
        for place in lora_places(self.spec, True, interleaved(self.spec, weights), self.apart):
            if (pair := fused(place, weights)) is not None:
                matrix = "mixer.qkv" if place.matrix in RECURRENT_INPUTS else place.matrix
                if matrix not in NATIVE_MATRICES:
                    raise RefusalError(
                        f"This adapter changes {place.modules[0]}, a part of a mixture of experts, which the native "
                        "decoder does not do yet; one on the attention alone is served, and all are with "
                        "PACELINE_NATIVE=0."
                    )
                packed = pack_delta(pair)
                held[place.layer * len(NATIVE_MATRICES) + NATIVE_MATRICES.index(matrix)] = packed
                rank = max(rank, packed.rank)
        moved, memory = side_by_side([*held.values()])
        for number, packed in zip(held, moved):
            deltas[number] = packed.c
        self._held[slot], self._ranks[slot] = (memory, deltas), rank
        self._table[slot] = ctypes.addressof(deltas)
        self.bytes[slot] = memory.nbytes
        self._changed()
        return self.bytes[slot]

    def remove(self, slot: int) -> None:
        """Empty a slot."""
        self._table[slot] = None
        for known in (self._held, self._ranks, self.bytes):
            known.pop(slot, None)
        self._changed()

    def _changed(self) -> None:
        self.model.rank = -(-max(self._ranks.values(), default=0) // 16) * 16
        self.model.adapters = ctypes.addressof(self._table) if self._held else None
