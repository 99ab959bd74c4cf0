"""Mixers whose keys and values are not the model's: of another shape, another layer's, or one latent vector."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.attend import Attend
from paceline.attend.turn import rotate_
from paceline.model.linear import Linear
from paceline.model.norms import Norm
from paceline.model.rotary import Turn


@dataclass(slots=True)
class VariedAttention:
    """A layer's mixer. query: [T, hidden] -> [T, heads * head_dim]; keys: [T, hidden] -> [T, n * kv_heads * head_dim],
    keys and values, or with n = 1 both in one; None: they are those of another layer, already written.

    Queries, keys and values are normed by head; `index` is the place in the layer's pool."""

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    query: Linear
    query_norm: Norm
    keys: Linear | None
    key_norm: Norm | None
    value_norm: Norm | None
    out: Linear

    def __call__(self, x: Tensor, turn: Turn, attend: Attend) -> Tensor:
        query = self.query_norm(self.query(x).view(len(x), self.heads, self.head_dim))
        rotate_(query, turn)
        return self.out(attend.forward(self.index, query, self.written(x, turn)))

    def written(self, x: Tensor, turn: Turn) -> Tensor | None:
        """The rows' own keys and values [T, 2, kv_heads, head_dim]."""
        if self.keys is None or self.key_norm is None or self.value_norm is None:
            return None
        made = self.keys(x).view(len(x), -1, self.kv_heads, self.head_dim)
        key, value = self.key_norm(made[:, 0]), self.value_norm(made[:, -1])
        rotate_(key, turn)
        return torch.stack((key, value), 1)


class UpChange(Protocol):
    """A change of what makes keys and values of latent vectors, for some rows."""

    def to_keys(self, query: Tensor, absorbed: Tensor) -> None:
        """Add it to queries [T, heads, head_dim] that are taken to latent vectors, `absorbed` [T, heads, rank]."""

    def to_values(self, found: Tensor, made: Tensor) -> None:
        """Add it to values `made` [T, heads, value_dim] of what was found [T, heads, rank]."""


@dataclass(slots=True)
class LatentAttention:
    """A layer's mixer: MLA with its products absorbed. A token is kept as its normed latent vector and a rotated part,
    which all heads share; `keys` [heads, head_dim, rank] takes queries to it, `values` [heads, rank, value_dim] takes
    what they find from it.

    first, first_norm: [T, hidden] -> [T, query_rank], where queries have a latent vector, too; query: that, or the
    input, -> [T, heads * (head_dim + rotated)]; latent: [T, hidden] -> [T, rank + rotated]."""

    index: int
    first: Linear | None
    first_norm: Norm | None
    query: Linear
    latent: Linear
    norm: Norm
    keys: Tensor
    values: Tensor
    out: Linear
    up: "UpChange | None" = None
    """What adapters add to `keys` and `values`."""

    def __call__(self, x: Tensor, turn: Turn, attend: Attend) -> Tensor:
        heads, head_dim, rank = self.keys.shape
        wide = x if self.first is None or self.first_norm is None else self.first_norm(self.first(x))
        query, turned = self.query(wide).view(len(x), heads, -1).tensor_split([head_dim], -1)
        vector, key = self.latent(x).view(len(x), 1, -1).tensor_split([rank], -1)
        rotate_(turned, turn)
        rotate_(key, turn)
        absorbed = torch.einsum("thn,hnr->thr", query, self.keys.to(x.dtype))
        if self.up is not None:
            self.up.to_keys(query, absorbed)
        kept = torch.cat((self.norm(vector), key), -1)
        mixed = attend.forward(self.index, torch.cat((absorbed, turned), -1), kept[:, None])
        found = mixed.view(len(x), heads, -1)[:, :, :rank]
        made = torch.einsum("thr,hrv->thv", found, self.values.to(x.dtype))
        if self.up is not None:
            self.up.to_values(found, made)
        return self.out(made.flatten(1))
