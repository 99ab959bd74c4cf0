"""A target's layers as functions that gradients go through, for what is trained on its input side. The slow twin of a
pass, in float32 and without a cache: of models whose layers are llama's (`passable`)."""

import math
from functools import cached_property

import torch
from torch import Tensor

from paceline.core.errors import RefusalError
from paceline.model.blocks import ACTIVATE, Block, FeedForward, SelfAttention
from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from paceline.model.norms import Norm
from paceline.model.spec import ModelSpec
from paceline.train.target import TrainingTarget
from paceline.train.unroll import look, rotated

Text = list[tuple[Tensor, Tensor]]
"""Keys and values [B, heads, T, D] of each layer, rotated, once for each query head."""


def passable(spec: ModelSpec) -> bool:
    """Whether all layers have RMS norms before attention and before a gated feed-forward part, one after the other,
    each added as it is."""
    odd = spec.whole_norm or spec.layer_norm or spec.parallel or spec.attention_softcap or spec.activation != "silu"
    plain = spec.pre_norms and spec.gated and spec.residual_scale == spec.logit_scale == 1
    return spec.common and not (spec.mixtures or spec.recurrent or spec.gated_attention) and plain and not odd


class Through:
    """`target`'s decoder, frozen. RefusalError where a gradient could not go through its layers."""

    def __init__(self, target: TrainingTarget) -> None:
        if not passable(target.spec):
            raise RefusalError(
                f"{target.name} has layers that nothing can be trained through yet; use a model of the llama, mistral, "
                "qwen2 or qwen3 family, or a method that reads hidden states."
            )
        self.target, self.spec = target, target.spec

    @cached_property
    def decoder(self) -> Decoder:
        return load_model(self.target.path, dtype="float32", fast=False)

    def split(self, block: Block, index: int, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, R, D] of normed rows x [B, R, H] at `position` [R] or [B, R]."""
        spec, mixer = self.spec, block.mixer
        assert isinstance(mixer, SelfAttention)
        shape, group = (*x.shape[:2], spec.heads + 2 * spec.kv_heads, spec.head_dim), spec.heads // spec.kv_heads
        qkv = mixer.qkv(x.flatten(0, 1)).view(shape)
        turned = qkv[:, :, : spec.heads + spec.kv_heads]
        if mixer.head_norm is not None:
            turned = normed(mixer.head_norm, turned)
        rotary = self.decoder.rotaries[self.decoder.rotary_of[index]]
        cos, sin = rotary(position.flatten(), int(position.max()) + 1)
        wide = turned.view(1, -1, *turned.shape[2:]) if position.dim() == 2 else turned
        wide = partly(wide.transpose(1, 2), (cos, sin)).transpose(1, 2).reshape(turned.shape)
        q, k = wide[:, :, : spec.heads].transpose(1, 2), wide[:, :, spec.heads :].transpose(1, 2)
        v = qkv[:, :, spec.heads + spec.kv_heads :].transpose(1, 2)
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def finish(self, block: Block, x: Tensor, seen: Tensor) -> Tensor:
        """x [B, R, H] after a layer whose attention saw `seen` [B, R, heads * D]."""
        assert block.attention is not None
        y = block.attention.out(seen.flatten(0, 1)).view(x.shape)
        x = x + (y if block.attention_post_norm is None else normed(block.attention_post_norm, y))
        assert block.ffn_norm is not None and isinstance(block.ffn, FeedForward)
        gate, up = block.ffn.gate_up(normed(block.ffn_norm, x).flatten(0, 1)).chunk(2, -1)
        y = block.ffn.down(ACTIVATE[self.spec.activation](gate) * up).view(x.shape)
        return x + (y if block.ffn_post_norm is None else normed(block.ffn_post_norm, y))

    @torch.no_grad()
    def text(self, ids: Tensor) -> tuple[Text, Tensor]:
        """Keys and values of each layer for texts [B, T], and the states [B, T, H] after the final norm."""
        out: Text = []
        x = self.decoder.embed(ids.flatten()).view(*ids.shape, -1)
        for index, block in enumerate(self.decoder.weights.blocks):
            q, k, v = self.split(block, index, normed(block.attention_norm, x), torch.arange(ids.shape[1]))
            out.append((k, v))
            x = self.finish(block, x, look(q, (k, v), [], self.spec.attention_scale, self.seen(index, ids.shape[1])))
        return out, normed(self.decoder.weights.norm, x)

    def seen(self, index: int, rows: int) -> Tensor:
        window, at = self.spec.layers[index].attention.window, torch.arange(rows)
        mask = at[None] <= at[:, None]
        return mask if window is None else mask & (at[:, None] - at[None] < window)

    def chains(self, text: Text, cuts: Tensor, rows: Tensor, table: Tensor) -> Tensor:
        """States [C, m, H] behind the final norm of m embeddings `table` [m, H] behind the row `cuts` [C] of the text
        `rows` [C]: each sees the text up to there and the ones before it. Differentiable in `table`."""
        m, count = len(table), len(cuts)
        x = table[None].expand(count, -1, -1)
        position = cuts[:, None] + 1 + torch.arange(m)
        for index, block in enumerate(self.decoder.weights.blocks):
            keys, values = (part[rows] for part in text[index])
            q, k, v = self.split(block, index, normed(block.attention_norm, x), position)
            at = torch.arange(keys.shape[2])
            mask = at[None, None] <= cuts[:, None, None]
            window = self.spec.layers[index].attention.window
            if window is not None:
                mask = mask & (position[:, :, None] - at < window)
            own = torch.ones(m, m, dtype=torch.bool).tril()
            scores = torch.cat(
                (
                    (q @ keys.mT * self.spec.attention_scale).masked_fill(~mask[:, None], -math.inf),
                    (q @ k.mT * self.spec.attention_scale).masked_fill(~own, -math.inf),
                ),
                -1,
            )
            shares = scores.softmax(-1)
            seen = shares[..., : keys.shape[2]] @ values + shares[..., keys.shape[2] :] @ v
            x = self.finish(block, x, seen.transpose(1, 2).flatten(2))
        return normed(self.decoder.weights.norm, x)


def normed(norm: Norm | None, x: Tensor) -> Tensor:
    """As `Norm`, without a step in place."""
    if norm is None:
        return x
    return x * norm.weight / (x.square().sum(-1, keepdim=True) + norm.floor**2).sqrt()


def partly(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first dimensions of x [B, heads, R, D], as many as cos has."""
    width = turn[0].shape[-1]
    return torch.cat((rotated(x[..., :width], turn), x[..., width:]), -1)
