"""GGUF files made of tiny checkpoints by the `gguf` package, as llama.cpp's converter lays them out."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import load_file

from paceline.model.gguf.architectures import ARCHITECTURES, DENSE_LATENT, MIXTRAL, SOFTMAX_LATENT, STEADY_MISTRAL
from paceline.model.gguf.hybrid import EXPERT_PARTS, HYBRID_EXPERTS, HYBRID_SIZES
from paceline.model.gguf.peculiar import PURE_SIZES
from paceline.model.gguf.tensors import NEXT_NAMES, names_of
from paceline.model.read_spec import rounded

KINDS = {arch.model_type: name for name, arch in ARCHITECTURES.items()} | {
    "mixtral": "llama",
    "mistral": "mistral3",
    **dict.fromkeys(("deepseek_v2", "glm4_moe_lite", "youtu"), "deepseek2"),
}
PERMUTED = ("llama", "smollm3", "granite", "arcee", "granitemoe", "granitehybrid", "mistral3")
"""Architectures whose pairs the converter puts side by side; those of other interleaved ones lie so from the start."""
PROMPT = "The quick brown fox"


def interleave(weight: torch.Tensor, heads: int, rotated: int) -> torch.Tensor:
    """Rows of heads from pairs half of `rotated` apart to pairs side by side."""
    head_dim = len(weight) // heads
    order = torch.cat((torch.arange(rotated).view(2, -1).t().flatten(), torch.arange(rotated, head_dim)))
    return weight.view(heads, head_dim, *weight.shape[1:])[:, order].reshape(weight.shape)


def write_gguf(
    path: Path,
    checkpoint: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    others: Mapping[str, GGMLQuantizationType] = MappingProxyType({}),
    **changes: Any,
) -> Path:
    """The checkpoint as one file. `others`: kinds of tensors by a part of their names. `changes`: keys with __ for
    dots; None leaves one out."""
    config = json.loads((checkpoint / "config.json").read_text())
    arch = KINDS[config["model_type"]]
    if kinds := config.get("layers_block_type"):
        arch, config["num_hidden_layers"] = "nemotron_h_moe" if "moe" in kinds else "nemotron_h", len(kinds)
    weights, further = load_file(checkpoint / "model.safetensors"), dict[str, str]()
    if arch == "gemma4":
        weights, further = beside(config, weights)
    elif arch == "mistral4":  # gates and ups stay in one
        weights = {f"{name}.weight" if ".experts." in name else name: it for name, it in weights.items()}
    else:
        changes = {**curves(weights, config["num_hidden_layers"]), **changes}
        weights = stacked({name: it for name, it in weights.items() if ".act_fn." not in name})
    if ARCHITECTURES[arch].apart:
        layers, parts = range(config["num_hidden_layers"]), EXPERT_PARTS.items()
        further = {f"backbone.layers.{n}.{ours}": f"blk.{n}.{it}" for n in layers for ours, it in parts}
    if "mtp.fc.weight" in weights:
        weights, further = behind(weights, config["num_hidden_layers"])
        changes |= {f"{arch}.nextn_predict_layers": 1, f"{arch}.block_count": config["num_hidden_layers"] + 1}
    writer = GGUFWriter(path, arch)
    for key, value in {**metadata(config, arch), **vocabulary(checkpoint), **changes}.items():
        add(writer, key.replace("__", "."), value)
    names = names_of(arch, config["num_hidden_layers"] + 1) | further
    heads = {"attn_q": config.get("num_attention_heads"), "attn_k": config.get("num_key_value_heads")}
    for name, weight in laid_out(config, weights).items():
        stem, _, end = name.rpartition(".")
        if end.endswith("_bias"):
            stem, end = f"{stem}.{end.removesuffix('_bias')}", "bias"
            weight = weight.flatten()
        if end in ("A_log", "D") or (end in ("weight", "scale", "per_expert_scale") and name in names):
            writer.add_tensor(names[name], weight.float().numpy())
            continue
        if name.endswith("expert_bias"):
            stem, end = name, "bias"
        theirs = names[stem]
        if theirs.endswith("attn_sinks"):
            end = "weight"
        if arch in PERMUTED and theirs.rpartition(".")[2] in heads:
            part = theirs.rpartition(".")[2]
            weight = interleave(weight, heads[part], len(weight) // heads[part])
        if ARCHITECTURES[arch].folded and "norm" in theirs and "ssm" not in theirs and end == "weight":
            weight = weight + 1
        of = next((other for part, other in others.items() if part in theirs), kind)
        data, small = weight.float().numpy(), weight.dim() == 1 or of == GGMLQuantizationType.F32
        writer.add_tensor(f"{theirs}.{end}", data if small else quantize(data, of), raw_dtype=None if small else of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def curves(weights: dict[str, torch.Tensor], layers: int) -> dict[str, Any]:
    """The numbers of activations that were learned, as metadata."""
    names = {it.rpartition(".act_fn.")[2] for it in weights if ".act_fn." in it}
    stem = "model.layers.{}.mlp.act_fn."
    return {f"xielu.{key}": [float(weights[stem.format(n) + key]) for n in range(layers)] for key in sorted(names)}


def behind(weights: dict[str, torch.Tensor], layers: int) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """A layer for further tokens as one more block, and the names of what is not a layer's."""
    stems = {f"mtp.{name}": f"blk.{layers}.nextn.{theirs}" for name, theirs in NEXT_NAMES.items()}
    moved = {name.replace("mtp.layers.0.", f"model.layers.{layers}."): it for name, it in weights.items()}
    return moved, stems


def beside(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Gemma 4's weights, with what keeps a part of a head from turning, and the names of scales."""
    params = config["rope_parameters"]["full_attention"]
    half = config["per_layer_config"][str(config["layer_types"].index("full_attention"))]["head_dim"] // 2
    turned = int(half * params["partial_rotary_factor"])
    out = {"rope_freqs.weight": torch.tensor([1.0] * turned + [1e30] * (half - turned))}
    scales = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    for name, it in weights.items():
        bare = ".experts." in name or name.endswith("layer_scalar")
        out[f"{name}.weight" if bare else name] = it
    layers = range(config["num_hidden_layers"])
    return out, {f"model.layers.{n}.{ours}": f"blk.{n}.{it}" for n in layers for ours, it in scales.items()}


def laid_out(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The numbers of recurrent layers as the converter lays them out."""
    if config["model_type"] == "qwen3_next":
        return unfused(config, weights)
    if "linear_num_key_heads" in config:
        return recurrent(config, weights)
    if "kv_lora_rank" in config:
        return apart(config, weights)
    if config["model_type"] == "stablelm":
        weights = of_heads(weights)
    if config["model_type"] == "falcon_h1":
        weights = multiplied(config, weights)
    out = {}
    for name, it in weights.items():
        if name.endswith(("conv1d.weight", "conv.conv.weight")):
            it = it.squeeze(1)
        elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            it = it.view(config.get("mamba_n_groups") or config["n_groups"], -1)
        elif name.endswith(".D"):
            it = it[:, None]
        elif name.endswith(".A_log"):
            it = -torch.exp(it)[:, None]
        out[name.replace("dt_bias", "dt_proj.bias")] = it
    return out


def of_heads(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Norms of heads as rows of one tensor."""
    parts: dict[str, list[torch.Tensor]] = {}
    numbered = (it for it in weights if "_layernorm.norms." in it)
    for name in sorted(numbered, key=lambda it: int(it.split(".norms.")[1].split(".")[0])):
        parts.setdefault(name.partition(".norms.")[0] + ".weight", []).append(weights[name])
    rest = {name: it for name, it in weights.items() if "_layernorm.norms." not in name}
    return rest | {name: torch.stack(rows) for name, rows in parts.items()}


def apart(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What makes keys of a latent vector, transposed, and what makes values."""
    out, width = dict[str, torch.Tensor](), config["qk_nope_head_dim"]
    for name, it in weights.items():
        if name.endswith("kv_b_proj.weight"):
            keys, values = it.view(config["num_attention_heads"], -1, it.shape[1]).tensor_split([width], 1)
            out[name.replace("kv_b", "k_b")] = keys.transpose(1, 2).contiguous()
            out[name.replace("kv_b", "v_b")] = values.contiguous()
        else:
            out[name] = it
    return out


def multiplied(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Falcon-H1's factors in its matrices."""
    inner, keys = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    parts = torch.tensor([inner, inner, keys, keys, config["mamba_n_heads"]])
    by = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"],
        "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"] * torch.tensor(config["ssm_multipliers"]).repeat_interleave(parts),
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    out = dict(weights)
    for name, it in weights.items():
        factor = by.get(name.split(".")[-2])
        if factor is not None and name.endswith(".weight"):
            out[name] = it * (factor[:, None] if isinstance(factor, torch.Tensor) else factor)
    return out


def unfused(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Qwen3-Next's queries, keys and values one behind the other, and its gates apart."""
    keys, ratio = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    own, values = config["linear_key_head_dim"], ratio * config["linear_value_head_dim"]
    out = {}
    for name, it in weights.items():
        if name.endswith("in_proj_qkvz.weight"):
            parts = it.view(keys, -1, it.shape[1]).split([own, own, values, values], 1)
            query, key, value, gate = (part.flatten(0, 1).contiguous() for part in parts)
            out[name.replace("qkvz", "qkv")] = torch.cat((query, key, value))
            out[name.replace("qkvz", "z")] = gate
        else:
            it = it.squeeze(1) if name.endswith("conv1d.weight") else it
            it = -torch.exp(it) if name.endswith(".A_log") else it
            out[name.replace("dt_bias", "dt_proj.bias")] = it
    return out


def recurrent(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A gated delta rule's numbers: value heads in turns of the key heads, decay rates as they are used, a kernel
    without its middle 1."""
    keys, ratio = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    width, before = config["linear_value_head_dim"], 2 * keys * config["linear_key_head_dim"]

    def in_turns(it: torch.Tensor, size: int, dim: int = 0) -> torch.Tensor:
        return it.unflatten(dim, (keys, ratio, size)).transpose(dim, dim + 1).flatten(dim, dim + 2).contiguous()

    out = {}
    for name, it in weights.items():
        end = name.partition("linear_attn.")[2]
        if end.startswith(("in_proj_qkv", "conv1d")):
            it = it.squeeze(1) if "conv1d" in end else it
            it = torch.cat((it[:before], in_turns(it[before:], width)))
        elif end.startswith("in_proj_z"):
            it = in_turns(it, width)
        elif end.startswith("out_proj"):
            it = in_turns(it, width, 1)
        elif end.startswith(("in_proj_", "A_log", "dt_bias")):
            it = in_turns(it, 1)
        if end == "dt_bias":
            name = name.replace("dt_bias", "dt_proj.bias")
        out[name] = -torch.exp(it) if end == "A_log" else it
    return out


def stacked(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts one behind the other, and gates and ups apart."""
    out, parts = dict[str, torch.Tensor](), dict[str, dict[int, torch.Tensor]]()
    for name, weight in weights.items():
        if expert := re.fullmatch(r"(.+\.experts)\.(\d+)\.(.+)", name):
            parts.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = weight
        elif ".experts." in name:  # gpt-oss: transposed, gates and ups in turn
            part, end = name.removesuffix("_bias"), ".bias" if name.endswith("_bias") else ".weight"
            whole = weight if end == ".bias" else weight.transpose(1, 2)
            for own, turn in (("gate", 0), ("up", 1)) if "gate_up" in name else (("down", None),):
                mine = whole if turn is None else whole[:, turn::2]
                out[part.replace("gate_up_proj", f"{own}_proj") + end] = mine.contiguous()
        elif name.endswith("shared_expert_gate.weight"):
            out[name] = weight[0]
        elif name.endswith("sinks"):
            out[name + ".weight"] = weight
        elif name.endswith("shared_mlp.input_linear.weight"):
            to = "shared_expert." if any("block_sparse" in other for other in weights) else ""
            for part, half in zip(("gate_proj", "up_proj"), weight.chunk(2)):
                out[name.replace("shared_mlp.input_linear", f"mlp.{to}{part}")] = half.contiguous()
        elif name.endswith("shared_mlp.output_linear.weight"):
            to = "shared_expert." if any("block_sparse" in other for other in weights) else ""
            out[name.replace("shared_mlp.output_linear", f"mlp.{to}down_proj")] = weight
        elif name.endswith("input_linear.weight"):
            for part, half in zip(("gate_proj", "up_proj"), weight.chunk(2, 1)):
                out[name.replace("block_sparse_moe.input_linear", f"mlp.experts.{part}")] = half.contiguous()
        else:
            out[name] = weight
    return out | {name: torch.stack([some[i] for i in range(len(some))]) for name, some in parts.items()}


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    if value is None or key == "general.architecture":
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def metadata(config: dict[str, Any], arch: str) -> dict[str, Any]:
    """Sizes, under the architecture's prefix."""
    if arch == "mamba2":
        own = {"feed_forward_length": 0, "attention.head_count": 0, "context_length": 512,
               "ssm.inner_size": config["num_heads"] * config["head_dim"],
               "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"]}  # fmt: skip
        own |= {key: config[name] for key, name in PURE_SIZES.items() if name in config and key not in own}
        return {f"{arch}.{key}": value for key, value in own.items()}
    if ARCHITECTURES[arch].apart:
        return {f"{arch}.{key}": value for key, value in hybrid_metadata(config).items()}
    if arch == "gemma4":
        return {f"{arch}.{key}": value for key, value in varied_metadata(config).items() if value is not None}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    config = {"num_shared_expert": 1, "moe_shared_width": config.get("intermediate_size"), **config}
    rope = config["rope_parameters"]
    if "alpha" in rope:  # the converter scales the base
        rope = {"rope_type": "default", "rope_theta": rope["rope_theta"] * rope["alpha"] ** (head_dim / (head_dim - 2))}
    rope = rope.get("full_attention", rope)
    partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
    found = {
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size"),
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * partial),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    known = {"mixtral": MIXTRAL, "mistral": STEADY_MISTRAL, "deepseek_v2": SOFTMAX_LATENT, "youtu": DENSE_LATENT}.get(
        config["model_type"], ARCHITECTURES[arch]
    )
    if known.latent:
        rotated, rank, every = config["qk_rope_head_dim"], config["kv_lora_rank"], rope.get("mscale_all_dim")
        found |= {
            "attention.head_count_kv": 1,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
            "attention.value_length_mla": config["v_head_dim"],
            "attention.kv_lora_rank": rank,
            "attention.q_lora_rank": config["q_lora_rank"],
            "rope.dimension_count": rotated,
            "rope.scaling.yarn_log_multiplier": None if every is None else 0.1 * every,
            "leading_dense_block_count": config["num_hidden_layers"],
            "expert_feed_forward_length": config["intermediate_size"],
        }
        if "mlp_layer_types" in config:
            config = {**config, "first_k_dense_replace": config["mlp_layer_types"].index("sparse")}
    config = {"num_experts": config.get("num_local_experts"), **config}
    if "linear_num_value_heads" in config:
        config["value_numbers"] = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        config["full_attention_interval"] = config["layer_types"].index("full_attention") + 1
    if "mamba_n_heads" in config:
        config["value_numbers"] = config["mamba_n_heads"] * config["mamba_d_head"]
    if known.keyless:
        kv = [0 if kind == known.keyless else config["num_key_value_heads"] for kind in config["layer_types"]]
        found["attention.head_count_kv"] = kv
    if config["model_type"] == "lfm2":
        found["feed_forward_length"] = rounded(SimpleNamespace(**config))
    if config["model_type"] == "granitemoehybrid":
        found |= {
            "expert_shared_feed_forward_length": config["shared_intermediate_size"],
            "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        }
    found |= {key: config[name] for key, name in known.sizes.items()}
    found |= {key: config[name] for key, name in known.mixture.items()}
    found |= {key: config.get(name, True) for key, name in known.flags.items()}
    if known.mixture:
        found["expert_gating_func"] = known.score
    found |= {key: float(config[name]) for key, name in known.floats.items() if config.get(name) is not None}
    found |= {key: config[name] for key, name in known.whole.items() if config.get(name) is not None}
    if "llama_4_scaling_beta" in rope and arch != "mistral4":
        found["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
        found["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        if rope["rope_type"] == "yarn":
            found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{arch}.{key}": value for key, value in found.items() if value is not None}


def hybrid_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp's converter says of a Nemotron-H."""
    kinds, mixed = config["layers_block_type"], "moe" in config["layers_block_type"]
    width = config["moe_intermediate_size" if mixed else "intermediate_size"]
    found = {key: config[name] for key, name in {**HYBRID_SIZES, **(HYBRID_EXPERTS if mixed else {})}.items()}
    if mixed:
        found |= {
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
    return {
        **found,
        "attention.head_count_kv": [config["num_key_value_heads"] * (it == "full_attention") for it in kinds],
        "feed_forward_length": [width * (it in ("mlp", "moe")) for it in kinds],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["layer_norm_epsilon"]),
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "rope.scaling.finetuned": False,
    }


def varied_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp's converter says of a Gemma 4."""
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    full = config["per_layer_config"][str(slides.index(False))]
    kv, width = config["num_key_value_heads"], config["intermediate_size"]
    wide = [width * (1 + (config["use_double_wide_mlp"] and at >= layers - shared)) for at in range(layers)]
    moe = config["enable_moe_block"]
    return {
        "embedding_length": config["hidden_size"],
        "feed_forward_length": wide if config["use_double_wide_mlp"] else width,
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": [kv if it else full.get("num_key_value_heads", kv) for it in slides],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "expert_count": config["num_experts"] if moe else None,
        "expert_used_count": config["top_k_experts"] if moe else None,
        "expert_feed_forward_length": config["moe_intermediate_size"] if moe else None,
    }


def vocabulary(checkpoint: Path) -> dict[str, Any]:
    """Vocabulary of a byte-level tokenizer.json; empty if there is none."""
    file = checkpoint / "tokenizer.json"
    if not file.exists():
        return {}
    content = json.loads(file.read_text())
    words = sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"] for token in content["added_tokens"]}
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    at = dict(words)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [token for token, _ in words],
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token, _ in words],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": at[config["bos_token"]],
        "tokenizer.ggml.eos_token_id": at[config["eos_token"]],
        "tokenizer.ggml.padding_token_id": at[config["pad_token"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (checkpoint / "chat_template.jinja").read_text(),
    }


def random_blocks(
    kind: GGMLQuantizationType, blocks: int, size: int, halves: tuple[int, ...]
) -> "np.ndarray[Any, Any]":
    """Random blocks of a kind, with finite float16 numbers where `halves` says that there are some."""
    stream = np.random.default_rng(kind)
    raw = stream.integers(0, 256, (blocks, size), dtype=np.uint8)
    for at in halves:
        raw[:, at : at + 2] = stream.standard_normal((blocks, 1)).astype(np.float16).view(np.uint8)
    return raw
