"""The parts of a decoder layer: plain classes over tensors, weights fused and packed at load."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.attend import Attend
from paceline.model.linear import Linear
from paceline.model.spec import Activation, ModelSpec, Rope

Turn = tuple[Tensor, Tensor]
"""cos and signed sin of one pass's positions, [T, 1, rotated] each."""
PLACES = 1024
"""Positions whose rotations are computed at once."""


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATE: dict[Activation, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_tanh": gelu_tanh}


class Norm:
    """RMS norm over the last dimension, in float32 or wider; `weight` [n] already has the family's offset.

    x w / sqrt(|x|^2 / n + eps), computed as x (w sqrt n) / hypot(|x|, sqrt(n eps)): four operations of which
    two are on one number a row, in half the time of F.rms_norm at a few rows on a CPU.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        n = weight.shape[-1]
        self.weight = weight * math.sqrt(n)
        self.floor = torch.tensor(math.sqrt(n * eps), dtype=weight.dtype, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide * self.weight).div_(length.hypot_(self.floor)).to(x.dtype)


class Rotary:
    """cos and sin of the rows' positions, from a table that doubles with the longest text so far: one to max_len
    could outweigh the cache of many a chat. They come from numpy, rounded from float64: the first `torch.cos` of a
    process that runs on two threads is now and then off by a last bit, and a text would change with it."""

    def __init__(self, rope: Rope, device: torch.device, dtype: torch.dtype, most: int) -> None:
        """`most`: positions a text can have; the table does not double beyond them."""
        self.most = most
        self.inverse, self.scale, self.device, self.dtype = torch.tensor(rope.inverse), rope.scale, device, dtype
        self.table = self.fill(min(256, most))

    def fill(self, length: int) -> Tensor:
        """[length, 2, 1, rotated]: cos, then signed sin, of every position."""
        table = torch.empty(length, 2, 1, 2 * len(self.inverse), dtype=self.dtype)
        for place, part in zip(torch.arange(length).chunk(-(-length // PLACES)), table.chunk(-(-length // PLACES))):
            wide = (place[:, None].float() * self.inverse).double().numpy()
            cos, sin = (torch.from_numpy(wave(wide)).float() * self.scale for wave in (np.cos, np.sin))
            part.copy_(torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)[:, :, None])
        return table.to(self.device)

    def extend(self, reach: int) -> None:
        """Have every position below `reach` in the table."""
        if reach > len(self.table):
            self.table = self.fill(max(reach, min(2 * len(self.table), self.most)))

    def __call__(self, position: Tensor, reach: int) -> Turn:
        """`reach`: above every position, known on the host."""
        self.extend(reach)
        cos, sin = self.table.index_select(0, position).unbind(1)
        return cos, sin


def rotate_(x: Tensor, turn: Turn) -> None:
    """Rotate x [T, heads, head_dim] in place: (a, b) -> (a cos - b sin, b cos + a sin), halves being pairs."""
    cos, sin = turn
    x = x.narrow(-1, 0, cos.shape[-1])
    swapped = x.roll(cos.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)


@dataclass(slots=True)
class Block:
    """One layer. qkv: [T, hidden] -> [T, (heads + 2 kv_heads) * head_dim]; gate_up: -> [T, 2 * ffn].

    `head_norm` has a row of weights for each head of q and k; the post norms are those of gemma's four.
    """

    spec: ModelSpec
    index: int
    attention_norm: Norm
    qkv: Linear
    head_norm: Norm | None
    out: Linear
    attention_post_norm: Norm | None
    ffn_norm: Norm
    gate_up: Linear
    down: Linear
    ffn_post_norm: Norm | None

    def attend(self, x: Tensor, entry: Tensor | None, turn: Turn, attend: Attend) -> None:
        """Add the attention's contribution to the residual stream x [T, hidden], in place. It reads `entry`, if there
        is one, not x."""
        y = self.attention(self.attention_norm(x if entry is None else entry), turn, attend)
        x.add_(y if self.attention_post_norm is None else self.attention_post_norm(y))

    def feed(self, x: Tensor) -> None:
        """Add the feed-forward part's contribution, in place."""
        y = self.ffn(self.ffn_norm(x))
        x.add_(y if self.ffn_post_norm is None else self.ffn_post_norm(y))

    def attention(self, x: Tensor, turn: Turn, attend: Attend) -> Tensor:
        spec = self.spec
        turned = spec.heads + spec.kv_heads
        qkv = self.qkv(x).view(len(x), turned + spec.kv_heads, spec.head_dim)
        q_and_k = qkv.narrow(1, 0, turned)
        if self.head_norm is not None:
            q_and_k.copy_(self.head_norm(q_and_k))
        rotate_(q_and_k, turn)
        kv = qkv.narrow(1, spec.heads, 2 * spec.kv_heads).view(len(x), 2, spec.kv_heads, spec.head_dim)
        return self.out(attend.forward(self.index, qkv.narrow(1, 0, spec.heads), kv))

    def ffn(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(ACTIVATE[self.spec.activation](gate).mul_(up))
