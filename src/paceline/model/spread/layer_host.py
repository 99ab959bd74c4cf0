"""A process that holds layers of a model and of its fine-tunes, with the keys and values of texts there."""

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.attend import quickest
from paceline.attend.fused import Fused
from paceline.core.program import Program
from paceline.core.rows import Rows, Segment
from paceline.model.blocks import Block
from paceline.model.checkpoint import open_tensors, read_config
from paceline.model.decoder import Decoder, Weights
from paceline.model.families import FAMILIES
from paceline.model.linear import Packing
from paceline.model.load import packing_of
from paceline.model.loader import Loader
from paceline.model.native import NativeDecoder
from paceline.model.norms import Norm
from paceline.model.opened import let_go
from paceline.model.spec import ModelSpec

Version = tuple[int, str]
"""A layer: its number in the model, and the digest of its weights."""
Carried = tuple[bytes, dict[str, bytes]]
"""Hidden states of the rows, and those that were tapped on the way."""
PackedRows = tuple[bytes, int, list[tuple[Any, ...]]]
"""Numbers, width and segments of `Rows`."""
STAND_IN_ROWS = 64
"""Outputs of the head that such a process has in place of the model's own, and never asks."""


class LayerHost:
    """Holds layers by number and digest. A text is in it for those of its chain's layers that are here."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.held: dict[Version, Block] = {}
        self.numbers: list[int] = []
        """Layers of the model of which some version is here, ascending: their places in the pool."""
        self.spec: ModelSpec | None = None
        self.packing: Packing | None = None
        self.stretches: dict[tuple[Version, ...], Decoder] = {}
        self.root: Decoder | None = None

    def process(self) -> int:
        """Its number on this machine."""
        return os.getpid()

    def load(self, path: str, form: Mapping[str, Any], wanted: Sequence[int]) -> list[Version]:
        """Load these layers of a checkpoint."""
        at = Path(path)
        spec = read_config(at, form["max_len"])
        packing = packing_of(at, spec, form["dtype"], form["quantize"], "cpu", kv_dtype=form["kv_dtype"])
        tensors = open_tensors(at)
        names = tensors.renamed or FAMILIES[spec.family].names
        loader = Loader(spec, names, tensors, packing, torch.device("cpu"))
        found = list[Version]()
        for index in wanted:
            before = len(loader.fingerprint.parts)
            block = loader.block(index)
            found.append((index, loader.fingerprint.since(before)))
            self.held[found[-1]] = block
            tensors.let_go()
        let_go(at)
        self.spec, self.packing = spec, packing
        return found

    def allocate(self, blocks: int, block_size: int) -> None:
        """Make the pool for keys and values of all layers that are here."""
        assert self.spec is not None
        self.numbers = sorted({index for index, _ in self.held})
        self.spec = part = part_spec(self.spec, self.numbers)
        for (index, _), block in self.held.items():
            mixer: Any = block.mixer
            mixer.index = part.place(self.numbers.index(index))[1]
        first = {index: (index, digest) for index, digest in self.held}
        self.root = self._decoder([first[index] for index in self.numbers])
        self.root.allocate(blocks, block_size)

    def run(self, carried: Carried, rows: PackedRows, stretch: tuple[Version, ...], taps: tuple[str, ...]) -> Carried:
        """Rows through layers that follow one another."""
        assert self.root is not None
        x, tapped = carried
        numbers, width, segments = rows
        flat = array("q")
        flat.frombytes(numbers)
        place = {f"input:{index}": f"input:{rank}" for rank, index in enumerate(self.numbers)}
        mine = {tap: place[tap] for tap in taps if any(tap == f"input:{index}" for index, _ in stretch)}
        first = self.numbers.index(stretch[0][0])
        hidden = torch.frombuffer(bytearray(x), dtype=self.root.compute).view(-1, self.root.width)
        with torch.inference_mode():
            out = self._stretch(stretch).computed(Rows(
                flat, width, [Segment(*each) for each in segments], "cpu",
                Program(first, first + len(stretch), head=False), hidden, tuple(mine.values()),
            ))  # fmt: skip
        assert out.leave is not None
        return raw(out.leave), {**tapped, **{tap: raw(out.taps[it]) for tap, it in mine.items()}}

    def move(self, source: list[int], target: list[int]) -> None:
        assert self.root is not None
        self.root.move(source, target)

    def read(self, slots: list[int]) -> bytes:
        assert self.root is not None
        return self.root.read(slots)

    def write(self, slots: list[int], packed: bytes) -> None:
        assert self.root is not None
        self.root.write(slots, packed)

    def _stretch(self, stretch: tuple[Version, ...]) -> Decoder:
        """The decoder with these versions of its layers."""
        if stretch not in self.stretches:
            here = dict(stretch)
            first = dict(self.held.keys())
            made = self._decoder([(index, here.get(index, first[index])) for index in self.numbers])
            assert self.root is not None
            made.share_pool(self.root)
            self.stretches[stretch] = made
        return self.stretches[stretch]

    def _decoder(self, versions: Sequence[Version]) -> Decoder:
        spec, packing = self.spec, self.packing
        assert spec is not None and packing is not None
        return layers_alone(spec, packing, [self.held[version] for version in versions])


def part_spec(spec: ModelSpec, numbers: Sequence[int]) -> ModelSpec:
    """The shape of a model that has these layers alone, and hardly a vocabulary."""
    return replace(spec, layers=tuple(spec.layers[index] for index in numbers), vocab=STAND_IN_ROWS)


def layers_alone(spec: ModelSpec, packing: Packing, blocks: list[Block]) -> Decoder:
    """A decoder of layers whose embedding and head are elsewhere."""
    nothing = torch.zeros(STAND_IN_ROWS, spec.hidden, dtype=packing.dtype)
    norm = Norm(torch.ones(spec.hidden, dtype=torch.float32), spec.norm_eps)
    weights = Weights(nothing, blocks, norm, packing.pack(nothing, None), 0)
    if packing.native:
        return NativeDecoder(spec, weights, packing)
    return Decoder(spec, weights, packing, Fused if not spec.uniform else quickest("cpu", packing.dtype))


def raw(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()
