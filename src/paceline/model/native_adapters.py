"""Adapters of the native decoder, packed as native/lora.h reads them. Its slow twin is model/adapters.py."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import RefusalError
from paceline.model.lora import LoraPair, LoraWeights, fused, interleaved, lora_places
from paceline.model.spec import ModelSpec
from paceline.native.structs import CDelta, CModel

NATIVE_MATRICES = ("mixer.qkv", "mixer.value", "mixer.out", "ffn.gate_up", "ffn.down")
"""In the order of lora.h."""
MOST_ADAPTER_SLOTS = 1024


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """Factors of a matrix: down [in/32, rank, 32] and up [columns, 16] in bfloat16, tile [out/16 + 2, 2] int32: first
    column in `up`, and first number of the low rank + 65,536 x columns."""

    down: Tensor
    up: Tensor
    tile: Tensor

    @property
    def bytes(self) -> int:
        return self.down.nbytes + self.up.nbytes + self.tile.nbytes

    @property
    def c(self) -> CDelta:
        down, up, tile = (part.data_ptr() for part in (self.down, self.up, self.tile))
        return CDelta(down, up, tile, self.down.shape[1], 32 * len(self.down))


def pack_delta(pair: LoraPair) -> PackedDelta:
    """Packed factors: of each 16 outputs pairs of the columns between the first and the last that is not zero."""
    down, up = (part.to(torch.bfloat16) for part in pair)
    odd = len(down) % 2
    down = torch.nn.functional.pad(down, (0, -down.shape[1] % 32, 0, odd))
    up = torch.nn.functional.pad(up, (0, odd))
    tiles = torch.nn.functional.pad(up, (0, 0, 0, -len(up) % 32)).view(-1, 16, len(down))
    columns, table, at = list[Tensor](), list[list[int]](), 0
    for tile in tiles:
        used = tile.any(0).nonzero().flatten()
        first, last = (int(used[0]) // 2 * 2, int(used[-1]) // 2 * 2 + 2) if len(used) else (0, 0)
        columns.append(tile[:, first:last].reshape(16, -1, 2).transpose(0, 1).reshape(-1, 16))
        table.append([at, first + (last - first << 16)])
        at += last - first
    by_inputs = down.view(len(down), -1, 32).transpose(0, 1).contiguous()
    table += [[at, 0]] * 2
    return PackedDelta(by_inputs, torch.cat(columns).contiguous(), torch.tensor(table, dtype=torch.int32))


class NativeAdapters:
    """The adapters of a native decoder, by slot."""

    def __init__(self, spec: ModelSpec, apart: Sequence[bool], model: CModel) -> None:
        """`apart`: whether a layer has the values in a matrix of their own."""
        self.spec, self.apart, self.model = spec, apart, model
        self.bytes: dict[int, int] = {}
        """What the adapter in a slot takes."""
        self._held: dict[int, tuple[list[PackedDelta], Any]] = {}
        self._ranks: dict[int, int] = {}
        self._table = (ctypes.c_void_p * MOST_ADAPTER_SLOTS)()

    def install(self, slot: int, weights: LoraWeights) -> int:
        """Put an adapter into a slot; how many bytes it takes."""
        deltas, held, rank = (CDelta * (len(self.spec.layers) * len(NATIVE_MATRICES)))(), list[PackedDelta](), 0
        for place in lora_places(self.spec, True, interleaved(self.spec, weights), self.apart):
            if (pair := fused(place, weights)) is not None:
                if place.matrix not in NATIVE_MATRICES:
                    raise RefusalError(
                        f"This adapter changes {place.modules[0]}, a part of a mixture of experts, which the native "
                        "decoder does not do yet; one on the attention alone is served, and all are with "
                        "PACELINE_NATIVE=0."
                    )
                packed = pack_delta(pair)
                deltas[place.layer * len(NATIVE_MATRICES) + NATIVE_MATRICES.index(place.matrix)] = packed.c
                held.append(packed)
                rank = max(rank, packed.down.shape[1])
        self._held[slot], self._ranks[slot] = (held, deltas), rank
        self._table[slot] = ctypes.addressof(deltas)
        self.bytes[slot] = sum(each.bytes for each in held)
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
