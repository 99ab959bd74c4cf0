"""Decoder layers of heads: one module for training, over whole texts, and for an engine, over rows in a pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.attend import Attend
from paceline.attend.turn import rotate_
from paceline.core.rows import Rows
from paceline.model import pages
from paceline.model.decoder import unpacked
from paceline.model.linear import Packing
from paceline.model.rotary import Rotary
from paceline.model.spec import Rope

ABSENT_LOGIT = -1e30
"""Logit of a token that a draft vocabulary lacks."""


@dataclass(frozen=True, slots=True)
class HeadStage:
    """One depth of a head that is nothing but this: y = straight z + SiLU(bent z) of the `inputs`, or y = z; then
    y = y + SiLU(W y) for each block W. z is the hidden state; with `sees`, and behind it the embeddings of the root and
    of all tokens down to the node."""

    blocks: Sequence[nn.Module]
    inputs: tuple[nn.Module, nn.Module] | None = None
    sees: bool = False


class KvPool:
    """Keys and values of a head's layers, by slot."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.sizes, self.dtype = (layers, kv_heads, head_dim), dtype

    def allocate(self, blocks: int, block_size: int) -> Tensor:
        """The pool [layers, 2, kv_heads, blocks, block_size, head_dim], as attention takes it."""
        layers, kv_heads, head_dim = self.sizes
        shape = (layers, 2, kv_heads, blocks, block_size, head_dim)
        pool = pages.tensor(shape, self.dtype, torch.device("cpu"))
        self.slots = pool.view(layers, 2, kv_heads, blocks * block_size, head_dim)
        return pool

    def move(self, source: list[int], target: list[int]) -> None:
        if source:
            self.slots.index_copy_(3, torch.tensor(target), self.slots.index_select(3, torch.tensor(source)))

    def read(self, slots: list[int]) -> bytes:
        return bytes_of(self.slots.index_select(3, torch.tensor(slots, dtype=torch.int64)))

    def write(self, slots: list[int], packed: bytes) -> None:
        layers, kv_heads, head_dim = self.sizes
        shape = (layers, 2, kv_heads, len(slots), head_dim)
        self.slots.index_copy_(3, torch.tensor(slots, dtype=torch.int64), unpacked(packed, shape, self.dtype))


def bytes_of(part: Tensor) -> bytes:
    packed: Any = part.contiguous().view(torch.uint8).numpy()
    return bytes(packed.tobytes())


class Attending(Protocol):
    """Causal attention over texts."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim], not rotated -> [T, heads * head_dim]."""


class Paged:
    """Over rows of a pass, whose keys and values go to their slots of a pool."""

    def __init__(self, attend: Attend, rotary: Rotary, rows: Rows) -> None:
        self.attend = attend
        attend.prepare(rows)
        self.turn = rotary(rows.position, max(s.base + s.rows for s in rows.segments))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = q.float().contiguous(), k.float().contiguous()
        rotate_(q, self.turn)
        rotate_(k, self.turn)
        return self.attend.forward(layer, q, torch.stack((k, v.float()), 1))


class DenseTexts:
    """Over `count` texts of `length` rows each, the rows of a text side by side; differentiable."""

    def __init__(self, count: int, length: int, rotary: Rotary) -> None:
        self.shape = (count, length)
        cos, sin = rotary(torch.arange(length), length)
        self.cos, self.sin = cos.repeat(count, 1, 1), sin.repeat(count, 1, 1)

    def rotated(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * self.cos + x.roll(x.shape[-1] // 2, -1) * self.sin

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (
            x.float().view(*self.shape, *x.shape[1:]).transpose(1, 2) for x in (self.rotated(q), self.rotated(k), v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(-1, q.shape[1] * q.shape[3])


class RMSNorm(nn.Module):
    """x w / sqrt(mean x^2 + eps), in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class DraftLayer(nn.Module):
    """A Llama layer: x + attention(norm x), then x + FFN(norm x). `c`: sizes, a `HeadConfig`."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.width, c.eps), RMSNorm(c.width, c.eps)
        self.q_proj, self.o_proj = nn.Linear(c.width, q, bias=False), nn.Linear(q, c.width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(c.width, kv, bias=False), nn.Linear(c.width, kv, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(c.width, c.ffn, bias=False), nn.Linear(c.width, c.ffn, bias=False)
        self.down_proj = nn.Linear(c.ffn, c.width, bias=False)

    def forward(self, x: Tensor, index: int, attend: Attending) -> Tensor:
        """x [T, H] -> [T, H]; `index`: the layer's, in the pool."""
        y = self.input_layernorm(x)
        q = self.q_proj(y).view(len(x), self.heads, self.head_dim)
        k, v = (each(y).view(len(x), self.kv_heads, self.head_dim) for each in (self.k_proj, self.v_proj))
        x = x + self.o_proj(attend(index, q, k, v).to(x.dtype))
        y = self.post_attention_layernorm(x)
        made: Tensor = x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))
        return made

    @staticmethod
    def rope(head_dim: int, theta: float) -> Rope:
        """The rotation of all dimensions of a head."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return Rope(tuple((1.0 / theta**exponents).tolist()))


class PackedLinear(nn.Module):
    """A matrix as the target's lie in memory (model/linear.py): for an engine, not for training."""

    def __init__(self, linear: nn.Linear, packing: Packing) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().to(packing.dtype)
        self.linear, self.compute = packing.pack(linear.weight.detach().to(packing.dtype), bias), packing.compute
        self.bytes: int = getattr(self.linear, "bytes", linear.weight.numel() * packing.dtype.itemsize)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.to(self.compute).contiguous())


def whole(logits: Tensor, words: Tensor | None, vocab: int) -> Tensor:
    """[N, vocab] of logits [N, draft vocabulary] of these words (None: of all), in float32."""
    if words is None:
        return logits.float()
    return logits.new_full((len(logits), vocab), ABSENT_LOGIT, dtype=torch.float32).index_copy_(
        1, words, logits.float()
    )
