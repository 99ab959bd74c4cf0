"""A head's decoder layer over whole texts, unrolled as it will draft: training-time test (EAGLE-3, Li et al. 2025,
arXiv 2503.01840, section 3.2).

At step s the row with number u stands for the node that is s tokens below row u of the text: it reads the token s
places on and what its own row put out at step s - 1. It sees the text up to u, as step 0 computed it, and its own
ancestors, which are its rows of the steps before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.draft.layers import RMSNorm
from paceline.model.rotary import Rotary


class UnrolledAttention(nn.Module):
    """q, k, v read `entry` numbers; names as in checkpoints."""

    def __init__(self, entry: int, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(entry, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(entry, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(entry, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def split(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, R, head_dim] of x [B, R, entry]; keys and values once a query head."""
        shape, group = (*x.shape[:2], -1, self.head_dim), self.heads // self.kv_heads
        q, k, v = (each(x).view(shape).transpose(1, 2).float() for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotated(q, turn), rotated(k, turn)
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


class Mlp(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return made


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, heads, R, head_dim] by cos and signed sin [R, 1, head_dim]."""
    cos, sin = (each.transpose(0, 1) for each in turn)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def turns(rotary: Rotary, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Rotations of the positions from `start` on."""
    return rotary(torch.arange(start, start + count), start + count)


def look(q: Tensor, text: tuple[Tensor, Tensor], above: Sequence[tuple[Tensor, Tensor]], scale: float,
         seen: Tensor | None = None) -> Tensor:  # fmt: skip
    """Attention of rows 0 .. R - 1: q [B, heads, R, D] over the text's keys and values, causally (or as `seen` [R, S]
    says), and over each row's own ancestors, `above`, of one key each. [B, R, heads * D]."""
    rows = q.shape[2]
    keys, values = text
    if seen is None:
        keys, values = keys[:, :, :rows], values[:, :, :rows]
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    scores = (q @ keys.mT * scale).masked_fill(~seen, float("-inf"))
    own = [(q * k[:, :, :rows]).sum(-1, keepdim=True) * scale for k, _ in above]
    shares = torch.cat([scores, *own], -1).softmax(-1)
    out = shares[..., : keys.shape[2]] @ values
    for j, (_, v) in enumerate(above):
        at = keys.shape[2] + j
        out = out + shares[..., at : at + 1] * v[:, :, :rows]
    return out.transpose(1, 2).flatten(2)


__all__ = ["Mlp", "RMSNorm", "UnrolledAttention", "look", "rotated", "turns"]
