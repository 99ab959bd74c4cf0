"""Metadata of Nemotron-H, whose feed-forward parts are layers of their own: sizes say of which kind each layer is."""

from typing import Any

import numpy as np

from paceline.model.gguf.header import Header
from paceline.model.gguf.peculiar import vocabulary_of
from paceline.model.gguf.reader import ConfigReader, whole_or_none

HYBRID_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
}
"""Numbers that every file must have."""
HYBRID_EXPERTS = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
}
"""Numbers of a mixture."""
LINEAR_KIND, FULL_KIND = "linear_attention", "full_attention"


def hybrid_config(header: Header, model_type: str, mixed: bool, read: ConfigReader) -> dict[str, Any]:
    """The fields of config.json. Raises CheckpointError naming file and key."""
    config: dict[str, Any] = {name: read.whole(key) for key, name in HYBRID_SIZES.items()}
    layers, heads, inner = config["num_hidden_layers"], config["mamba_num_heads"], read.whole("ssm.inner_size")
    if inner % heads:
        raise read.wrong("ssm.inner_size", f"is {inner}, no multiple of the {heads} of ssm.time_step_rank")
    if read.whole("attention.value_length", config["head_dim"]) != config["head_dim"]:
        raise read.wrong("attention.value_length", "is not the length of a key, which is not served")
    if whole_or_none(read, "nextn_predict_layers"):
        raise read.wrong("nextn_predict_layers", "is there, but a layer for further tokens is not served here")
    keys, widths = (by_layer(read, key, layers) for key in ("attention.head_count_kv", "feed_forward_length"))
    if any(key and width for key, width in zip(keys, widths)):
        raise read.wrong("feed_forward_length", "is above 0 in a layer that attends, which is not served")
    kinds = [FULL_KIND if key else ("moe" if mixed else "mlp") if wide else LINEAR_KIND
             for key, wide in zip(keys, widths)]  # fmt: skip
    kv, width = only_number(read, "attention.head_count_kv", keys), only_number(read, "feed_forward_length", widths)
    if config["num_attention_heads"] % kv:
        raise read.wrong("attention.head_count_kv", f"is {kv}, no divisor of {config['num_attention_heads']}")
    for key in ("rope.dimension_count", "rope.freq_base"):  # nothing is rotated
        read.raw(key)
    if read.raw("rope.scaling.finetuned") not in (None, False):
        raise read.wrong("rope.scaling.finetuned", "says that heads are rotated, which is not served")
    config |= {
        **vocabulary_of(header),
        "model_type": model_type,
        "layers_block_type": kinds,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "mamba_head_dim": inner // heads,
        "layer_norm_epsilon": read.number("attention.layer_norm_rms_epsilon"),
        "time_step_min": 0.0,  # no file names a least step
        "use_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in header.tensors),
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in header.tensors),
        "use_bias": any(name.endswith("ssm_out.bias") for name in header.tensors),
        **(experts_of(read, width) if mixed else {}),
    }
    read.refuse_unread()
    return config


def experts_of(read: ConfigReader, width: int) -> dict[str, Any]:
    """Config fields of the model's mixtures of experts."""
    found: dict[str, Any] = {name: read.whole(key) for key, name in HYBRID_EXPERTS.items()}
    if found["moe_intermediate_size"] != width:
        raise read.wrong("expert_feed_forward_length", f"is not {width}, as feed_forward_length")
    if found["n_shared_experts"] != 1:
        raise read.wrong("expert_shared_count", f"is {found['n_shared_experts']}, but one is served")
    if (score := read.raw("expert_gating_func")) not in (None, 0, 2):
        raise read.wrong("expert_gating_func", f"is {str(score)[:20]}, a router that is not served here; 2 is")
    return {
        **found,
        "norm_topk_prob": bool(read.raw("expert_weights_norm")),
        "routed_scaling_factor": read.number("expert_weights_scale", 1.0),
        "n_group": whole_or_none(read, "expert_group_count") or 1,
        "topk_group": whole_or_none(read, "expert_group_used_count") or 1,
    }


def by_layer(read: ConfigReader, key: str, layers: int) -> list[int]:
    """A number for each layer, 0 where it has no such part."""
    value = read.raw(key, many=True)
    found = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(found, list) or len(found) != layers or not all(type(it) is int and it >= 0 for it in found):
        raise read.wrong(key, f"is {str(value)[:40]}, but must be a number for each of the {layers} layers")
    return found


def only_number(read: ConfigReader, key: str, each: list[int]) -> int:
    """The only number above 0 among those of the layers. CheckpointError if there is none, or several."""
    found = {*each} - {0}
    if len(found) != 1:
        raise read.wrong(key, f"has {len(found)} numbers above 0, but one is served")
    (one,) = found
    if one > MAX_PART:
        raise read.wrong(key, f"is {one}, but at most {MAX_PART} is served")
    return one


MAX_PART = 1 << 22
"""The largest number of inner numbers, or of heads."""
EXPERT_PARTS = {"mixer.experts.up_proj": "ffn_up_exps", "mixer.experts.down_proj": "ffn_down_exps"}
"""Names of its experts that the `gguf` package has for other models alone."""
