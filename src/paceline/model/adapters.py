"""Adapters of a decoder while it computes: which rows have which, and what is added to each matrix.

Rows are grouped by adapter; a row without one is computed as if there were none. The native decoder does the same in
native/lora.h.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.core.rows import Rows
from paceline.model.blocks import Block, Mixture
from paceline.model.linear import Linear
from paceline.model.lora import LoraPair, LoraWeights, fused, interleaved
from paceline.model.lora_places import LATENT_UP, lora_places
from paceline.model.spec import ModelSpec


@dataclass(slots=True)
class AdaptedRows:
    """The adapters of a pass."""

    of: "Tensor | None" = None
    """[T] slot of each row's adapter, 0: none; None: no row has one."""
    groups: list[tuple[int, Tensor]] = field(default_factory=list)
    """(slot of an adapter, rows that are computed with it)"""

    def begin(self, rows: Rows) -> None:
        """Take the rows of a pass."""
        if not any(segment.adapter for segment in rows.segments):
            self.of, self.groups = None, []
            return
        counts = torch.tensor([segment.rows for segment in rows.segments])
        self._set(torch.tensor([segment.adapter for segment in rows.segments]).repeat_interleave(counts))

    def _set(self, of: Tensor | None) -> None:
        self.of, self.groups = of, []
        if of is not None:
            self.groups = [(slot, (of == slot).nonzero().flatten()) for slot in sorted({*of.tolist()} - {0})]

    @contextmanager
    def among(self, rows: Tensor) -> Iterator[None]:
        """Meanwhile a matrix gets these rows alone."""
        whole = self.of
        if whole is not None:
            self._set(whole[rows.cpu()])
        yield
        if whole is not None:
            self._set(whole)


@dataclass(eq=False, slots=True)
class Adapted:
    """A linear layer with what adapters add to it."""

    base: Linear
    rows: AdaptedRows
    pairs: dict[int, LoraPair] = field(default_factory=dict)
    """By slot."""

    def __call__(self, x: Tensor) -> Tensor:
        y = self.base(x)
        for slot, rows in self.rows.groups:
            if (pair := self.pairs.get(slot)) is not None:
                at = rows.to(x.device)
                more = x.index_select(0, at).to(pair.down.dtype) @ pair.down.T @ pair.up.T
                y.index_add_(0, at, more.to(y.dtype))
        return y


@dataclass(eq=False, slots=True)
class AdaptedUp:
    """What adapters add to keys and values of latent vectors (`UpChange`)."""

    rows: AdaptedRows
    heads: int
    pairs: dict[int, LoraPair] = field(default_factory=dict)
    """By slot; `up` is that of each head's key, and its value behind it."""

    def to_keys(self, query: Tensor, absorbed: Tensor) -> None:
        for at, down, up in self.changes(query):
            mine, keys = query.index_select(0, at).to(up.dtype), up[:, : query.shape[2]]
            more = torch.einsum("thn,hnr,rk->thk", mine, keys, down)
            absorbed.index_add_(0, at, more.to(absorbed.dtype))

    def to_values(self, found: Tensor, made: Tensor) -> None:
        for at, down, up in self.changes(found):
            mine, values = found.index_select(0, at).to(up.dtype), up[:, -made.shape[2] :]
            more = torch.einsum("thk,rk,hvr->thv", mine, down, values)
            made.index_add_(0, at, more.to(made.dtype))

    def changes(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(rows, down [rank, kept], up [heads, .., rank]) of each adapter of the pass."""
        for slot, rows in self.rows.groups:
            if (pair := self.pairs.get(slot)) is not None:
                yield rows.to(x.device), pair.down, pair.up.view(self.heads, -1, len(pair.down))


class AdapterTable:
    """The adapters of a decoder in PyTorch, by slot."""

    def __init__(self, spec: ModelSpec, blocks: list[Block], device: torch.device, dtype: torch.dtype) -> None:
        """`dtype`: of the products."""
        self.spec, self.blocks, self.device = spec, blocks, device
        self.dtype = dtype if dtype == torch.float64 else torch.float32
        self.rows = AdaptedRows()
        self.bytes: dict[int, int] = {}
        """What the adapter in a slot takes."""

    def install(self, slot: int, weights: LoraWeights) -> int:
        """Put an adapter into a slot; how many bytes it takes."""
        self.bytes[slot] = 0
        for place in lora_places(self.spec, False, interleaved(self.spec, weights)):
            if (pair := fused(place, weights)) is not None:
                wide = LoraPair(*(part.to(self.device, self.dtype) for part in pair))
                self._adapted(place.layer, place.matrix).pairs[slot] = wide
                self.bytes[slot] += sum(part.nbytes for part in wide)
        return self.bytes[slot]

    def remove(self, slot: int) -> None:
        """Empty a slot."""
        self.bytes.pop(slot, None)
        for layer, matrix in {(p.layer, p.matrix) for p in lora_places(self.spec, False, False)}:
            holder, name = self._holder(layer, matrix)
            if isinstance(found := getattr(holder, name), Adapted | AdaptedUp):
                found.pairs.pop(slot, None)

    def _adapted(self, layer: int, matrix: str) -> Adapted | AdaptedUp:
        holder, name = self._holder(layer, matrix)
        found = getattr(holder, name)
        if not isinstance(found, Adapted | AdaptedUp):
            up = matrix == LATENT_UP
            found = AdaptedUp(self.rows, self.spec.heads) if up else Adapted(found, self.rows)
            setattr(holder, name, found)
            if isinstance(feed := self.blocks[layer].ffn, Mixture):
                feed.adapted = self.rows
        return found

    def _holder(self, layer: int, matrix: str) -> tuple[Any, str]:
        holder: Any = self.blocks[layer]
        *path, name = matrix.split(".")
        for part in path:
            holder = holder[int(part)] if part.isdigit() else getattr(holder, part)
        return holder, name
