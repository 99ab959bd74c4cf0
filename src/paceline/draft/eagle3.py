"""`eagle3`: a decoder of one layer on features of three of the target's layers (EAGLE-3, Li et al. 2025, arXiv
2503.01840).

    f = W [g_low; g_mid; g_high]                          the target's hidden states, fused once per row
    h = f + Attention([norm e(x); norm f]);  h = h + FFN(norm h)
    logits = W_head norm h                                over the draft vocabulary; the children read h in place of f

EAGLE-1 (Li et al. 2024, arXiv 2401.15077) is a switch, `fused: false`: f is the target's state behind its last norm,
the layer reads W [e(x); f] without a norm, and what it puts out is a state for the target's own head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.core.forest import Law
from paceline.core.registry import Need, Offers
from paceline.core.rows import Out, Rows
from paceline.draft import DRAFTERS
from paceline.draft.feature import FeatureDrafter, FeatureHead, layer_spec
from paceline.draft.tree import NODES
from paceline.model.blocks import FeedForward, Norm, SelfAttention
from paceline.model.linear import Linear, Packing

NAME = "eagle3"
NEVER = -1e30
"""Logit of a token that the draft vocabulary lacks."""
NEED = Need(NAME, "an EAGLE head (give draft=HEAD_DIR, made by `paceline train eagle3`)")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a head. `taps`: the states that it reads; `fused`: EAGLE-3, else EAGLE-1; `width` and `vocab` are those
    of the target; `draft_vocab`: tokens that its own matrix knows."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    draft_vocab: int
    max_len: int
    taps: tuple[str, ...]
    fused: bool = True
    eps: float = 1e-6
    theta: float = 10000.0

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, by its name in the layout of `speculators`."""
        h, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        entry = 2 * h if self.fused else h
        out: dict[str, tuple[int, ...]] = {
            "fc.weight": (h, len(self.taps) * self.width if self.fused else 2 * h),
            "layers.0.self_attn.q_proj.weight": (q, entry),
            "layers.0.self_attn.k_proj.weight": (kv, entry),
            "layers.0.self_attn.v_proj.weight": (kv, entry),
            "layers.0.self_attn.o_proj.weight": (h, q),
            "layers.0.post_attention_layernorm.weight": (h,),
            "layers.0.mlp.gate_proj.weight": (self.ffn, h),
            "layers.0.mlp.up_proj.weight": (self.ffn, h),
            "layers.0.mlp.down_proj.weight": (h, self.ffn),
        }
        if self.fused:
            out |= {
                "layers.0.input_layernorm.weight": (h,),
                "layers.0.hidden_norm.weight": (h,),
                "norm.weight": (h,),
                "lm_head.weight": (self.draft_vocab, h),
            }
        return out


class Eagle(FeatureHead):
    """The component. `weights` by the names of `Shape.sizes`; `d2t` [draft_vocab]: what to add to a draft id for the
    target's, None where both vocabularies are one."""

    def __init__(
        self, shape: Shape, weights: Mapping[str, Tensor], packing: Packing, d2t: Tensor | None = None
    ) -> None:
        for name, size in shape.sizes().items():
            if name not in weights or tuple(weights[name].shape) != size:
                has = tuple(weights[name].shape) if name in weights else "missing"
                raise CheckpointError(f"Weight {name} of the EAGLE head is {has}, but {size} is expected.")
        read = sum(weights[name].numel() for name in shape.sizes()) * packing.dtype.itemsize
        super().__init__(layer_spec(NAME, shape), shape.taps, shape.width, shape.vocab, read)
        self.shape, self.compute = shape, packing.compute
        self.ids = None if d2t is None else torch.arange(len(d2t)) + d2t

        def linear(*names: str) -> Linear:
            return packing.pack(torch.cat([weights[n] for n in names]).to(packing.dtype).contiguous(), None)

        def norm(name: str) -> Norm | None:
            return Norm(weights[name].float(), shape.eps) if name in shape.sizes() else None

        at = "layers.0."
        self.fc = linear("fc.weight")
        qkv = linear(*(f"{at}self_attn.{x}_proj.weight" for x in "qkv"))
        self.mixer = SelfAttention(self.spec, 0, qkv, None, linear(f"{at}self_attn.o_proj.weight"))
        gate_up = linear(f"{at}mlp.gate_proj.weight", f"{at}mlp.up_proj.weight")
        self.ffn = FeedForward(self.spec, gate_up, linear(f"{at}mlp.down_proj.weight"))
        self.ffn_norm = Norm(weights[f"{at}post_attention_layernorm.weight"].float(), shape.eps)
        self.embedding_norm, self.feature_norm = norm(f"{at}input_layernorm.weight"), norm(f"{at}hidden_norm.weight")
        self.norm = norm("norm.weight")
        self.head = linear("lm_head.weight") if shape.fused else None

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        return self.fc(torch.cat([part.to(self.compute) for part in hidden], -1)) if self.shape.fused else hidden[0]

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Out:
        assert self.target is not None and rows.hidden is not None
        self.attend.prepare(rows)
        embedded, feature = self.target.embed(rows.token).to(self.compute), rows.hidden.to(self.compute)
        if self.embedding_norm is not None and self.feature_norm is not None:
            entry, x = torch.cat((self.embedding_norm(embedded), self.feature_norm(feature)), -1), feature.clone()
        else:
            x = self.fc(torch.cat((embedded, feature), -1))
            entry = x
        turn = self.rotary(rows.position, max(s.base + s.rows for s in rows.segments) + 1)
        x = x + self.mixer(entry, turn, self.attend)
        x = x + self.ffn(self.ffn_norm(x))
        return Out(self.logits(x.index_select(0, rows.want)), leave=x)

    def logits(self, x: Tensor) -> Tensor:
        """[L, vocab] of the target's vocabulary."""
        assert self.target is not None
        if not len(x):
            return torch.empty(0, self.vocab_size)
        if self.head is None or self.norm is None:
            return self.target.head(x).float()
        logits = self.head(self.norm(x)).float()
        if self.ids is None:
            return logits
        return logits.new_full((len(x), self.vocab_size), NEVER).index_copy_(1, self.ids, logits)


@DRAFTERS.register(
    NAME,
    Offers(
        "a decoder layer on the target's own features", frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}), "tree",
        NODES, needs=frozenset({NEED}), group=NAME, auto=(NAME,),
    ),
)  # fmt: skip
class Eagle3(FeatureDrafter):
    group = NAME


def random_weights(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    """What training begins with."""
    stream = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=stream) * size[-1] ** -0.5
        for name, size in shape.sizes().items()
    }


def spread(layers: int) -> tuple[str, ...]:
    """The taps of EAGLE-3 on a target of so many layers: the inputs of a low, a middle and a high one."""
    return tuple(f"input:{i}" for i in dict.fromkeys((min(2, layers - 1), layers // 2, max(0, layers - 3))))


Config = Mapping[str, Any]
