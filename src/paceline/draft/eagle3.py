"""`eagle3`: a decoder of one layer on features of three of the target's layers (EAGLE-3, Li et al. 2025, arXiv
2503.01840).

    f = W [g_low; g_mid; g_high]                          the target's hidden states, fused once per row
    h = f + Attention([norm e(x); norm f]);  h = h + FFN(norm h)
    logits = W_head norm h                                over the draft vocabulary; the children read h in place of f

EAGLE-1 (Li et al. 2024, arXiv 2401.15077) is a switch, `fused: false`: f is the target's state behind its last norm,
the layer reads W [e(x); f] without a norm, and what it puts out is a state for the target's own head.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paceline.core.component import Ability
from paceline.core.errors import CheckpointError
from paceline.core.forest import Law
from paceline.core.registry import Offers
from paceline.core.rows import Out, Rows
from paceline.draft import DRAFTERS
from paceline.draft.feature import FeatureDrafter, FeatureHead
from paceline.draft.feature_runs import LayerParts, NativeFeatureLayer
from paceline.draft.grow import HEAD_TREE_NODES
from paceline.draft.head import HEADS, METHOD_KEY, HeadCard, HeadFacts, HeadFiles, need
from paceline.draft.layers import whole
from paceline.draft.native_layers import kv_numbers, layer_spec, native_block, packed
from paceline.model.blocks import FeedForward, Norm, SelfAttention
from paceline.model.linear import Linear, Packing, plain

log = logging.getLogger("paceline")
EAGLE3 = "eagle3"
RELEASED = "LlamaForCausalLMEagle3"
"""The architecture that released EAGLE-3 heads name; their layer is `midlayer` where `speculators` has `layers.0`."""
TAP_LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
USUAL_TAPS = ("input:2", "input:L // 2", "input:L - 3")
"""Taps of a head that does not name them, before its target is known."""
VARIANTS: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "norm_before_fc": False,
                            "norm_output": False, "use_sliding_window": False}  # fmt: skip
"""Keys of a head's layer whose other values would change what it drafts; none but these is computed."""
BESIDE_WEIGHTS = frozenset(("d2t", "t2d", "embed_tokens.weight"))
"""Tensors of a head's file that are no weights of its layer; the embedding is the target's."""


@dataclass(frozen=True, slots=True)
class EagleShape:
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
    depth: int = 4
    """Tokens below the root that it was trained to draft."""
    norm_before_residual: bool = False
    """The stream begins with norm f in place of f."""
    eps: float = 1e-6
    theta: float = 10000.0
    scaling: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Scaling of the rotation, as `rope_scaling` in a config; empty without one."""

    @classmethod
    def read(cls, config: Mapping[str, Any], layers: int | None = None) -> "EagleShape":
        """Shape from config.json, in the layout of `speculators` or that of released heads. A head that names no
        taps reads the usual ones of a target with this number of `layers`. Raises CheckpointError."""
        layer = config.get("transformer_layer_config", config)
        fused = bool(config.get("fused", True))
        refuse_variants(config, layer)
        try:
            width, heads = int(layer["hidden_size"]), int(layer["num_attention_heads"])
            vocab = int(layer["vocab_size"])
            rope = layer.get("rope_parameters") or {}
            named = config.get(TAP_LAYERS_KEY) or (config.get("eagle_config") or {}).get(TAP_LAYERS_KEY)
            usual = ("post_norm",) if not fused else USUAL_TAPS if layers is None else spread(layers)
            taps = tuple(i if isinstance(i, str) else f"input:{i}" for i in named or usual)
            scaling = layer.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"}
            kind = scaling.get("rope_type", scaling.get("type", "default"))
            return cls(
                width, heads, int(layer.get("num_key_value_heads", heads)),
                int(layer.get("head_dim") or width // heads), int(layer["intermediate_size"]),
                vocab, int(config.get("draft_vocab_size") or vocab),
                int(layer.get("max_position_embeddings", 4096)), taps, fused,
                int(config.get("depth", 4)), bool(config.get("norm_before_residual", False)),
                float(layer.get("rms_norm_eps", 1e-6)), float(layer.get("rope_theta", rope.get("rope_theta", 10000.0))),
                {} if kind == "default" else {**scaling, "rope_type": kind},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The config of the head is not usable ({error!r}); restore it, or train the head again."
            ) from None

    def written(self) -> dict[str, Any]:
        """As config.json, in the layout of `speculators`."""
        layers = [int(n) if (n := tap.removeprefix("input:")).isdigit() else tap for tap in self.taps]
        return {
            "architectures": ["Eagle3Speculator"], METHOD_KEY: EAGLE3, "speculators_version": "0.1.0",
            "draft_vocab_size": self.draft_vocab, "norm_before_residual": self.norm_before_residual,
            TAP_LAYERS_KEY: layers, "fused": self.fused, "depth": self.depth,
            "transformer_layer_config": {
                "model_type": "llama", "hidden_size": self.width, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "intermediate_size": self.ffn,
                "vocab_size": self.vocab, "max_position_embeddings": self.max_len, "rms_norm_eps": self.eps,
                "rope_theta": self.theta, "num_hidden_layers": 1, "hidden_act": "silu",
                **({"rope_scaling": dict(self.scaling)} if self.scaling else {}),
            },
        }  # fmt: skip

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


@HEADS.register(EAGLE3, HeadCard("a decoder layer on the target's own features"))
class Eagle(FeatureHead):
    """The component, which drafts within runs. `weights` by the names of `EagleShape.sizes`; `d2t` [draft_vocab]: what
    to add to a draft id for the target's, None where both vocabularies are one."""

    abilities = frozenset[Ability]({"run"})

    def __init__(
        self, shape: EagleShape, weights: Mapping[str, Tensor], packing: Packing, d2t: Tensor | None = None
    ) -> None:
        for name, size in shape.sizes().items():
            if name not in weights or tuple(weights[name].shape) != size:
                has = tuple(weights[name].shape) if name in weights else "missing"
                raise CheckpointError(f"Weight {name} of the EAGLE head is {has}, but {size} is expected.")
        for name in sorted({*weights} - {*shape.sizes()} - BESIDE_WEIGHTS):
            if not name.endswith(".bias") or bool(weights[name].any()):
                raise CheckpointError(f"The EAGLE head holds {name}, which its method has no place for.")
        read = sum(weights[name].numel() for name in shape.sizes())
        super().__init__(
            layer_spec(EAGLE3, shape, scaling=shape.scaling), shape.taps, shape.width, shape.vocab, read, packing.dtype
        )
        self.shape, self.compute = shape, packing.compute
        self.ids = None if d2t is None else torch.arange(len(d2t)) + d2t

        def whole_of(*names: str) -> Tensor:
            return torch.cat([weights[f"layers.0.{n}.weight"] for n in names])

        def norm(name: str) -> Norm | None:
            return Norm(weights[name].float(), shape.eps) if name in shape.sizes() else None

        at = "layers.0."
        self.ffn_norm = Norm(weights[f"{at}post_attention_layernorm.weight"].float(), shape.eps)
        self.embedding_norm, self.feature_norm = norm(f"{at}input_layernorm.weight"), norm(f"{at}hidden_norm.weight")
        self.norm = norm("norm.weight")
        layer = (
            whole_of(*(f"self_attn.{x}_proj" for x in "qkv")), whole_of("self_attn.o_proj"),
            whole_of("mlp.gate_proj", "mlp.up_proj"), whole_of("mlp.down_proj"),
        )  # fmt: skip
        fc, own = weights["fc.weight"], weights["lm_head.weight"] if shape.fused else None
        if packing.native:
            block = native_block(self.spec, 0, packing, *layer, None, self.ffn_norm)
            norms = self.embedding_norm, self.feature_norm, self.norm
            parts = LayerParts(block, packed(packing, fc), None if own is None else packed(packing, own), *norms)
            words = shape.draft_vocab if shape.fused else shape.vocab
            self.native = NativeFeatureLayer(
                replace(self.spec, vocab=words), parts, packing, fused=shape.fused, normed=shape.norm_before_residual,
                words=self.ids,
            )  # fmt: skip
            self.fc: Linear = parts.fc
            self.kv_bytes_per_token = self.native.decoder.kv_bytes_per_token + shape.width * packing.dtype.itemsize
            return
        matrices: list[Any] = [
            None if it is None else packing.pack(it.to(packing.dtype).contiguous(), None) for it in (fc, *layer, own)
        ]
        self.fc, qkv, out, gate_up, down, self.head = matrices
        self.mixer = SelfAttention(self.spec, 0, qkv, None, out)
        self.ffn = FeedForward(self.spec, gate_up, down)

    @classmethod
    def claims(cls, config: Mapping[str, Any]) -> bool:
        return config.get(METHOD_KEY) == EAGLE3 or RELEASED in (config.get("architectures") or ())

    @classmethod
    def facts(cls, config: Mapping[str, Any]) -> HeadFacts:
        shape = EagleShape.read(config)
        kept = kv_numbers(shape) + shape.width
        return HeadFacts(EAGLE3, shape.width, shape.vocab, shape.depth, kept, shape.taps, verifier(config))

    @classmethod
    def load(cls, files: HeadFiles, packing: Packing) -> "Eagle":
        weights = {name.replace("midlayer.", "layers.0."): part for name, part in files.tensors().items()}
        shape = EagleShape.read(files.config, files.layers)
        if shape.fused and TAP_LAYERS_KEY not in str(files.config):
            log.warning("%s does not name the hidden states that it reads; %s are taken.", files.path, shape.taps)
        return cls(shape, weights, packing, weights.get("d2t"))

    @classmethod
    def sketch(cls, width: int, vocab: int, seed: int) -> "Eagle":
        shape = EagleShape(width, 2, 1, 4, 8, vocab, vocab - 2, 512, ("post_norm",))
        d2t = (torch.arange(vocab - 2) % 2).sort().values
        return cls(shape, random_weights(shape, seed), plain(torch.float32, torch.device("cpu")), d2t)

    def describe(self) -> str:
        kind = "EAGLE-3" if self.shape.fused else "EAGLE-1"
        where = ", native" if self.native is not None else ""
        return f"{kind}, {self.shape.draft_vocab:,} tokens, {self.kv_bytes_per_token} bytes a row{where}"

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        return self.fc(torch.cat([part.to(self.compute) for part in hidden], -1)) if self.shape.fused else hidden[0]

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Out:
        assert self.target is not None and rows.hidden is not None
        if self.native is not None:
            out = self.native.forward(rows)
            return Out(whole(out.logits, self.ids, self.vocab_size), leave=out.leave)
        self.attend.prepare(rows)
        embedded, feature = self.target.embed(rows.token).to(self.compute), rows.hidden.to(self.compute)
        if self.embedding_norm is not None and self.feature_norm is not None:
            normed = self.feature_norm(feature)
            entry, x = torch.cat((self.embedding_norm(embedded), normed), -1), feature
            x = normed if self.shape.norm_before_residual else feature
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
        return whole(self.head(self.norm(x)), self.ids, self.vocab_size)


@DRAFTERS.register(
    EAGLE3,
    Offers(
        "a decoder layer on the target's own features", frozenset({Law.SHARED_NOISE, Law.WITHOUT_REPLACEMENT}), "tree",
        HEAD_TREE_NODES, needs=frozenset({need(EAGLE3)}), group=EAGLE3, runs="greedy", auto=(EAGLE3,),
    ),
)  # fmt: skip
class Eagle3(FeatureDrafter):
    group = EAGLE3


def refuse_variants(config: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """CheckpointError for a head of another arithmetic than this one's."""
    for key, served in VARIANTS.items():
        for of in (config, layer):
            if (value := of.get(key)) is not None and value != served:
                raise CheckpointError(f"The config of the head has {key} {value!r}; {served!r} alone is served.")


def verifier(config: Mapping[str, Any]) -> str:
    """The target that a head was made for, as its maker wrote it."""
    named: Any = config.get("speculators_config", {}).get("verifier", {}).get("name_or_path", "")
    return str(named or "")


def random_weights(shape: EagleShape, seed: int = 0) -> dict[str, Tensor]:
    """What training begins with."""
    stream = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=stream) * size[-1] ** -0.5
        for name, size in shape.sizes().items()
    }


def spread(layers: int) -> tuple[str, ...]:
    """Taps of EAGLE-3 on a target with `layers` layers: the inputs of a low, a middle and a high one."""
    return tuple(f"input:{i}" for i in dict.fromkeys((min(2, layers - 1), layers // 2, max(0, layers - 3))))
