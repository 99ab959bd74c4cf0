"""`eagle3`: a decoder of one layer on features of three of the target's layers (EAGLE-3, Li et al. 2025, arXiv
2503.01840).

    f = W [g_low; g_mid; g_high]                          the target's hidden states, fused once per row
    h = f + Attention([norm e(x); norm f]);  h = h + FFN(norm h)
    logits = W_head norm h                                over the draft vocabulary; the children read h in place of f

EAGLE-3.1 puts norms around W, and its children read norm h (`EagleShape.norm_output`); further layers, biases, norms of
queries and keys, windows and an embedding of the head's own are computed by PyTorch, a layer without them natively.

A head that was trained to draft all depths at once (P-EAGLE; `EagleShape.mask`) reads a masked token and a feature of
its own in each drafted row, in a pass for each depth.

EAGLE-1 (Li et al. 2024, arXiv 2401.15077) is a switch, `fused: false`: f is the target's state behind its last norm,
the layer reads W [e(x); f] without a norm, and what it puts out is a state for the target's own head.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.core.component import Ability, Embeds
from paceline.core.errors import CheckpointError
from paceline.core.forest import Law
from paceline.core.registry import Offers
from paceline.core.rows import Out, Rows
from paceline.draft import DRAFTERS
from paceline.draft.eagle_shape import (
    EAGLE3,
    MASK_FEATURE,
    TAP_LAYERS_KEY,
    EagleShape,
    check_weights,
    draft_ids,
    in_order,
    is_eagle,
    random_weights,
    verifier,
)
from paceline.draft.feature import FeatureDrafter, FeatureHead
from paceline.draft.feature_runs import LayerParts, NativeFeatureLayer
from paceline.draft.grow import HEAD_TREE_NODES
from paceline.draft.head import HEADS, HeadCard, HeadFacts, HeadFiles, need
from paceline.draft.layers import whole
from paceline.draft.native_layers import kv_numbers, layer_spec, native_block, packed
from paceline.model.blocks import FeedForward, SelfAttention
from paceline.model.linear import Linear, Packing, available, plain
from paceline.model.norms import Norm

log = logging.getLogger("paceline")
SHARED_EMBEDDING_ERROR = 0.05
"""Largest relative difference of a head's embedding from the target's, which may be rounded, that still is a copy."""
COMPARED_TOKENS = 4096
"""Rows of an embedding that are compared at once."""


@HEADS.register(EAGLE3, HeadCard("a decoder layer on the target's own features"))
class Eagle(FeatureHead):
    """The component, which drafts within runs. `weights` by the names of `EagleShape.sizes`; `ids` int64 [draft_vocab]:
    the target's ids of the draft vocabulary, None where both vocabularies are one."""

    abilities = frozenset[Ability]({"run"})

    def __init__(
        self, shape: EagleShape, weights: Mapping[str, Tensor], packing: Packing, ids: Tensor | None = None
    ) -> None:
        read = sum(weights[name].numel() for name in shape.sizes() if name in weights)
        spec = layer_spec(EAGLE3, shape, shape.layers, shape.scaling, shape.window)
        natively = packing.native and shape.is_plain and not {*weights} - {*shape.sizes()}
        if packing.native and not natively:
            packing = next(it for it in available(packing.dtype, self.device) if not it.native)
        super().__init__(spec, shape.taps, shape.target_width or shape.width, shape.vocab, read, packing.dtype)
        self.shape, self.compute, self.ids = shape, packing.compute, ids
        self.mine, self.stand_in = weights.get("embed_tokens.weight"), weights.get(MASK_FEATURE)
        self.norms = {
            name: Norm(it.float(), shape.eps) for name, it in weights.items() if it.dim() == 1 and name[-6:] == "weight"
        }
        self.norm = self.norms.get("norm.weight")
        self.feature_norm = self.norms.get("layers.0.hidden_norm.weight")
        if natively:
            self.pack_natively(weights, packing)
            return

        def matrix(*names: str) -> Linear | None:
            found = [weights.get(f"{name}.weight") for name in names]
            parts = [it for it in found if it is not None]
            if not parts:
                return None
            biases = [weights.get(f"{name}.bias", torch.zeros(len(it))) for name, it in zip(names, parts)]
            bias = torch.cat(biases).to(packing.compute) if any(b.any() for b in biases) else None
            return packing.pack(torch.cat(parts).to(packing.dtype).contiguous(), bias)

        self.fc, self.head = matrix("fc"), matrix("lm_head")
        self.blocks: list[tuple[Norm | None, SelfAttention, Norm, FeedForward]] = []
        for index in range(shape.layers):
            at = f"layers.{index}."
            qkv, out, gate_up, down = (
                matrix(*(f"{at}{name}" for name in names))
                for names in (
                    [f"self_attn.{x}_proj" for x in "qkv"], ["self_attn.o_proj"],
                    ["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"],
                )
            )  # fmt: skip
            assert qkv and out and gate_up and down
            mixer = SelfAttention(spec, index, qkv, self.head_norm(weights, at), out)
            norms = (self.norms.get(f"{at}{name}.weight") for name in ("input_layernorm", "post_attention_layernorm"))
            before, behind = norms
            assert behind is not None
            self.blocks.append((before, mixer, behind, FeedForward(spec, gate_up, down)))

    def head_norm(self, weights: Mapping[str, Tensor], at: str) -> Norm | None:
        """Norms of a layer's queries and keys, a row for each head."""
        q, k = (weights.get(f"{at}self_attn.{each}_norm.weight") for each in "qk")
        if q is None or k is None:
            if q is not k:
                raise CheckpointError("The EAGLE head has a norm of queries or of keys alone; restore its weights.")
            return None
        rows = [q.float()] * self.spec.heads + [k.float()] * self.spec.kv_heads
        return Norm(torch.stack(rows), self.shape.eps)

    def pack_natively(self, weights: Mapping[str, Tensor], packing: Packing) -> None:
        shape = self.shape

        def whole_of(*names: str) -> Tensor:
            return torch.cat([weights[f"layers.0.{n}.weight"] for n in names])

        layer = (
            whole_of(*(f"self_attn.{x}_proj" for x in "qkv")), whole_of("self_attn.o_proj"),
            whole_of("mlp.gate_proj", "mlp.up_proj"), whole_of("mlp.down_proj"),
        )  # fmt: skip
        block = native_block(
            self.spec, 0, packing, *layer, None, self.norms["layers.0.post_attention_layernorm.weight"]
        )
        own = weights.get("lm_head.weight")
        norms = self.norms.get("layers.0.input_layernorm.weight"), self.feature_norm, self.norm
        parts = LayerParts(
            block, packed(packing, weights["fc.weight"]), None if own is None else packed(packing, own), *norms
        )
        words = shape.draft_vocab if shape.fused else shape.vocab
        self.native = NativeFeatureLayer(
            replace(self.spec, vocab=words), parts, packing, fused=shape.fused, normed=shape.norm_before_residual,
            words=self.ids,
        )  # fmt: skip
        self.fc = parts.fc
        self.kv_bytes_per_token = self.native.decoder.kv_bytes_per_token + shape.width * packing.dtype.itemsize

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return is_eagle(config)

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        shape = EagleShape.read(config)
        kept = kv_numbers(shape, shape.layers) + shape.width
        width = shape.target_width or shape.width
        return HeadFacts(EAGLE3, width, shape.vocab, shape.depth, kept, shape.taps, verifier(config))

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> "Eagle":
        held = files.tensors()
        weights = {ours: held[name] for name, ours in in_order([*held]).items()}
        shape = EagleShape.read(files.config, files.layers)
        if shape.fused and TAP_LAYERS_KEY not in str(files.config):
            log.warning("%s does not name the hidden states that it reads; %s are taken.", files.path, shape.taps)
        parts = check_weights(shape, weights, files.config)
        return cls(shape, parts, packing, draft_ids(weights, shape))

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> "Eagle":
        shape = EagleShape(width, 2, 1, 4, 8, vocab, vocab - 2, 512, ("post_norm",))
        ids = torch.arange(vocab - 2) + (torch.arange(vocab - 2) % 2).sort().values
        return cls(shape, random_weights(shape, seed), plain(torch.float32, torch.device("cpu")), ids)

    def describe(self) -> str:
        kind = "EAGLE-3" if self.shape.fused else "EAGLE-1"
        where = ", native" if self.native is not None else ""
        return f"{kind}, {self.shape.draft_vocab:,} tokens, {self.kv_bytes_per_token} bytes a row{where}"

    def bind(self, target: Embeds) -> None:
        """An embedding that is a copy of the target's goes."""
        super().bind(target)
        if self.mine is not None and self.copies(target, self.mine):
            self.mine = None

    def copies(self, target: Embeds, own: Tensor) -> bool:
        """Whether an embedding is the target's, but for how that is rounded."""
        if self.shape.target_width:
            return False
        for first in range(0, len(own), COMPARED_TOKENS):
            mine = own[first : first + COMPARED_TOKENS].float()
            theirs = target.embed(torch.arange(first, first + len(mine))).float()
            if float((theirs - mine).norm()) > SHARED_EMBEDDING_ERROR * float(mine.norm()):
                return False
        return True

    def embed(self, token: Tensor) -> Tensor:
        assert self.target is not None
        return self.target.embed(token) if self.mine is None else self.mine.index_select(0, token)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        if not self.shape.fused:
            return hidden[0]
        if self.shape.fc_norm:
            hidden = [self.norms[f"fc_norm.{i}.weight"](part.to(self.compute)) for i, part in enumerate(hidden)]
        whole = torch.cat([part.to(self.compute) for part in hidden], -1)
        if self.shape.norm_before_fc:
            whole = self.norms["input_norm.weight"](whole)
        return whole if self.fc is None else self.fc(whole)

    def drafted(self, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if self.stand_in is None or self.shape.mask is None:
            return token, hidden
        taps = self.stand_in.view(len(self.taps), 1, -1).to(self.compute)
        return torch.full_like(token, self.shape.mask), self.fuse([*taps]).to(hidden.dtype).expand(len(token), -1)

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Out:
        assert self.target is not None and rows.hidden is not None
        if self.native is not None:
            out = self.native.forward(rows)
            return Out(whole(out.logits, self.ids, self.vocab_size), leave=out.leave)
        self.attend.prepare(rows)
        embedded, feature = self.embed(rows.token).to(self.compute), rows.hidden.to(self.compute)
        before = self.blocks[0][0]
        if before is not None and self.feature_norm is not None:
            normed = self.feature_norm(feature)
            entry = torch.cat((before(embedded), normed), -1)
            x = normed if self.shape.norm_before_residual else feature
        else:
            assert self.fc is not None
            entry = x = self.fc(torch.cat((embedded, feature), -1))
        turn = self.rotary(rows.position, max(s.base + s.rows for s in rows.segments) + 1)
        for index, (norm, mixer, behind, ffn) in enumerate(self.blocks):
            x = x + mixer(norm(x) if index and norm is not None else entry, turn, self.attend)
            x = x + ffn(behind(x))
        if self.shape.norm_output and self.norm is not None:
            x = self.norm(x)
        return Out(self.logits(x.index_select(0, rows.want)), leave=x)

    def logits(self, x: Tensor) -> Tensor:
        """[L, vocab] of the target's vocabulary."""
        assert self.target is not None
        if not len(x):
            return torch.empty(0, self.vocab_size)
        if self.norm is not None and not self.shape.norm_output:
            x = self.norm(x)
        if self.head is None:
            return self.target.head(x).float()
        return whole(self.head(x), self.ids, self.vocab_size)


@DRAFTERS.register(
    EAGLE3,
    Offers(
        "a decoder layer on the target's own features", frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}), "tree",
        HEAD_TREE_NODES, needs=frozenset({need(EAGLE3)}), group=EAGLE3, runs="greedy", auto=(EAGLE3,),
    ),
)  # fmt: skip
class Eagle3(FeatureDrafter):
    group = EAGLE3
