"""Shape of an EAGLE head (draft/eagle3.py) from config.json, in the dialects of those who publish them.

    SafeAILab, SpecForge, AQ-MedAI, ModelOpt   flat keys, perhaps `eagle_config`; weights `midlayer.*` or `layers.0.*`
    speculators (RedHatAI)                     `transformer_layer_config`; weights `layers.0.*`; P-EAGLE's, too
    Paceline                                   that of `speculators`

The states that a head reads are named by layer. A list at the top of the config names layers whose *input* is read, one
in `eagle_config` those whose *output* is; a list that cannot be meant so (it names the layer behind the last) names
inputs, too. A key that changes the arithmetic is used or refused; one that is not known is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.draft.head import METHOD_KEY
from paceline.draft.head_sizes import check_sizes
from paceline.draft.released import INERT_KEYS

EAGLE3, PARALLEL_EAGLE = "eagle3", "peagle"
MASK_FEATURE = "mask_hidden"
"""The weight of a P-EAGLE head that stands for the taps of a row that is drafted."""
RELEASED = ("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle", "Eagle3LlamaForCausalLM", "GptOssForCausalLMEagle3",
            "Qwen3ForCausalLMEagle3", "Eagle3DraftModel", "EagleLlamaForCausalLM")  # fmt: skip
"""Architectures that released heads name."""
PLAIN_BODIES = ("llama", "qwen2", "qwen3", "mistral")
"""Families whose layer that of a head may be, where its `transformer_layer_config` names one."""
TAP_LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
USUAL_TAPS = ("input:2", "input:L // 2", "input:L - 3")
"""Taps of a head that does not name them, before its target is known."""
SERVED_VALUES: dict[str, Any] = {
    "hidden_act": "silu", "mlp_hidden_act": "silu", "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1, "eagle_decoder_type": "llama", "rope_interleaved": False,
    "is_causal": True, "logit_scale": 1.0, "logits_scaling": 1.0, "final_logit_softcapping": None,
    "attn_logit_softcapping": None, "quantization_config": None, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0, "has_lm_head": True, "has_lm_head_bias": False, "dual_chunk_attention_config": None,
}  # fmt: skip
"""Keys whose other values would change what a head drafts; none but these is computed."""
USED_KEYS = frozenset((
    METHOD_KEY, "architectures", "transformer_layer_config", "eagle_config", TAP_LAYERS_KEY, "hidden_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "draft_vocab_size",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
    "attention_bias", "qkv_bias", "mlp_bias", "bias", "num_hidden_layers", "norm_before_residual", "norm_before_fc",
    "fc_norm", "norm_output", "target_hidden_size", "use_aux_hidden_state", "use_sliding_window", "sliding_window",
    "layer_types", "fused", "depth", "accuracy", "speculators_config", "training", "tie_word_embeddings",
    "model_type", "max_window_layers", "num_aux_hidden_states", "parallel_drafting", "mask_token_id", "ptd_token_id",
    "para_depths",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class EagleShape:
    """Sizes of a head. `taps`: the states that it reads; `fused`: EAGLE-3, else EAGLE-1; `width` and `vocab` are those
    of the target, but for `target_width`; `draft_vocab`: tokens that its own matrix knows."""

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
    layers: int = 1
    """The first reads an embedding and a feature, each further one the layer before it."""
    fc_norm: bool = False
    """A norm for each tap (EAGLE-3.1)."""
    norm_before_fc: bool = False
    """One norm over all taps (heads of gpt-oss)."""
    norm_output: bool = False
    """The children read norm h, which the output matrix reads, too (EAGLE-3.1)."""
    joins: bool = True
    """A matrix makes the feature from the taps; else the one tap is the feature."""
    target_width: int = 0
    """Numbers in a hidden state of the target; 0: `width`."""
    window: int | None = None
    """Sliding window of its attention in tokens."""
    mask: int | None = None
    """Token that a drafted row reads in place of its own, with `MASK_FEATURE` in place of a feature (P-EAGLE): what is
    guessed at a depth is then the same below all parents."""

    @classmethod
    def read(cls, config: Mapping[str, Any], layers: int | None = None) -> "EagleShape":
        """Shape from config.json. A head that names no taps reads the usual ones of a target with this number of
        `layers`. Raises CheckpointError."""
        layer = config.get("transformer_layer_config", config)
        nested = config.get("eagle_config") or {}
        for key, part in (("transformer_layer_config", layer), ("eagle_config", nested)):
            if not isinstance(part, Mapping):
                raise CheckpointError(f"The config of the head has {key} {part!r:.60}, but an object is expected.")
        check_keys(config, layer, nested)
        both: dict[str, Any] = {**layer, **config, **nested}
        fused = bool(config.get("fused", True))
        try:
            width, heads = int(layer["hidden_size"]), int(layer["num_attention_heads"])
            vocab, theirs = int(layer["vocab_size"]), int(both.get("target_hidden_size") or 0)
            rope = layer.get("rope_parameters") or {}
            joins = bool(both.get("use_aux_hidden_state", True))
            taps = taps_of(config, nested, layers) if fused and joins else ("post_norm",)
            made = cls(
                width, heads, int(layer.get("num_key_value_heads") or heads),
                int(layer.get("head_dim") or width // heads), int(layer["intermediate_size"]),
                vocab, int(both.get("draft_vocab_size") or vocab),
                int(layer.get("max_position_embeddings", 4096)), taps, fused,
                int(config.get("depth") or config.get("para_depths") or 4),
                bool(both.get("norm_before_residual", False)),
                float(layer.get("rms_norm_eps", 1e-6)),
                float(layer.get("rope_theta") or rope.get("rope_theta", 10000.0)), scaling_of(layer, rope),
                int(layer.get("num_hidden_layers") or 1), bool(both.get("fc_norm", False)),
                bool(both.get("norm_before_fc", False)), bool(both.get("norm_output", False)), joins or not fused,
                theirs if theirs != width else 0, window_of(layer), mask_of(both, vocab),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise CheckpointError(
                f"The config of the head is not usable ({error!r}); restore it, or train the head again."
            ) from None
        check_sizes({f.name: getattr(made, f.name) for f in fields(cls)})
        return made

    def written(self) -> dict[str, Any]:
        """As config.json, in the layout of `speculators`."""
        layers = [int(n) if (n := tap.removeprefix("input:")).isdigit() else tap for tap in self.taps]
        switches = {
            name: True for name in ("fc_norm", "norm_before_fc", "norm_output") if getattr(self, name)
        }  # fmt: skip
        return {
            "architectures": ["Eagle3Speculator" if self.mask is None else "PEagleSpeculator"],
            METHOD_KEY: EAGLE3 if self.mask is None else PARALLEL_EAGLE, "speculators_version": "0.1.0",
            "draft_vocab_size": self.draft_vocab, "norm_before_residual": self.norm_before_residual,
            TAP_LAYERS_KEY: layers, "fused": self.fused, "depth": self.depth, **switches,
            **({} if self.joins else {"use_aux_hidden_state": False}),
            **({} if self.mask is None else {"mask_token_id": self.mask}),
            **({"target_hidden_size": self.target_width} if self.target_width else {}),
            "transformer_layer_config": {
                "model_type": "llama", "hidden_size": self.width, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "intermediate_size": self.ffn,
                "vocab_size": self.vocab, "max_position_embeddings": self.max_len, "rms_norm_eps": self.eps,
                "rope_theta": self.theta, "num_hidden_layers": self.layers, "hidden_act": "silu",
                **({"rope_scaling": dict(self.scaling)} if self.scaling else {}),
                **({"use_sliding_window": True, "sliding_window": self.window} if self.window else {}),
            },
        }  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether it is what the native library computes, but for weights beyond `sizes`."""
        norms = self.fc_norm or self.norm_before_fc or self.norm_output
        other = norms or self.target_width or self.window or self.mask is not None
        return self.layers == 1 and self.joins and not other

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight that there must be, by its name in the layout of `speculators`."""
        h, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        theirs = self.target_width or h
        out: dict[str, tuple[int, ...]] = {}
        if not self.fused:
            out["fc.weight"] = (h, 2 * h)
        elif self.joins:
            out["fc.weight"] = (h, len(self.taps) * theirs)
        for index in range(self.layers):
            at, entry = f"layers.{index}.", 2 * h if self.fused and not index else h
            out |= {
                f"{at}self_attn.q_proj.weight": (q, entry),
                f"{at}self_attn.k_proj.weight": (kv, entry),
                f"{at}self_attn.v_proj.weight": (kv, entry),
                f"{at}self_attn.o_proj.weight": (h, q),
                f"{at}post_attention_layernorm.weight": (h,),
                f"{at}mlp.gate_proj.weight": (self.ffn, h),
                f"{at}mlp.up_proj.weight": (self.ffn, h),
                f"{at}mlp.down_proj.weight": (h, self.ffn),
            }
            if self.fused or index:
                out[f"{at}input_layernorm.weight"] = (h,)
        if self.fused:
            out |= {"layers.0.hidden_norm.weight": (h,), "norm.weight": (h,), "lm_head.weight": (self.draft_vocab, h)}
        if self.fc_norm:
            out |= {f"fc_norm.{number}.weight": (theirs,) for number in range(len(self.taps))}
        if self.norm_before_fc:
            out["input_norm.weight"] = (len(self.taps) * theirs,)
        if self.target_width or self.mask is not None:
            out["embed_tokens.weight"] = (self.vocab, h)
        if self.mask is not None:
            out[MASK_FEATURE] = (1, 1, len(self.taps) * theirs)
        return out

    def optional(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the optional weights: an embedding of the head's own, biases, norms of queries and keys."""
        matrices = [it for it in self.sizes().items() if len(it[1]) == 2 and it[0] != "embed_tokens.weight"]
        out = {f"{name[:-6]}bias": size[:1] for name, size in matrices}
        for index in range(self.layers):
            out |= {f"layers.{index}.self_attn.{each}_norm.weight": (self.head_dim,) for each in "qk"}
        return {**out, "embed_tokens.weight": (self.vocab, self.width)}


def taps_of(config: Mapping[str, Any], nested: Mapping[str, Any], layers: int | None) -> tuple[str, ...]:
    """States that the head reads, of a target with this number of layers (None: not known yet)."""
    named = config.get(TAP_LAYERS_KEY)
    if not named and not (named := nested.get(TAP_LAYERS_KEY)):
        return USUAL_TAPS if layers is None else spread(layers)
    if (count := {**nested, **config}.get("num_aux_hidden_states")) not in (None, len(named)):
        raise CheckpointError(
            f"The config of the head has num_aux_hidden_states {count} and names {len(named)} layers."
        )
    outputs = not config.get(TAP_LAYERS_KEY) and all(isinstance(i, int) for i in named)
    if outputs and (layers is None or max(named) < layers):
        named = [i + 1 for i in named]
    return tuple(i if isinstance(i, str) else "pre_norm" if i == layers else f"input:{i}" for i in named)


def scaling_of(layer: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Scaling of the rotation, empty without one."""
    found = dict(layer.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"})
    part = layer.get("partial_rotary_factor", 1.0)
    if part not in (None, 1.0):
        found["partial_rotary_factor"] = part
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default" and found.get("partial_rotary_factor", 1.0) == 1.0:
        return {}
    return {**found, "rope_type": kind}


def mask_of(both: Mapping[str, Any], vocab: int) -> int | None:
    """The token of rows that are drafted at once (P-EAGLE); None for a head that drafts one after the other. Raises
    CheckpointError where it is not named, or is none of the vocabulary's."""
    named = [int(both[key]) for key in ("mask_token_id", "ptd_token_id") if both.get(key) is not None]
    if not named:
        if both.get("parallel_drafting") or both.get(METHOD_KEY) == PARALLEL_EAGLE:
            raise CheckpointError(
                "The head drafts all depths at once, but its config names no mask_token_id; restore it from its source."
            )
        return None
    if both.get("parallel_drafting") is False:
        raise CheckpointError(
            "The config of the head has parallel_drafting false and a masked token; remove one of them."
        )
    if len({*named}) > 1 or not 0 <= named[0] < vocab:
        raise CheckpointError(
            f"The config of the head names the masked tokens {named} of a vocabulary of {vocab}; restore it."
        )
    return named[0]


def window_of(layer: Mapping[str, Any]) -> int | None:
    """Sliding window of every layer. Raises CheckpointError where layers differ."""
    kinds = set(layer.get("layer_types") or ())
    if len(kinds) > 1:
        raise CheckpointError(f"The config of the head has layer_types {sorted(kinds)}; layers of one kind are served.")
    slides = kinds == {"sliding_attention"} or (not kinds and bool(layer.get("use_sliding_window")))
    if slides and not kinds and layer.get("max_window_layers"):
        raise CheckpointError(
            f"The config of the head has a window and max_window_layers {layer['max_window_layers']}; remove one."
        )
    return int(layer["sliding_window"]) if slides and layer.get("sliding_window") else None


def check_keys(*configs: Mapping[str, Any]) -> None:
    """CheckpointError for a head of another arithmetic than is computed, or with a key that nobody knows."""
    if configs[1] is not configs[0] and configs[1].get("model_type", "llama") not in PLAIN_BODIES:
        raise CheckpointError(
            f"The config of the head has layers of the model_type {configs[1]['model_type']!r}; those of "
            f"{', '.join(PLAIN_BODIES)} are served."
        )
    for config in configs:
        for key, value in config.items():
            if key in SERVED_VALUES:
                if value is not None and value != SERVED_VALUES[key]:
                    raise CheckpointError(
                        f"The config of the head has {key} {value!r}; {SERVED_VALUES[key]!r} alone is served."
                    )
            elif key not in USED_KEYS and key not in INERT_KEYS:
                raise CheckpointError(
                    f"The config of the head has the key {key!r}, which Paceline does not know; it may change what the "
                    "head drafts. Remove it from config.json if it does not."
                )


def check_weights(shape: EagleShape, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights that are computed with: biases of zeros are left out. Raises CheckpointError for one that is
    missing, of another shape, or that the method has no place for."""
    sizes, may = shape.sizes(), shape.optional()
    tied = "lm_head.weight" in sizes and "lm_head.weight" not in weights
    if tied and shape.draft_vocab == shape.vocab and not shape.target_width:
        del sizes["lm_head.weight"]
    out: dict[str, Tensor] = {}
    for name, size in sizes.items():
        if name not in weights or tuple(weights[name].shape) != size:
            has = tuple(weights[name].shape) if name in weights else "missing"
            raise CheckpointError(f"Weight {name} of the EAGLE head is {has}, but {size} is expected.")
        out[name] = weights[name]
    for name in sorted({*weights} - {*sizes} - INERT_WEIGHTS):
        part = weights[name]
        if name.endswith(".bias") and not part.any():
            continue
        if name not in may:
            raise CheckpointError(f"The EAGLE head holds {name}, which its method has no place for.")
        if tuple(part.shape) != may[name]:
            raise CheckpointError(f"Weight {name} of the EAGLE head is {tuple(part.shape)}; {may[name]} is expected.")
        out[name] = part
    layer = config.get("transformer_layer_config", config)
    told = (("attention_bias", "self_attn.q_proj.bias"), ("qkv_bias", "self_attn.q_proj.bias"),
            ("mlp_bias", "mlp.up_proj.bias"), ("bias", "fc.bias"))  # fmt: skip
    for key, one in told:
        if layer.get(key) and not any(name.endswith(one) for name in weights):
            raise CheckpointError(f"The config of the head has {key}, but its weights hold no {one}; restore them.")
        if layer.get(key) is False and any(name.endswith(one) for name in out):
            raise CheckpointError(
                f"The config of the head has {key} false, but its weights hold {one}; remove the key."
            )
    return out


INERT_WEIGHTS = frozenset(("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq",
                           "layers.0.self_attn.rotary_emb.inv_freq"))  # fmt: skip
"""Tensors of a head's file that are no weights of its layers; `d2t` is read apart."""


def draft_ids(weights: Mapping[str, Tensor], shape: EagleShape) -> Tensor | None:
    """The target's ids int64 [draft_vocab] of a head's own vocabulary; None where both are one. `d2t` holds what to add
    to an id, or, where `t2d` says so, the target's id itself. Raises CheckpointError."""
    d2t, t2d = weights.get("d2t"), weights.get("t2d")
    inside = None if t2d is None else t2d.bool().nonzero().flatten()
    own = torch.arange(shape.draft_vocab)
    if d2t is None and inside is None:
        if shape.draft_vocab != shape.vocab and shape.fused:
            raise CheckpointError(
                f"The head knows {shape.draft_vocab} of {shape.vocab} tokens and has neither d2t nor t2d to say which; "
                "restore its weights."
            )
        return None
    found = [inside] if d2t is None else [own + d2t.long(), d2t.long()] if len(d2t) == shape.draft_vocab else []
    for ids in found:
        assert ids is not None
        rises = len(ids) == shape.draft_vocab and bool((ids[1:] > ids[:-1]).all())
        if rises and int(ids[0]) >= 0 and int(ids[-1]) < shape.vocab and (inside is None or torch.equal(ids, inside)):
            return ids
    raise CheckpointError(
        f"d2t of the head does not name {shape.draft_vocab} tokens of {shape.vocab} in order, or t2d names others; "
        "restore its weights."
    )


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


def is_eagle(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is of an EAGLE head."""
    named = config.get(METHOD_KEY)
    return named in (EAGLE3, PARALLEL_EAGLE) or (
        named is None and any(it in RELEASED for it in config.get("architectures") or ())
    )


def in_order(names: Sequence[str]) -> dict[str, str]:
    """Names of weights in the layout of `speculators`, by those in the file."""
    out: dict[str, str] = {}
    for name in names:
        ours = name.removeprefix("model.").removeprefix("eagle_module.")
        out[name] = ours.replace("midlayer.", "layers.0.")
    return out
