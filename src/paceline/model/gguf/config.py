"""What a GGUF file says of its model, in the words of a Hugging Face config.

Architectures are data; the names of weights come from the `gguf` package's own map between the two worlds.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.model.gguf.architectures import ARCHITECTURES, MIXTRAL, Arch
from paceline.model.gguf.header import Header
from paceline.model.memo import remembered, states
from paceline.model.read_spec import read_spec
from paceline.model.spec import Delta, Layer, ModelSpec, Rope

COMMON = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
}
"""Numbers that every architecture must have, and what a config calls them."""
SILENT_KEYS = frozenset(("vocab_size", "tensor_data_layout", "rope.scaling.finetuned",
                         "rope.dimension_sections"))  # fmt: skip
"""Keys that say nothing of a model's arithmetic beyond what its tensors and other keys do."""
USUAL_VALUES: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "expert_used_count": (0,),
    "pooling_type": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.original_context_length": (0,),
}
"""Values of keys that are not read which stand for what is computed anyway."""
MAX_NUMBER = 1e30
MAX_SIZE = 1 << 24
"""No size of a model is larger: what is, is damage, and would be taken as memory."""


def arch_of(header: Header) -> Arch:
    name = header.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        shown = f"of architecture {str(name)[:40]!r}" if name is not None else "without general.architecture"
        raise CheckpointError(
            f"{header.path} is {shown}, which is not served; supported architectures are {', '.join(ARCHITECTURES)}."
        )
    return MIXTRAL if name == "llama" and header.metadata.get("llama.expert_count") else ARCHITECTURES[name]


class ConfigReader:
    """Numbers by key, checked."""

    def __init__(self, header: Header) -> None:
        self.header, self.prefix = header, f"{header.metadata['general.architecture']}."
        self.seen: set[str] = set()

    def wrong(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.prefix}{key} in {self.header.path} {what}; convert the model again.")

    def raw(self, key: str) -> Any:
        self.seen.add(key)
        return self.header.metadata.get(self.prefix + key)

    def refuse_unread(self) -> None:
        """CheckpointError for a key of the architecture that nothing has read and that may say something."""
        for name, value in self.header.metadata.items():
            key = name.removeprefix(self.prefix)
            if key != name and key not in self.seen and key not in SILENT_KEYS and not says_nothing(key, value):
                raise self.wrong(key, f"is {str(value)[:40]}, a key that is not known here and may change the text")

    def whole(self, key: str, default: int | None = None) -> int:
        """A number above 0 that all layers share."""
        value = self.raw(key)
        if isinstance(value, np.ndarray):
            if len({*value.tolist()}) != 1:
                raise self.wrong(key, "differs from layer to layer, which is not served")
            value = value.tolist()[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_SIZE:
            raise self.wrong(
                key, "is missing" if value is None else f"is {str(value)[:40]}, no size from 1 to {MAX_SIZE}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
        if not sound:
            raise self.wrong(key, "is missing" if value is None else f"is {str(value)[:40]}, no number from 0 on")
        return float(str(np.float32(value)))  # 1e-06, as a config has it, not the float32 nearest to it


def says_nothing(key: str, value: Any) -> bool:
    """Whether a key has the value that stands for what is computed anyway."""
    return key in USUAL_VALUES and value in USUAL_VALUES[key]


def config_of(header: Header) -> dict[str, Any]:
    """The fields of config.json that this file stands for. Raises CheckpointError naming file and key."""
    arch, read = arch_of(header), ConfigReader(header)
    if read.raw("expert_count") and not arch.mixture and "expert_count" not in arch.whole:
        raise CheckpointError(f"{header.path} is a mixture of experts (MoE) of a kind that is not served.")
    config: dict[str, Any] = {name: read.whole(key) for key, name in {**common_of(arch, read), **arch.sizes}.items()}
    if behind := whole_or_none(read, "nextn_predict_layers"):
        config["num_hidden_layers"] -= behind
        if config["num_hidden_layers"] < 1:
            raise read.wrong("nextn_predict_layers", f"is {behind}, which leaves no layer")
    heads = config["num_attention_heads"]
    head_dim = read.whole("attention.key_length", max(1, config["hidden_size"] // heads))
    if read.whole("attention.value_length", head_dim) != head_dim:
        raise read.wrong("attention.value_length", f"is not {head_dim}, the length of a key, which is not served")
    rotated, (kv, keyless) = read.whole("rope.dimension_count", head_dim), key_heads(arch, read, heads)
    if rotated > head_dim or rotated % 2 or heads % kv:
        raise read.wrong("attention", f"has {heads} heads, {kv} for keys, of {head_dim}, {rotated} of them rotated")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{header.path} has no matrix token_embd.weight; download it again.")
    eos = header.metadata.get("tokenizer.ggml.eos_token_id")
    config |= {
        "model_type": arch.model_type,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "pad_token_id": None,
        "eos_token_id": eos if type(eos) is int and 0 <= eos < embedding.shape[0] else None,
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


def key_heads(arch: Arch, read: ConfigReader, heads: int) -> tuple[int, list[bool]]:
    """How many heads of keys the layers that attend have, and which have none; empty: all attend."""
    key = "attention.head_count_kv"
    value = read.raw(key)
    if not arch.keyless or not isinstance(value, np.ndarray):
        return read.whole(key, heads), []
    some = {int(it) for it in value.tolist()} - {0}
    if len(some) != 1 or min(some) < 1:
        raise read.wrong(key, f"is {str(value)[:40]}, but must be 0 or one number above 0 for each layer")
    return some.pop(), [it == 0 for it in value.tolist()]


def sliding_layers(read: ConfigReader, config: Mapping[str, Any]) -> dict[str, Any]:
    """`layer_types`, where the file says which layers slide: by a flag for each, or all but each n-th."""
    key, layers = "attention.sliding_window_pattern", config["num_hidden_layers"]
    value = read.raw(key)
    if value is None or config.get("sliding_window") is None:
        return {}
    flags = value.tolist() if isinstance(value, np.ndarray) else value
    if type(flags) is int and flags > 0:
        flags = [(index + 1) % flags != 0 for index in range(layers)]
    if not isinstance(flags, list) or len(flags) < layers or not all(it in (0, 1) for it in flags):
        raise read.wrong(key, f"is {str(value)[:40]}, but must be a flag for each of the {layers} layers")
    return {"layer_types": ["sliding_attention" if it else "full_attention" for it in flags[:layers]]}


def common_of(arch: Arch, read: ConfigReader) -> dict[str, str]:
    """The keys of `COMMON` that this file must have: a mixture without dense parts may lack their width."""
    absent = arch.mixture and read.raw("feed_forward_length") in (None, 0)
    return {key: name for key, name in COMMON.items() if key != "feed_forward_length" or not absent}


def whole_or_none(read: ConfigReader, key: str) -> int:
    """A whole number, or 0 where the key is missing or 0."""
    return 0 if read.raw(key) in (None, 0) else read.whole(key)


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
    if "expert_shared_feed_forward_length" not in arch.mixture:
        wide = whole_or_none(read, "expert_shared_feed_forward_length")
        each, count = (read.raw(f"expert_{key}") or 0 for key in ("feed_forward_length", "shared_count"))
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
    factor = read.number("rope.scaling.factor", read.number("rope.scale_linear", 1.0))
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
    if kind in ("qwen3_5_text", "qwen3_5_moe_text"):
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
            own["position_embedding_type"] = "rope" if turned else "nope"
        return own
    if kind == "lfm2_moe":
        return {"use_expert_bias": any("exp_probs_b" in name for name in header.tensors)}
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


def floats(entry: Any) -> list[float]:
    """A small tensor of float32."""
    if entry.kind.name != "F32":
        raise CheckpointError(f"tensor {entry.name} in {entry.file} is {entry.kind.name}, but F32 is expected.")
    found: list[float] = np.fromfile(entry.file, "<f4", math.prod(entry.shape), offset=entry.offset).tolist()
    return found


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
        layers=in_turns(stretched(header, spec.layers)) if arch.tiled else stretched(header, spec.layers),
        norm_offset=0.0 if arch.folded else spec.norm_offset,
        qkv_bias=any(f"blk.0.attn_{name}.bias" in header.tensors for name in ("q", "qkv")),
        out_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias=any(f"blk.0.ffn_down{end}.bias" in header.tensors for end in ("", "_exps")),
    )


def in_turns(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers whose value heads lie in turns of the key heads."""
    return tuple(
        replace(it, mixer=replace(it.mixer, tiled=True)) if isinstance(it.mixer, Delta) else it for it in layers
    )


def stretched(header: Header, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Frequencies divided by the factors of `rope_freqs.weight`: Llama 3.1's scaling, worked out by the converter."""
    entry = header.tensors.get("rope_freqs.weight")
    if entry is None:
        return layers
    factors = floats(entry)
    if any(len(factors) != len(layer.attention.rope.inverse) or not all(f > 0 for f in factors) for layer in layers):
        raise CheckpointError(f"tensor rope_freqs.weight in {header.path} does not fit the heads; download it again.")

    def divided(rope: Rope) -> Rope:
        wide = np.array(rope.inverse, np.float32) / np.array(factors, np.float32)
        return Rope(tuple(wide.tolist()), rope.scale)

    return tuple(replace(it, mixer=replace(it.attention, rope=divided(it.attention.rope))) for it in layers)
