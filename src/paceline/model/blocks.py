"""The parts of a decoder layer: plain classes over tensors, weights fused and packed at load."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.attend import Attend
from paceline.model.linear import Linear
from paceline.model.spec import Activation, ModelSpec, Rope

Turn = tuple[Tensor, Tensor]
"""cos and signed sin of one pass's positions, [T, 1, rotated] each."""


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATE: dict[Activation, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_tanh": gelu_tanh}


class Norm:
    """RMS norm over the last dimension, in float32 or wider; `weight` already has the family's offset."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.weight.dtype), x.shape[-1:], self.weight, self.eps).to(x.dtype)


def turn(rope: Rope, position: Tensor, inverse: Tensor, dtype: torch.dtype) -> Turn:
    """The rotation of every row. Computed per pass rather than looked up: a table to max_len would be larger
    than the cache of many a chat, and a pass needs only T rows of it."""
    angle = position[:, None, None].float() * inverse
    cos, sin = angle.cos() * rope.scale, angle.sin() * rope.scale
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate_(x: Tensor, turn: Turn) -> None:
    """Rotate x [T, heads, head_dim] in place: (a, b) -> (a cos - b sin, b cos + a sin), halves being pairs."""
    cos, sin = turn
    x = x[..., : cos.shape[-1]]
    swapped = x.roll(cos.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)


@dataclass(slots=True)
class Block:
    """One layer. qkv: [T, hidden] -> [T, (heads + 2 kv_heads) * head_dim]; gate_up: -> [T, 2 * ffn].

    `head_norm` [heads + kv_heads, head_dim] are the q and k norm weights, one row per head; the post norms
    are None unless the family has four norms.
    """

    spec: ModelSpec
    index: int
    attention_norm: Norm
    qkv: Linear
    head_norm: Tensor | None
    out: Linear
    attention_post_norm: Norm | None
    ffn_norm: Norm
    gate_up: Linear
    down: Linear
    ffn_post_norm: Norm | None

    def forward(self, x: Tensor, turn: Turn, attend: Attend) -> None:
        """Add the layer's contribution to the residual stream x [T, hidden], in place."""
        y = self.attention(self.attention_norm(x), turn, attend)
        x.add_(y if self.attention_post_norm is None else self.attention_post_norm(y))
        y = self.ffn(self.ffn_norm(x))
        x.add_(y if self.ffn_post_norm is None else self.ffn_post_norm(y))

    def attention(self, x: Tensor, turn: Turn, attend: Attend) -> Tensor:
        spec = self.spec
        turned = spec.heads + spec.kv_heads
        qkv = self.qkv(x).view(len(x), turned + spec.kv_heads, spec.head_dim)
        if self.head_norm is not None:
            wide = qkv[:, :turned].to(self.head_norm.dtype)
            qkv[:, :turned] = F.rms_norm(wide, wide.shape[-1:], eps=spec.norm_eps) * self.head_norm
        rotate_(qkv[:, :turned], turn)
        kv = qkv[:, spec.heads :].view(len(x), 2, spec.kv_heads, spec.head_dim)
        return self.out(attend.forward(self.index, qkv[:, : spec.heads], kv))

    def ffn(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(ACTIVATE[self.spec.activation](gate).mul_(up))
