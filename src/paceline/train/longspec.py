"""Training of `longspec` (draft/longspec.py). At every row of a text each depth of a round is trained at once: depth d
sees the target's cache up to d + 1 rows before it, as when it drafts (the paper's flash noisy training, section 3.3,
draws one such shift for each batch).

Anchor-offset positions (section 3.2): the first rows keep their positions, the others are moved on by a random offset
in half of the batches, so that large positions are trained on short texts. The target's own states are those of the
places where the text lies; the rotations of its keys are moved with it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import InputError
from paceline.draft.longspec import LONGSPEC, LongSpecConfig
from paceline.draft.native_layers import layer_spec
from paceline.model.rotary import Rotary
from paceline.train import TRAINERS, Trains
from paceline.train.features import FeatureBatch
from paceline.train.heads import Steps, UnrolledMethod, write_head
from paceline.train.method import typed
from paceline.train.target import TrainingTarget
from paceline.train.through import Through, normed
from paceline.train.unroll import Mlp, RMSNorm, UnrolledAttention, look, rotated

ANCHOR = 4
"""First rows of a text, which keep their positions when the others are moved."""


class Cross(nn.Module):
    def __init__(self, c: LongSpecConfig) -> None:
        super().__init__()
        self.q_proj = nn.Linear(c.width, c.heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.width, bias=False)


class LongSpecModule(nn.Module):
    def __init__(self, c: LongSpecConfig) -> None:
        super().__init__()
        self.config = c
        self.self_attn, self.cross_attn = UnrolledAttention(c.width, c.width, c.heads, c.kv_heads, c.head_dim), Cross(c)
        self.mlp = Mlp(c.width, c.ffn)
        self.input_layernorm, self.cross_layernorm = RMSNorm(c.width, c.eps), RMSNorm(c.width, c.eps)
        self.post_attention_layernorm = RMSNorm(c.width, c.eps)
        self.rotary = Rotary(
            layer_spec(LONGSPEC, c).layers[0].attention.rope, torch.device("cpu"), torch.float32, c.max_len + 64
        )

    def unroll(self, embedded: Tensor, position: Tensor, cache: tuple[Tensor, Tensor], depth: int) -> Steps:
        """Outputs at each depth d for texts [B, T, H], rows 1 + d ... T - 2. The rows see the target's `cache` of the
        rows up to d + 1 before them."""
        c, rows = self.config, embedded.shape[1]
        turn = self.rotary(position, int(position.max()) + 1)
        q, k, v = self.self_attn.split(self.input_layernorm(embedded), turn)
        at, scale = torch.arange(rows), c.head_dim**-0.5
        near = (at[None] <= at[:, None]) & (at[:, None] - at[None] < c.window)
        x = embedded + self.self_attn.o_proj(look(q, (k, v), [], scale, near))
        own = self.cross_attn.q_proj(self.cross_layernorm(x)).view(*x.shape[:2], c.heads, c.head_dim)
        own = rotated(own.transpose(1, 2).float(), turn)
        outs: Steps = []
        for d in range(depth):
            if rows - 2 - d < 1:
                break
            some = slice(1 + d, rows - 1)
            seen = at[None] <= at[some, None] - 1 - d
            y = x[:, some] + self.cross_attn.o_proj(look(own[:, :, some], cache, [], scale, seen))
            outs.append(y + self.mlp(self.post_attention_layernorm(y)))
        return outs


@TRAINERS.register("longspec", Trains("a layer that reads the target's own cache, for long texts"))
class TrainLongSpec(UnrolledMethod):
    def __init__(self, target: TrainingTarget, settings: dict[str, Any]) -> None:
        settings, spec = dict(settings), target.spec
        self.goals(settings, "kl", 0.8)
        free: dict[str, Any] = {"depth": 4, "window": 512, "ffn": spec.ffn, "offset": True}
        free |= typed(settings, free, LONGSPEC, ("objective",))
        self.offset = free.pop("offset")
        if free["depth"] < 1 or free["window"] < 1:
            raise InputError("longspec expects depth and window of at least 1.")
        rope = spec.layers[-1].attention.rope
        theta = rope.inverse[1] ** -(spec.head_dim / 2) if len(rope.inverse) > 1 else 10000.0
        self.config = LongSpecConfig(
            width=spec.hidden, vocab=spec.vocab, max_len=spec.max_len, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, eps=spec.norm_eps, theta=float(round(theta)), **free,
        )  # fmt: skip
        self.target, self.through, self.tap = target, Through(target), f"input:{len(spec.layers) - 1}"
        self.taps = (self.tap, "post_norm")
        self.module: LongSpecModule = LongSpecModule(self.config)

    @property
    def depth(self) -> int:
        return self.config.depth

    def positions(self, length: int) -> Tensor:
        """Increasing; the first ANCHOR are their rows' own."""
        position = torch.arange(length)
        room = self.config.max_len - length
        if self.module.training and self.offset and room > 0 and torch.rand(()) < 0.5:
            position[ANCHOR:] += int(torch.randint(room + 1, ()))
        return position

    def unroll(self, batch: FeatureBatch) -> Steps:
        position = self.positions(batch.ids.shape[1])
        with torch.no_grad():
            block, index = self.through.decoder.weights.blocks[-1], len(self.target.spec.layers) - 1
            _, k, v = self.through.split(block, index, normed(block.attention_norm, batch.hidden[self.tap]), position)
        return self.module.unroll(self.target.embed(batch.ids), position, (k, v), self.depth)

    def logits(self, out: Tensor) -> Tensor:
        return self.target.head(out)

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        weights = {name: part.detach() for name, part in self.module.named_parameters()}
        config = {
            "architectures": ["LongSpecSpeculator"], "speculators_model_type": LONGSPEC, "speculators_version": "0.1.0",
            **self.config.written(),
        }  # fmt: skip
        write_head(path, weights, config, self, facts)
