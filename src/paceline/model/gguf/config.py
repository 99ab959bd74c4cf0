"""What a GGUF file says of its model, in the words of a Hugging Face config.

Architectures are data; the names of weights come from the `gguf` package's own map between the two worlds.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.model.gguf.architectures import ARCHITECTURES, DENSE_LATENT, MIXTRAL, SOFTMAX_LATENT, STEADY_MISTRAL, Arch
from paceline.model.gguf.header import Header
from paceline.model.memo import remembered, states
from paceline.model.read_attention import STRETCH
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
GROWTH = "attention.temperature_scale"
"""Key of how much queries grow with their position (`Family.stretched`)."""
MAX_NUMBER = 1e30
MAX_SIZE = 1 << 24
"""No size of a model is larger: what is, is damage, and would be taken as memory."""


def arch_of(header: Header) -> Arch:
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        shown = f"of architecture {str(name)[:40]!r}" if name is not None else "without general.architecture"
        raise CheckpointError(
            f"{header.path} is {shown}, which is not served; supported architectures are {', '.join(ARCHITECTURES)}."
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


class ConfigReader:
    """Numbers by key, checked."""

    def __init__(self, header: Header) -> None:
        self.header, self.prefix = header, f"{header.metadata['general.architecture']}."
        self.seen: set[str] = set()

    def wrong(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.prefix}{key} in {self.header.path} {what}; convert the model again.")

    def raw(self, key: str, many: bool = False) -> Any:
        """Any value; of a list, unless `many` are wanted, the one number that all layers share."""
        self.seen.add(key)
        value = self.header.metadata.get(self.prefix + key)
        if many or not isinstance(value, np.ndarray | list):
            return value
        each = value.tolist() if isinstance(value, np.ndarray) else value
        if len({*map(str, each)}) != 1:
            raise self.wrong(key, "differs from layer to layer, which is not served")
        return each[0]

    def refuse_unread(self) -> None:
        """CheckpointError for a key of the architecture that nothing has read and that may say something."""
        for name, value in self.header.metadata.items():
            key = name.removeprefix(self.prefix)
            if key != name and key not in self.seen and key not in SILENT_KEYS and not says_nothing(key, value):
                raise self.wrong(key, f"is {str(value)[:40]}, a key that is not known here and may change the text")

    def whole(self, key: str, default: int | None = None) -> int:
        """A number above 0 that all layers share."""
        value = self.raw(key)
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
    return key in USUAL_VALUES and not isinstance(value, np.ndarray | list) and value in USUAL_VALUES[key]


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
        return read.whole(key, heads), []
    some = {int(it) for it in value.tolist()} - {0}
    if len(some) != 1 or min(some) < 1:
        raise read.wrong(key, f"is {str(value)[:40]}, but must be 0 or one number above 0 for each layer")
    return some.pop(), [it == 0 for it in value.tolist()]


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
        every = read.number("rope.scaling.yarn_log_multiplier", 0.0)
        own = {"mscale": every, "mscale_all_dim": every} if every and params["rope_type"] == "yarn" else {}
        return {"rope_parameters": {**params, **own, STRETCH: read.number(GROWTH)}}
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
        layers=as_stored(header, arch, stretched(header, spec.layers)),
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
