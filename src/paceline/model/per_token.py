"""Inputs of each layer that depend on the token alone (Gemma 4's per-layer embeddings)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.model.grouped import looked_up
from paceline.model.linear import Linear
from paceline.model.norms import Norm
from paceline.model.packed import Packed


@dataclass(slots=True)
class TokenInputs:
    """Rows of a table, and a projection of the embedding, together: `width` numbers for each layer.

    table [vocab, layers * width], as the embedding lies; its rows are multiplied by `scale`. projection: [T, hidden]
    -> [T, layers * width], whose result is multiplied by `factor` and normed by layer."""

    table: Any
    scale: float
    projection: Linear
    factor: float
    norm: Norm
    width: int

    def __call__(self, token: Tensor, embedded: Tensor) -> Tensor:
        """[T] and their embeddings [T, hidden] -> [T, layers, width]."""
        table = self.table
        rows = looked_up(table, token) if isinstance(table, Packed) else torch.nn.functional.embedding(token, table)
        rows = rows.to(embedded.dtype).mul_(self.scale)
        made = self.projection(embedded).mul_(self.factor).view(len(token), -1, self.width)
        return self.norm(made).add_(rows.view(made.shape)).mul_(2**-0.5)


@dataclass(slots=True)
class LayerClose:
    """What is done to the stream behind a layer's two parts: a gated contribution of the token's own numbers, then a
    factor. gate: [T, hidden] -> [T, width], projection: [T, width] -> [T, hidden]."""

    activate: Callable[[Tensor], Tensor]
    gate: Linear | None
    projection: Linear | None
    norm: Norm | None
    scale: Tensor | None

    def __call__(self, x: Tensor, own: Tensor | None) -> None:
        """In place; `own` [T, width]."""
        if own is not None and self.gate is not None and self.projection is not None and self.norm is not None:
            x.add_(self.norm(self.projection(self.activate(self.gate(x)).mul_(own))))
        if self.scale is not None:
            x.mul_(self.scale.to(x.dtype))
