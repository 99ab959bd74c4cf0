"""Gemma 4 in GGUF: layers of two kinds of heads, of which the last may read the keys and values of others."""

from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.model.gguf.architectures import Arch
from paceline.model.gguf.header import Header
from paceline.model.gguf.peculiar import sliding_layers, vocabulary_of
from paceline.model.gguf.reader import ConfigReader, whole_or_none

WHOLE_VARIED = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.sliding_window": "sliding_window",
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
}
"""Numbers that every such file must have, and what a config calls them."""
SAME_VARIED = {
    "attention.value_length": "global_head_dim",
    "attention.value_length_swa": "head_dim",
    "rope.dimension_count": "global_head_dim",
    "rope.dimension_count_swa": "head_dim",
}
"""Numbers that others have already."""
PER_LAYER, TOKEN_TABLE = "embedding_length_per_layer_input", "per_layer_token_embd.weight"
STILL = 1e29
"""A factor of `rope_freqs.weight` from which on a pair of numbers is not turned at all."""


def varied_config(header: Header, arch: Arch, read: ConfigReader) -> dict[str, Any]:
    """The fields of config.json. Raises CheckpointError naming file and key."""
    config: dict[str, Any] = {name: read.whole(key) for key, name in WHOLE_VARIED.items()}
    layers = config["num_hidden_layers"]
    for key, name in SAME_VARIED.items():
        if read.whole(key, config[name]) != config[name]:
            raise read.wrong(key, f"is not {config[name]}, the length of a key, which is not served")
    kinds = sliding_layers(read, config).get("layer_types")
    if kinds is None:
        raise read.wrong("attention.sliding_window_pattern", "is missing")
    if kinds[-1] != "full_attention":
        raise read.wrong("attention.sliding_window_pattern", "lets the last layer slide, which is not served")
    if "rope_freqs.weight" not in header.tensors:
        raise CheckpointError(f"tensor rope_freqs.weight is missing from {header.path}; convert the model again.")
    shared, wide = whole_or_none(read, "attention.shared_kv_layers"), whole_or_none(read, PER_LAYER)
    if shared >= layers:
        raise read.wrong("attention.shared_kv_layers", f"is {shared}, which leaves no layer with keys of its own")
    same = [f"blk.{at}.attn_v.weight" not in header.tensors for at in range(layers - shared) if kinds[at][0] == "f"]
    if len(set(same)) > 1:
        raise CheckpointError(f"{header.path} has values of their own in some layers alone; download it again.")
    config |= {
        **vocabulary_of(header),
        "model_type": arch.model_type,
        "layer_types": kinds,
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": bool(same and same[0]),
        "hidden_size_per_layer_input": wide,
        "vocab_size_per_layer_input": rows_of(header) if wide else 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": read.number("final_logit_softcapping", 0.0) or None,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": base(read, "rope.freq_base", 1e6)},
            "sliding_attention": {"rope_type": "default", "rope_theta": base(read, "rope.freq_base_swa", 1e4)},
        },
        **widths_of(read, layers, shared),
        **experts_of(read),
    }
    heads, kv = config["num_attention_heads"], kinds_of_keys(read, kinds, config["num_attention_heads"])
    if any(heads % it for it in kv):
        raise read.wrong("attention.head_count_kv", f"is {kv}, which do not divide {heads} heads")
    given = {at: {"head_dim": config["global_head_dim"], "num_key_value_heads": kv[1]}
             for at, kind in enumerate(kinds) if kind == "full_attention"}  # fmt: skip
    read.refuse_unread()
    return {**config, "num_key_value_heads": kv[0], "per_layer_config": given}


def rows_of(header: Header) -> int:
    """Rows of the table of what layers have of a token's own."""
    table = header.tensors.get(TOKEN_TABLE)
    if table is None or len(table.shape) != 2:
        raise CheckpointError(f"{header.path} has no matrix {TOKEN_TABLE}; download it again.")
    return table.shape[0]


def base(read: ConfigReader, key: str, default: float) -> float:
    """The base of a rotation."""
    if (found := read.number(key, default)) <= 1:
        raise read.wrong(key, f"is {found}, but must be above 1")
    return found


def each(read: ConfigReader, key: str, layers: int, default: int | None = None) -> list[int]:
    """A number above 0 for each layer, of a key that may hold one for all."""
    value = read.raw(key, many=True)
    if not isinstance(value, np.ndarray):
        return [read.whole(key, default)] * layers
    found: list[int] = value.tolist()
    if len(found) != layers or not all(type(it) is int and it > 0 for it in found):
        raise read.wrong(key, f"is {str(value)[:40]}, but must be a number above 0 for each of the {layers} layers")
    return found


def kinds_of_keys(read: ConfigReader, kinds: list[str], heads: int) -> tuple[int, int]:
    """Heads of keys of the layers that slide, and of the others."""
    key = "attention.head_count_kv"
    found = dict[str, set[int]]()
    for kind, count in zip(kinds, each(read, key, len(kinds), heads)):
        found.setdefault(kind, set()).add(count)
    if any(len(some) > 1 for some in found.values()):
        raise read.wrong(key, "differs among layers of one kind, which is not served")
    full = found["full_attention"].pop()
    return found.get("sliding_attention", {full}).pop(), full


def widths_of(read: ConfigReader, layers: int, shared: int) -> dict[str, Any]:
    """Inner numbers of dense parts: those of layers without keys of their own may be twice as many."""
    key = "feed_forward_length"
    found = each(read, key, layers)
    own, other = {*found[: layers - shared]}, {*found[layers - shared :]}
    if len(own) != 1 or len(other) > 1 or not other <= {min(own), 2 * min(own)}:
        raise read.wrong(key, "differs from layer to layer in a way that is not served")
    return {"intermediate_size": min(own), "use_double_wide_mlp": bool(other) and other != own}


def experts_of(read: ConfigReader) -> dict[str, Any]:
    """The fields of the mixtures next to dense parts."""
    width = "expert_feed_forward_length"
    if not whole_or_none(read, "expert_count"):
        if whole_or_none(read, width):
            raise read.wrong(width, "is there, but the model has no experts")
        return {"enable_moe_block": False}
    if (score := read.raw("expert_gating_func")) not in (None, 0, 1):
        raise read.wrong("expert_gating_func", f"is {str(score)[:20]}, a router that is not served here; 1 is")
    return {
        "enable_moe_block": True,
        "num_experts": read.whole("expert_count"),
        "top_k_experts": read.whole("expert_used_count"),
        "moe_intermediate_size": read.whole(width),
    }
