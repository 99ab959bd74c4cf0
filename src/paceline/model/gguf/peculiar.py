"""Settings that GGUF files of a few architectures do not state explicitly, or state in a way of their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.model.gguf.header import Header
from paceline.model.gguf.reader import ConfigReader, floats, whole_or_none
from paceline.model.read_attention import STRETCH

ORIGINAL_LENGTH = "rope.scaling.original_context_length"
GROWTH = "attention.temperature_scale"
"""Key of how much queries grow with their position (`Family.stretched`)."""


def peculiar(header: Header, config: Mapping[str, Any], read: ConfigReader) -> dict[str, Any]:
    """Settings that gemma and phi3 do not state explicitly."""
    kind, params = config["model_type"], config["rope_parameters"]
    if kind in ("gemma2", "gemma3_text"):
        whole = config["num_hidden_layers"] in (46, 62)  # the sizes of 27 B
        scalar = config["hidden_size"] / config["num_attention_heads"] if whole else config["head_dim"]
        own: dict[str, Any] = {"query_pre_attn_scalar": scalar, "hidden_activation": "gelu_pytorch_tanh"}
        if kind == "gemma3_text":
            local = {"rope_type": "default", "rope_theta": read.number("rope.freq_base_swa", 10000.0)}
            own["rope_parameters"] = {"full_attention": params, "sliding_attention": local}
        return own
    if kind in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"):
        heads, numbers = config["linear_num_value_heads"], config["value_numbers"]
        if numbers % heads:
            raise read.wrong("ssm.inner_size", f"is {numbers}, no multiple of the {heads} of ssm.time_step_rank")
        return {"linear_value_head_dim": numbers // heads}
    if kind in ("granitemoehybrid", "falcon_h1"):
        heads, numbers, hidden = config["mamba_n_heads"], config["value_numbers"], config["hidden_size"]
        own = {"mamba_d_head": numbers // heads, "mamba_d_ssm": numbers, "mamba_expand": max(1, numbers // hidden)}
        if numbers % heads or (kind == "granitemoehybrid" and numbers % hidden):
            raise read.wrong("ssm.inner_size", f"is {numbers}, which {heads} heads and {hidden} numbers do not divide")
        own["mamba_conv_bias"] = any(name.endswith("ssm_conv1d.bias") for name in header.tensors)
        own["mamba_rms_norm"] = any(name.endswith("ssm_norm.weight") for name in header.tensors)
        if kind == "granitemoehybrid":
            shared = whole_or_none(read, "expert_shared_feed_forward_length") or config["intermediate_size"]
            own |= {"shared_intermediate_size": shared, "num_local_experts": config.get("num_local_experts", 0)}
            turned = read.raw("rope.scaling.finetuned")
            if turned not in (None, False, True):
                raise read.wrong("rope.scaling.finetuned", f"is {str(turned)[:40]}, but must be true or false")
            own["position_embedding_type"] = "rope" if turned else "nope"
        return own
    if kind == "lfm2_moe":
        return {"use_expert_bias": any("exp_probs_b" in name for name in header.tensors)}
    if kind == "ministral3":
        if "original_max_position_embeddings" not in params:
            raise read.wrong(GROWTH, "is there, but no rope.scaling.type that says from where on queries grow")
        every = read.number("rope.scaling.yarn_log_multiplier", 0.0)
        own = {"mscale": every, "mscale_all_dim": every} if every and params["rope_type"] == "yarn" else {}
        return {"rope_parameters": {**params, **own, STRETCH: read.number(GROWTH)}}
    if kind in ("hunyuan_v1_dense", "hunyuan_v1_moe"):
        trained = config["max_position_embeddings"]
        if whole_or_none(read, ORIGINAL_LENGTH) not in (0, trained):  # the scaling lies in rope.freq_base
            raise read.wrong(ORIGINAL_LENGTH, f"is not {trained}, the length that the model is made for")
        if config.get("moe_shared_width") not in (None, config["intermediate_size"]):
            raise read.wrong("expert_shared_feed_forward_length", "is not feed_forward_length")
        return {}
    if kind in ("stablelm", "cohere"):
        normed, beside = "blk.0.attn_q_norm.weight" in header.tensors, "blk.0.ffn_norm.weight" not in header.tensors
        if kind == "cohere":
            return {"use_qk_norm": normed}
        if read.raw("use_parallel_residual") is False and beside:  # true says nothing: converters write it by default
            raise read.wrong("use_parallel_residual", "is false, but there is no ffn_norm, without which it is true")
        return {"qk_layernorm": normed, "use_parallel_residual": beside}
    if kind == "exaone_moe":
        return {} if "layer_types" in config else {"sliding_window_pattern": 4}
    if kind == "gpt_oss":
        return {"rope_parameters": {**params, "truncate": False}} if params["rope_type"] == "yarn" else {}
    if kind == "glm4_moe":
        return {"use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors}
    if kind == "exaone4" and "sliding_window" not in config:
        return {"sliding_window": None, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    if kind == "olmo2" and read.raw("attention.sliding_window") is not None:
        raise CheckpointError(f"{header.path} is Olmo 3 in GGUF, which is not served; use its safetensors checkpoint.")
    if kind == "phi3":
        long, short = (header.tensors.get(f"rope_factors_{name}.weight") for name in ("long", "short"))
        own = {"sliding_window": config.get("sliding_window")}
        if long is not None and short is not None:
            original = read.raw("rope.scaling.original_context_length")
            own["original_max_position_embeddings"] = original
            own["rope_parameters"] = {
                **params, "rope_type": "longrope", "original_max_position_embeddings": original,
                "long_factor": floats(long), "short_factor": floats(short),
            }  # fmt: skip
        return own
    return {}


GROWTH_LENGTH, USUAL_GROWTH = "attention.temperature_length", 0.1
"""Key of the length from which on queries grow; how fast they do where a file does not say so."""


def growth_of(read: ConfigReader, params: Mapping[str, Any]) -> dict[str, Any]:
    """How queries grow beyond the length of the first training, which is what is served: converters leave it out."""
    original = params.get("original_max_position_embeddings")
    if original is None:
        raise read.wrong("rope.scaling.type", "is missing: nothing says from where on queries grow")
    if (length := whole_or_none(read, GROWTH_LENGTH)) not in (0, original):
        raise read.wrong(GROWTH_LENGTH, f"is {length}, not the {original} of rope.scaling.original_context_length")
    return {STRETCH: read.number(GROWTH, USUAL_GROWTH)}


PURE_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "num_heads",
}
"""Numbers that files of Mamba-2 alone must have."""


def recurrent_config(header: Header, model_type: str, read: ConfigReader) -> dict[str, Any]:
    """The fields of a model of Mamba-2 alone, which has neither attention nor feed-forward parts."""
    config: dict[str, Any] = {name: read.whole(key) for key, name in PURE_SIZES.items()}
    for key in ("feed_forward_length", "attention.head_count"):
        if whole_or_none(read, key):
            raise read.wrong(key, "is not 0, but this architecture has no such part")
    inner, heads, hidden = read.whole("ssm.inner_size"), config["num_heads"], config["hidden_size"]
    if inner % heads or inner % hidden:
        raise read.wrong("ssm.inner_size", f"is {inner}, which {heads} heads and {hidden} numbers do not divide")
    eps = read.number("attention.layer_norm_rms_epsilon")
    read.refuse_unread()
    return {
        **vocabulary_of(header),
        **config,
        "model_type": model_type,
        "head_dim": inner // heads,
        "expand": inner // hidden,
        "layer_norm_epsilon": eps,
        "use_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in header.tensors),
        "use_bias": any(name.endswith(("ssm_in.bias", "ssm_out.bias")) for name in header.tensors),
    }


def vocabulary_of(header: Header) -> dict[str, Any]:
    """The fields about tokens."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{header.path} has no matrix token_embd.weight; download it again.")
    eos = header.metadata.get("tokenizer.ggml.eos_token_id")
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "pad_token_id": None,
        "eos_token_id": eos if type(eos) is int and 0 <= eos < embedding.shape[0] else None,
    }


def sliding_layers(read: ConfigReader, config: Mapping[str, Any]) -> dict[str, Any]:
    """`layer_types`, where the file says which layers slide: by a flag for each, or all but each n-th."""
    key, layers = "attention.sliding_window_pattern", config["num_hidden_layers"]
    value = read.raw(key, many=True)
    if value is None or config.get("sliding_window") is None:
        return {}
    flags = value.tolist() if isinstance(value, np.ndarray) else value
    if type(flags) is int and flags > 0:
        flags = [(index + 1) % flags != 0 for index in range(layers)]
    if not isinstance(flags, list) or len(flags) < layers or not all(it in (0, 1) for it in flags):
        raise read.wrong(key, f"is {str(value)[:40]}, but must be a flag for each of the {layers} layers")
    return {"layer_types": ["sliding_attention" if it else "full_attention" for it in flags[:layers]]}
