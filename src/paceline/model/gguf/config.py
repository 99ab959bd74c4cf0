"""What a GGUF file says of its model, in the words of a Hugging Face config.

Architectures are data; the names of weights come from the `gguf` package's own map between the two worlds.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.model.gguf.architectures import ARCHITECTURES, DENSE_LATENT, MIXTRAL, SOFTMAX_LATENT, STEADY_MISTRAL, Arch
from paceline.model.gguf.header import Header
from paceline.model.gguf.hybrid import hybrid_config
from paceline.model.gguf.peculiar import GROWTH, growth_of, peculiar, recurrent_config, sliding_layers, vocabulary_of
from paceline.model.gguf.reader import ConfigReader, floats, whole_or_none
from paceline.model.gguf.varied import STILL, varied_config
from paceline.model.memo import remembered, states
from paceline.model.read_spec import read_spec
from paceline.model.spec import Attention, Both, Delta, Latent, Layer, Mixer, ModelSpec, Rope

COMMON = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
}
"""Numbers that every architecture must have, and what a config calls them."""


ONLY_THERE = {"llama4": "llama4", "phimoe": "phimoe"}
"""Architectures that are not read here, and the type of the same model in a config.json, which is served."""


def arch_of(header: Header) -> Arch:
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        shown = f"of architecture {str(name)[:40]!r}" if name is not None else "without general.architecture"
        instead = (
            f"the same model in Hugging Face's layout is ({kind}); " if (kind := ONLY_THERE.get(str(name))) else ""
        )
        raise CheckpointError(
            f"{header.path} is {shown}, which is not served; {instead}supported architectures are "
            f"{', '.join(ARCHITECTURES)}."
        )
    found = (header.metadata.get(f"{name}.{key}") for key in ("expert_count", "expert_gating_func"))
    experts, score = (it if isinstance(it, int) else 0 for it in found)
    if name == "deepseek2" and not experts:
        return DENSE_LATENT
    if name == "mistral3" and header.metadata.get(f"{name}.{GROWTH}") is None:
        return STEADY_MISTRAL
    if name == "deepseek2" and score in (0, 1):
        return SOFTMAX_LATENT
    return MIXTRAL if name == "llama" and experts else ARCHITECTURES[name]


def config_of(header: Header) -> dict[str, Any]:
    """The fields of config.json that this file stands for. Raises CheckpointError naming file and key."""
    arch, read = arch_of(header), ConfigReader(header)
    if arch.varied:
        return varied_config(header, arch, read)
    if arch.apart:
        return hybrid_config(header, arch.model_type, arch.score == 2, read)
    if not arch.attends:
        return recurrent_config(header, arch.model_type, read)
    if read.raw("expert_count") and not arch.mixture and "expert_count" not in arch.whole:
        raise CheckpointError(f"{header.path} is a mixture of experts (MoE) of a kind that is not served.")
    config: dict[str, Any] = {name: read.whole(key) for key, name in {**common_of(arch, read), **arch.sizes}.items()}
    if behind := whole_or_none(read, "nextn_predict_layers"):
        config["num_hidden_layers"] -= behind
        if config["num_hidden_layers"] < 1:
            raise read.wrong("nextn_predict_layers", f"is {behind}, which leaves no layer")
    heads = config["num_attention_heads"]
    if arch.latent:
        return latent_config(header, arch, read, config)
    head_dim = read.whole("attention.key_length", max(1, config["hidden_size"] // heads))
    if read.whole("attention.value_length", head_dim) != head_dim:
        raise read.wrong("attention.value_length", f"is not {head_dim}, the length of a key, which is not served")
    rotated, (kv, keyless) = read.whole("rope.dimension_count", head_dim), key_heads(arch, read, heads)
    if rotated > head_dim or rotated % 2 or heads % kv:
        raise read.wrong("attention", f"has {heads} heads, {kv} for keys, of {head_dim}, {rotated} of them rotated")
    config |= {
        **vocabulary_of(header),
        "model_type": arch.model_type,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "rope_parameters": rope_of(read, rotated / head_dim),
        "partial_rotary_factor": rotated / head_dim,
        **arch.fixed,
    }
    config |= {
        name: read.number(key) for key, name in arch.floats.items() if "epsilon" in key or read.raw(key) is not None
    }
    config |= {name: read.whole(key) for key, name in arch.whole.items() if read.raw(key) is not None}
    config |= sliding_layers(read, config)
    if keyless:
        config["layer_types"] = [arch.keyless if it else "full_attention" for it in keyless]
    config |= mixture_of(arch, read, config["num_hidden_layers"])
    config |= peculiar(header, config, read)
    read.refuse_unread()
    return config


def latent_config(header: Header, arch: Arch, read: ConfigReader, config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model whose keys and values are made of a latent vector (MLA). Newer files have one head of keys,
    as wide as that vector and what is rotated, and the widths of the heads that are made of it under names of their
    own."""
    heads, rotated, rank = config["num_attention_heads"], read.whole("rope.dimension_count"), 0
    if (absorbed := read.raw("attention.key_length_mla")) is not None:
        width, value = read.whole("attention.key_length_mla"), read.whole("attention.value_length_mla")
        rank = read.whole("attention.value_length")
    else:
        width, value = read.whole("attention.key_length"), read.whole("attention.value_length")
    of_keys = {"attention.key_length": width if absorbed is None else rank + rotated,
               "attention.head_count_kv": heads if absorbed is None else 1}  # fmt: skip
    for key, expected in of_keys.items():
        if read.whole(key) != expected:
            raise read.wrong(key, f"is not {expected}, as latent keys and values have it")
    if width <= rotated or rank not in (0, read.whole("attention.kv_lora_rank")):
        raise read.wrong("attention", f"has heads of {width}, {rotated} of them rotated, and a rank of {rank}")
    params = rope_of(read, 1.0)
    every = read.number("rope.scaling.yarn_log_multiplier", 0.0)
    if every and params["rope_type"] == "yarn":
        params |= {"mscale": 10 * every, "mscale_all_dim": 10 * every}  # the two are the same in all that is published
    elif every:
        raise read.wrong("rope.scaling.yarn_log_multiplier", "is there, but the rotation is no YaRN")
    if arch.model_type == "mistral4":
        params |= growth_of(read, params)
    config |= {
        **vocabulary_of(header),
        "model_type": arch.model_type,
        "num_key_value_heads": heads,
        "kv_lora_rank": read.whole("attention.kv_lora_rank"),
        "q_lora_rank": whole_or_none(read, "attention.q_lora_rank") or None,
        "qk_nope_head_dim": width - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        "rope_parameters": params,
    }
    for key, name in arch.floats.items():
        if "epsilon" in key or read.raw(key) is not None:
            config[name] = read.number(key)
    config |= {name: read.whole(key) for key, name in arch.whole.items() if read.raw(key) is not None}
    config |= mixture_of(arch, read, config["num_hidden_layers"])
    if arch.model_type == "deepseek_v2":
        config["topk_method"] = "group_limited_greedy" if config.get("n_group", 1) > 1 else "greedy"
        config.setdefault("n_group", 1)
        config.setdefault("topk_group", 1)
    elif arch.mixture:
        config.setdefault("norm_topk_prob", False)
        config.setdefault("n_group", 1)
        config.setdefault("topk_group", 1)
    if not arch.mixture:
        for key in ("expert_count", "expert_used_count", "expert_shared_count"):
            if whole_or_none(read, key):
                raise read.wrong(key, "is there, but the model has no experts")
        read.raw("expert_feed_forward_length")  # written, whether there are experts or not
        if whole_or_none(read, "leading_dense_block_count") not in (0, config["num_hidden_layers"]):
            raise read.wrong("leading_dense_block_count", "is not the number of layers, but there are no experts")
    read.refuse_unread()
    return config


def key_heads(arch: Arch, read: ConfigReader, heads: int) -> tuple[int, list[bool]]:
    """How many heads of keys the layers that attend have, and which have none; empty: all attend."""
    key = "attention.head_count_kv"
    value = read.raw(key, many=bool(arch.keyless))
    if not arch.keyless or not isinstance(value, np.ndarray):
        return read.whole(key, heads), [False] * read.whole("block_count") if arch.keyless else []
    some = {int(it) for it in value.tolist()} - {0}
    if len(some) != 1 or min(some) < 1:
        raise read.wrong(key, f"is {str(value)[:40]}, but must be 0 or one number above 0 for each layer")
    return some.pop(), [it == 0 for it in value.tolist()]


def common_of(arch: Arch, read: ConfigReader) -> dict[str, str]:
    """The keys of `COMMON` that this file must have: a mixture without dense parts may lack their width."""
    absent = arch.mixture and read.raw("feed_forward_length") in (None, 0)
    return {key: name for key, name in COMMON.items() if key != "feed_forward_length" or not absent}


def mixture_of(arch: Arch, read: ConfigReader, layers: int) -> dict[str, Any]:
    """The fields of a mixture of experts."""
    if not arch.mixture:
        return {}
    found: dict[str, Any] = {}
    for key, name in arch.mixture.items():
        value = read.raw(key)
        absent_or_none = value in (0, None) and key in ("leading_dense_block_count", "expert_shared_count")
        found[name] = 0 if absent_or_none else read.whole(key)
    for key, name in arch.flags.items():
        if (value := read.raw(key)) is not None:
            found[name] = bool(value)
    if (score := read.raw("expert_gating_func")) not in (None, 0, arch.score):
        raise read.wrong(
            "expert_gating_func", f"is {str(score)[:20]}, a router that is not served here; {arch.score} is"
        )
    if "expert_feed_forward_length" not in arch.mixture:
        wide, dense = (whole_or_none(read, f"{it}feed_forward_length") for it in ("expert_", ""))
        if wide not in (0, dense):
            raise read.wrong("expert_feed_forward_length", f"is {wide}, not {dense} as feed_forward_length")
    if "expert_shared_feed_forward_length" not in arch.mixture:
        wide = whole_or_none(read, "expert_shared_feed_forward_length")
        names = (arch.mixture.get(f"expert_{key}", "") for key in ("feed_forward_length", "shared_count"))
        each, count = (found.get(name, 0) for name in names)
        if wide not in (0, each * count):
            raise read.wrong("expert_shared_feed_forward_length", f"is {wide}, not {count} times {each}")
    if arch.model_type == "ernie4_5_moe":
        found["moe_layer_end_index"] = layers - 1
    return found


def rope_of(read: ConfigReader, partial: float) -> dict[str, Any]:
    """`rope_parameters`."""
    params: dict[str, Any] = {"rope_theta": read.number("rope.freq_base", 10000.0), "rope_type": "default"}
    if params["rope_theta"] <= 1:
        raise read.wrong("rope.freq_base", f"is {params['rope_theta']}, but must be above 1")
    if partial != 1:
        params["partial_rotary_factor"] = partial
    kind = read.raw("rope.scaling.type") or ("linear" if read.raw("rope.scale_linear") else "none")
    if kind == "none":
        return params
    if kind not in ("linear", "yarn", "longrope"):
        raise read.wrong("rope.scaling.type", f"is {str(kind)[:40]!r}, which is not known")
    given = read.raw("rope.scaling.factor") is not None
    factor = read.number("rope.scaling.factor") if given else read.number("rope.scale_linear", 1.0)
    if factor <= 0:
        raise read.wrong("rope.scaling.factor", f"is {factor}, but must be above 0")
    params |= {"rope_type": kind, "factor": factor}
    if kind == "linear":
        return params
    params["original_max_position_embeddings"] = read.whole(
        "rope.scaling.original_context_length", read.whole("context_length")
    )
    if read.raw("rope.scaling.attn_factor") is not None:
        scale = read.number("rope.scaling.attn_factor")
        params["attention_factor"] = scale * (1 + 0.1 * math.log(factor)) if kind == "yarn" and factor > 1 else scale
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if read.raw(f"rope.scaling.{key}") is not None:
            params[name] = read.number(f"rope.scaling.{key}")
    return params


def spec_of(header: Header, max_len: int | None = None) -> ModelSpec:
    """The model as the decoder needs it."""
    files = states(sorted({entry.file for entry in header.tensors.values()} | {header.path}))
    found: ModelSpec = remembered("spec", (files, max_len), lambda: parsed_spec(header, max_len))
    return found


def parsed_spec(header: Header, max_len: int | None) -> ModelSpec:
    """What transformers makes of the metadata."""
    from transformers import AutoConfig

    arch, fields = arch_of(header), config_of(header)
    trained = fields["max_position_embeddings"]
    if max_len is not None and not 0 < max_len <= trained:
        raise CheckpointError(
            f"max_len {max_len} is outside 1..{trained}, the context that {header.path} was trained for."
        )
    try:
        config = AutoConfig.for_model(**fields)
    except Exception as error:  # validation raises many types
        raise CheckpointError(
            f"the metadata of {header.path} make no {arch.model_type} model ({' '.join(str(error).split())[:200]}); "
            "convert it again."
        ) from None
    spec = read_spec(config, max_len)
    return replace(
        spec,
        layers=as_stored(header, arch, stretched(header, arch, spec.layers)),
        norm_offset=0.0 if arch.folded else spec.norm_offset,
        qkv_bias=any(f"blk.0.attn_{name}.bias" in header.tensors for name in ("q", "qkv")),
        out_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias=any(f"blk.0.ffn_down{end}.bias" in header.tensors for end in ("", "_exps")),
    )


def as_stored(header: Header, arch: Arch, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers with what the file says of how a gated delta rule's numbers lie."""
    paired = any(name.endswith(".ssm_ba.weight") for name in header.tensors)
    fused = any(name.endswith(".ssm_in.weight") for name in header.tensors)

    def stored(form: Delta) -> Delta:
        return replace(form, fused=fused, paired=paired and not fused, tiled=arch.tiled)

    return tuple(replace(it, mixer=stored(it.mixer)) if isinstance(it.mixer, Delta) else it for it in layers)


def stretched(header: Header, arch: Arch, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Frequencies divided by the factors of `rope_freqs.weight`: Llama 3.1's scaling, worked out by the converter, or
    Gemma 4's heads of which a part stands still, in layers that do not slide."""
    entry = header.tensors.get("rope_freqs.weight")
    if entry is None:
        return layers
    factors = floats(entry)
    if not any(layer.attends for layer in layers):
        raise CheckpointError(f"tensor rope_freqs.weight in {header.path} turns nothing here; convert the model again.")

    def divided(form: Attention) -> Attention:
        if arch.varied and form.window is not None:
            return form
        if len(factors) != len(form.rope.inverse) or not all(math.isfinite(it) and it > 0 for it in factors):
            raise CheckpointError(
                f"tensor rope_freqs.weight in {header.path} does not fit the heads; download it again."
            )
        wide = np.array(form.rope.inverse, np.float32) / np.array(factors, np.float32)
        turning = np.where(np.array(factors, np.float32) < STILL, wide, np.float32(0))
        return replace(form, rope=Rope(tuple(turning.tolist()), form.rope.scale))

    def changed(form: Mixer | None) -> Mixer | None:
        if isinstance(form, Latent):
            raise CheckpointError(
                f"tensor rope_freqs.weight in {header.path} is not served with latent keys; convert the model again."
            )
        if isinstance(form, Both):
            return replace(form, attention=divided(form.attention))
        return divided(form) if isinstance(form, Attention) else form

    return tuple(replace(it, mixer=changed(it.mixer)) for it in layers)
