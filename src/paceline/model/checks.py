"""Is every number of a config.json what it may be? What sizes memory, or would change a text in silence, is looked at
before anything is made of it, so that no file can write outside a buffer."""

import math
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import CheckpointError

FILE = "config.json"
SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "max_position_embeddings": 2**26,
}
"""Whole numbers from 1 to this."""
ATTENTION_SIZES = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings")
"""Sizes of models that attend."""
UNBOUNDED_LEN = 1 << 18
"""Tokens of the longest text of a model without attention, whose config names no limit."""
MAX_HEAD_SIZE = 4096
EPS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon")
"""What norms add under the root, by the names that families give it."""
MIXTURES = dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok", "moe_k",
     "decoder_sparse_step", "moe_layer_interval", "n_group", "topk_group"), 4096
) | {"moe_intermediate_size": 2**20, "shared_expert_intermediate_size": 2**20}  # fmt: skip
"""Whole numbers from 1 to this, of mixtures of experts."""
POSITIVE_FIELDS = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")
"""Numbers above 0, where they are given."""
ROPE_POSITIVE = ("rope_theta", "factor", "beta_fast", "beta_slow", "attention_factor", "low_freq_factor",
                 "high_freq_factor", "alpha", "mscale", "mscale_all_dim")  # fmt: skip


PARTLY_ROTATED = frozenset(
    ("phi3", "glm", "glm4", "glm4v_text", "stablelm", "nemotron", "mellum", "minimax_m2", "glm4_moe", "solar_open",
     "bamba", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
)  # fmt: skip
"""Model types of which `partial_rotary_factor` is read: in others some programs rotate a part of each head, others the
whole. Heads of a latent vector and those of Gemma 4 are looked at where they are read."""


def check_raw(raw: Mapping[str, Any]) -> None:
    """The fields that are read before transformers parses the file. Raises CheckpointError."""
    if not isinstance(raw.get("model_type"), str):
        refuse("model_type", raw.get("model_type"), "the name of a family")
    if not raw.get("is_causal", True):
        raise CheckpointError(
            f"{FILE}: is_causal is {raw['is_causal']}, so the model reads texts in both directions (an encoder), which "
            "is not served; use a checkpoint that generates text."
        )
    quantised = raw.get("quantization_config")
    if quantised is not None and not isinstance(quantised, dict):
        refuse("quantization_config", quantised, "an object")
    named = raw.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        refuse("architectures", named, "a list of names")
    for key in ("rope_parameters", "rope_scaling"):
        params = raw.get(key)
        if isinstance(params, dict):
            for name in ("original_max_position_embeddings", "factor"):
                positive(name, params.get(name))  # transformers divides by them


def check(config: Any, kind: str = "full_attention") -> None:
    """All numbers of a config that transformers parsed; `kind`: of all layers, where it names none. Raises
    CheckpointError naming file and field."""
    attends = attends_somewhere(config)
    for name, most in SIZES.items():
        dense = name != "intermediate_size" or hasattr(config, name)  # some mixtures have no dense part
        if dense and (attends or name not in ATTENTION_SIZES):
            whole(name, getattr(config, name, None), 1, most)
    width = check_heads(config) if attends else 0
    either = getattr(config, "rms_norm_eps", 1) is None and hasattr(config, "layer_norm_eps")  # which says what norms
    for name in EPS:
        if (
            hasattr(config, name)
            and not (either and name == "rms_norm_eps")
            and not 0 <= number(name, getattr(config, name)) < 1
        ):
            refuse(name, getattr(config, name), "in [0, 1)")
    for name in POSITIVE_FIELDS:
        positive(name, getattr(config, name, None))
    for name, most in MIXTURES.items():
        if getattr(config, name, None) is not None and getattr(config, "num_local_experts", 1) != 0:  # 0: no mixture
            whole(name, getattr(config, name), 1, most)
    kinds = getattr(config, "layer_types", None)
    window, unused = (
        getattr(config, "sliding_window", None),
        isinstance(kinds, list) and "sliding_attention" not in kinds,
    )
    if window is not None:
        whole("sliding_window", window, 0 if unused else 1, 2**40)
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != config.num_hidden_layers):
        refuse("layer_types", kinds, f"a list of {config.num_hidden_layers} entries")
    if not hasattr(config, "rope_parameters"):
        return  # a model that rotates nothing
    params = config.rope_parameters
    if not isinstance(params, dict):
        refuse("rope_parameters", params, "an object")
    check_kinds(config, params, kind)
    for it in scalings(params):
        check_rope(it, width)


def check_kinds(config: Any, params: Mapping[str, Any], kind: str) -> None:
    """Raise CheckpointError where rotations for kinds of layers and what lies next to them say different things."""
    each = {key: it for key, it in params.items() if isinstance(it, dict)}
    flat = {"rope_type": params.get("type", "default")} | {
        key: params[key] for key in ("rope_type", *ROPE_POSITIVE) if params.get(key) is not None
    }
    known = getattr(config, "_rope_type_labels", None) or getattr(config, "layer_types", None) or ()
    if each and not any(key in known for key in each):  # transformers reads what lies next to them
        own = each.get(kind, flat)
        if {"rope_type": own.get("type", "default"), **own} != flat:
            raise CheckpointError(
                f"{FILE}: rope_parameters has {kind}, but a {config.model_type} model has no kinds of layers; put its "
                "keys in its place if all layers rotate so."
            )
        return
    outside = [
        key for key, it in flat.items()
        if each and (key, it) != ("rope_type", "default") and all(own.get(key) != it for own in each.values())
    ]  # fmt: skip
    if "layer_rope_theta" in vars(config) and "rope_theta" in outside:
        outside.remove("rope_theta")  # the base of the layers that name none
    if outside:
        raise CheckpointError(
            f"{FILE}: rope_parameters has {', '.join(outside)} next to what it says of each kind of layers, where it "
            "is not read; put it into the kinds that it is meant for."
        )


def check_rotated(config: Any) -> None:
    """Raise CheckpointError where a part of each head would be rotated, but not by all programs."""
    for it in scalings(getattr(config, "rope_parameters", None) or {}):
        part = None if it.get("rope_type") == "proportional" else it.get("partial_rotary_factor")  # else all read it
        if part not in (None, 1) and config.model_type not in PARTLY_ROTATED:
            raise CheckpointError(
                f"{FILE}: partial_rotary_factor is {part}, which some programs use in a {config.model_type} model and "
                "others do not, so it is not served; take it out if whole heads are rotated."
            )


def attends_somewhere(config: Any) -> bool:
    """Does any layer of a config that transformers parsed attend?"""
    kinds = getattr(config, "layer_types", None)
    return not isinstance(kinds, list) or any(kind != "linear_attention" for kind in kinds)


def check_heads(config: Any) -> int:
    """Numbers of a head of attention."""
    heads, groups, hidden = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    if heads % groups:
        refuse("num_key_value_heads", groups, f"a divisor of num_attention_heads ({heads})")
    given: int | None = getattr(config, "head_dim", None)
    if given is None and hidden % heads:
        refuse("num_attention_heads", heads, f"a divisor of hidden_size ({hidden}), or head_dim must be given")
    width = hidden // heads if given is None else given
    whole("head_dim", width, 1, MAX_HEAD_SIZE)
    return width


def check_rope(params: Mapping[str, Any], width: int) -> None:
    """The parameters of one rotation of heads of `width` numbers."""
    kind = params.get("rope_type", "default")
    if not isinstance(kind, str):
        refuse("rope_type", kind, "the name of a scaling")
    for name in ROPE_POSITIVE:
        positive(name, params.get(name))
    part = params.get("partial_rotary_factor")
    if part is not None and not 0 < number("partial_rotary_factor", part) <= 1:
        refuse("partial_rotary_factor", part, "in (0, 1]")
    rotated = int(width * (1.0 if part is None else part))
    if rotated < 2 or rotated % 2:
        refuse("partial_rotary_factor", part, f"such that an even number of a head's {width} numbers is rotated")
    if kind == "yarn" and params.get("rope_theta", 2.0) <= 1:
        refuse("rope_theta", params["rope_theta"], "above 1 for yarn")
    low, high = params.get("low_freq_factor"), params.get("high_freq_factor")
    if low is not None and high is not None and low > high:
        refuse("low_freq_factor", low, f"at most high_freq_factor ({high})")
    if params.get("original_max_position_embeddings") is not None:
        least = 2 if kind == "longrope" else 1
        most = SIZES["max_position_embeddings"]
        whole("original_max_position_embeddings", params["original_max_position_embeddings"], least, most)
    for name in ("short_factor", "long_factor"):
        if params.get(name) is not None:
            check_factors(name, params[name], rotated // 2)


def check_factors(name: str, value: Any, count: int) -> None:
    if not isinstance(value, list) or len(value) != count:
        refuse(name, value, f"a list of {count} numbers")
    for each in value:
        positive(name, each)


def whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        refuse(name, value, f"a whole number from {least} to {most}")
    return int(value)


def number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        refuse(name, value, "a finite number")
    return float(value)


def positive(name: str, value: Any) -> None:
    """A number above 0, or not given."""
    if value is not None and number(name, value) <= 0:
        refuse(name, value, "above 0")


def refuse(name: str, value: Any, want: str) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise CheckpointError(f"{FILE}: {name} is {shown}, but it must be {want}; correct the file or download it again.")


def longest(config: Any) -> int:
    """The longest context that a config describes: what it was trained for, or that stretched by its rope scaling."""
    trained = int(getattr(config, "max_position_embeddings", UNBOUNDED_LEN))
    params = getattr(config, "rope_parameters", None) or {}
    return max(trained, *(stretched(it, trained) for it in scalings(params)))


def scalings(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [it for it in params.values() if isinstance(it, dict)] or [params]


def stretched(params: Mapping[str, Any], trained: int) -> int:
    if params.get("rope_type", "default") not in ("linear", "yarn", "longrope"):
        return trained
    original = params.get("original_max_position_embeddings") or trained
    return int(original * (params.get("factor") or 1.0))
