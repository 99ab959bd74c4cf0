"""Heads in the layouts of their authors, as ours: Medusa's (FasterDecoding/Medusa), Hydra's (zankner/Hydra) and
EAGLE-1's (SafeAILab/EAGLE); those of EAGLE-3 are read in draft/eagle_shape.py.

Their config.json names the number of heads and the model that they were made for, but not its sizes, which are those of
the weights: `medusa_lm_head.pt` or `hydra_lm_head.pt`, or the same as safetensors.

    medusa   I.J.linear.weight, .bias      head I, layer J;  I.L.weight   its own output matrix, if it has one
    hydra    hydra_mlp.I.J.linear.*, hydra_mlp.I.1.res_connection.*, hydra_lm_head.I.1.*, J = 1, 3, 5, ...
             prefix_embeding_layer.layers.0.*, prefix_embeding_layer.norm.weight
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, memory_ended, no_room_for
from paceline.draft.companion import CONFIG, WEIGHTS
from paceline.draft.head_sizes import check_sizes
from paceline.model import checks
from paceline.model.checkpoint import open_tensors
from paceline.model.opened import once

PICKLED = "pytorch_model.bin"
"""Weights of a head that has no safetensors; nothing of the file is executed."""
RELEASED_METHODS = ("medusa", "hydra")
INERT_KEYS = frozenset((
    "_name_or_path", "_attn_implementation", "attn_implementation", "attention_dropout", "auto_map",
    "base_model_ep_plan", "base_model_pp_plan", "base_model_tp_plan", "bos_token_id", "eos_token_id", "pad_token_id",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "torch_dtype", "embed_requires_grad", "eagle_aux",
    "has_no_defaults_at_init", "hidden_dropout", "initializer_range", "is_encoder_decoder", "is_decoder",
    "model_max_length", "modelopt_state_version", "num_anchors", "eagle_architecture_config", "output_attentions",
    "output_hidden_states", "pretraining_tp", "return_dict", "max_seq_len",
    "down_sample_ratio", "down_sample_ratio_min", "prediction_loss_weight", "enable_sp_ulysses",
    "speculators_version", "target_layer_count", "transformers_version", "unsloth_version", "use_bfloat16",
    "use_cache", "id2label", "label2id", "problem_type", "tokenizer_class", "head_source", "license",
))  # fmt: skip
"""Keys of no meaning for what a head drafts."""
RELEASED_KEYS: dict[str, frozenset[str]] = {
    "medusa": frozenset(("medusa_num_heads", "medusa_num_layers")),
    "hydra": frozenset(("hydra_num_heads", "hydra_num_layers", "hydra_head_arch", "grounded_heads", "head_dim",
                        "hidden_state_offset", "rms_norm_eps", "rope_theta", "max_position_embeddings")),
}  # fmt: skip
"""Keys that a method's authors write and that are read or checked, in addition to those in `SHARED_HEAD_KEYS`."""
SHARED_HEAD_KEYS = frozenset(("base_model_name_or_path", "vocab_size", "architectures", "model_type"))
HYDRA_ARCHITECTURES = ("mlp", "prefix-mlp")
HEAD_DIM = 128
"""Head dimension of the models that Hydra's released prefix layers were made for."""


def read_json(path: Path) -> dict[str, Any]:
    """config.json as it is. Raises CheckpointError."""
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / CONFIG} cannot be read ({error}); give the directory of a head.") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path / CONFIG} does not hold a JSON object; restore it from its source.")
    return config


def released(config: Mapping[str, Any]) -> str | None:
    """The method of an authors' config; None for another layout."""
    return next((method for method in RELEASED_METHODS if f"{method}_num_heads" in config), None)


def file_of(path: Path, method: str) -> Path:
    for suffix in ("safetensors", "pt"):
        if (file := path / f"{method}_lm_head.{suffix}").is_file():
            return file
    raise CheckpointError(f"{path} has no {method}_lm_head.pt or .safetensors; restore it from its source.")


def files_of(path: Path) -> list[Path]:
    """The files of a head's weights: safetensors, in one file or several, or else pickled ones. Raises CheckpointError
    where there are none, or a part is missing."""
    for name in WEIGHTS, PICKLED:
        if (path / name).is_file():
            return [path / name]
        if (index := path / f"{name}.index.json").is_file():
            try:
                named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
                parts = [path / Path(str(part)).name for part in named]
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CheckpointError(f"{index} cannot be read ({error!r}); restore it from its source.") from None
            if missing := [part.name for part in parts if not part.is_file()]:
                raise CheckpointError(
                    f"{path} lacks {', '.join(missing)} of {len(parts)} parts; restore them from their source."
                )
            return parts
    raise CheckpointError(f"{path} has no {WEIGHTS} or {PICKLED}; train the head again or restore the file.")


def first_eagle(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an EAGLE-1 head, which looks like that of a model of one layer, with the keys of ours; any other
    config as it is. Raises CheckpointError."""
    nested = config.get("model") if config.get("model_type") == "eagle" else None
    inner = {**config, **nested} if isinstance(nested, dict) else dict(config)
    if inner.get("num_hidden_layers") != 1 or any("agle3" in str(name) for name in inner.get("architectures") or ()):
        return dict(config)
    if not any((path / f"{name}{end}").is_file() for name in (WEIGHTS, PICKLED) for end in ("", ".index.json")):
        return dict(config)
    names = {name.removeprefix("model.") for name in names_of(path)}
    if "fc.weight" not in names or "layers.0.self_attn.q_proj.weight" not in names or "midlayer" in str(names):
        return dict(config)
    inner = {key: value for key, value in inner.items() if key not in ("model", "truncated_vocab_size")}
    return {**inner, "speculators_model_type": "eagle3", "fused": "layers.0.hidden_norm.weight" in names}


def names_of(path: Path) -> list[str]:
    """Names of a head's weights. Raises CheckpointError."""
    files = files_of(path)
    if files[0].suffix == ".safetensors":
        return [*open_tensors(path).place]
    return [name for file in files for name in once(file, partial(read, file))]


def read(file: Path) -> dict[str, Tensor]:
    """Weights by the authors' names; nothing of the file is executed."""
    from safetensors.torch import load_file

    try:
        found = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except Exception as error:  # a damaged file raises what it likes
        if memory_ended(error):
            raise no_room_for(file) from error
        reason = error if file.suffix == ".safetensors" else f"{type(error).__name__}: damaged, or more than tensors"
        raise CheckpointError(f"{file} cannot be read ({reason}); restore it from its source.") from None
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{file} holds no weights by name; restore it from its source.")
    return {str(name): part for name, part in found.items() if isinstance(part, Tensor)}


def adapted(path: Path, config: Mapping[str, Any], method: str) -> dict[str, Any]:
    """A released head's config.json, in Paceline's keys."""
    check_released(path, config, method)
    weights = renamed(read(file_of(path, method)), method)
    layers = config.get(f"{method}_num_layers", 1)
    check_sizes({"depth": config[f"{method}_num_heads"], "layers": layers})
    first = ("blocks.0.linear" if layers == 1 else "blocks.0.0.linear") if method == "medusa" else "depths.0.straight"
    if (blocks := f"{first}.weight") not in weights:
        raise CheckpointError(f"{path} holds no weight {blocks} of a {method} head; it has another layout.")
    width, own = len(weights[blocks]), weights.get("output.0.weight")
    vocab = len(own) if own is not None else config.get("vocab_size")
    if vocab is None:
        raise CheckpointError(f"{path} does not say its model's vocabulary; add vocab_size to its config.json.")
    out = {
        "speculators_model_type": method, "hidden_size": width, "vocab_size": vocab, "own_head": own is not None,
        "depth": config[f"{method}_num_heads"], "layers": layers,
        "speculators_config": {"verifier": {"name_or_path": config.get("base_model_name_or_path", "")}},
    }  # fmt: skip
    named = (("eps", "rms_norm_eps"), ("theta", "rope_theta"), ("max_position_embeddings", "max_position_embeddings"))
    out |= {ours: config[theirs] for ours, theirs in named if theirs in config}
    if (q := weights.get("prefix.q_proj.weight")) is not None:
        dim = config.get("head_dim", HEAD_DIM)
        checks.whole("head_dim", dim, 1, checks.MAX_HEAD_SIZE)
        out |= {
            "prefix": True, "head_dim": dim, "heads": len(q) // dim,
            "kv_heads": len(weights["prefix.k_proj.weight"]) // dim, "ffn": len(weights["prefix.gate_proj.weight"]),
        }  # fmt: skip
    return out


def check_released(path: Path, config: Mapping[str, Any], method: str) -> None:
    """CheckpointError for an unknown key, or one whose value asks for arithmetic that is not implemented."""
    for key in config:
        if key not in RELEASED_KEYS[method] | SHARED_HEAD_KEYS | INERT_KEYS:
            raise CheckpointError(
                f"{path} has the key {key!r} in config.json, which Paceline does not know; it may change what the head "
                "drafts. Remove it if it does not."
            )
    arch = config.get("hydra_head_arch", "mlp")
    served = {
        "hydra_head_arch": arch if arch in HYDRA_ARCHITECTURES else "mlp", "grounded_heads": True,
        "hidden_state_offset": 0,
    }  # fmt: skip
    for key, value in served.items():
        if config.get(key, value) != value:
            raise CheckpointError(f"{path} has {key} {config[key]!r} in config.json; {value!r} alone is served.")


RENAMING_RULES: dict[str, list[tuple[str, str]]] = {
    "medusa": [
        (r"(\d+)\.(\d+)\.linear\.(weight|bias)", r"blocks.\1.\2.linear.\3"),
        (r"(\d+)\.\d+\.(weight|bias)", r"output.\1.\2"),
    ],
    "hydra": [
        (r"hydra_mlp\.(\d+)\.1\.res_connection\.(\w+)", r"depths.\1.straight.\2"),
        (r"hydra_mlp\.(\d+)\.1\.linear\.(\w+)", r"depths.\1.bent.\2"),
        (r"hydra_lm_head\.(\d+)\.1\.(\w+)", r"output.\1.\2"),
        (r"prefix_embeding_layer\.layers\.0\.(?:self_attn\.|mlp\.)?(\w+)\.weight", r"prefix.\1.weight"),
        (r"prefix_embeding_layer\.norm\.weight", "norm.weight"),
    ],
}
LATER = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.(\w+)")


def renamed(weights: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    """By our names. What is the target's (its embedding) is left out; output matrices without a bias get one of
    zeros."""
    out: dict[str, Tensor] = {}
    for name, part in weights.items():
        name = name.removeprefix("medusa_head.").removeprefix("hydra_head_module.")
        for pattern, ours in RENAMING_RULES[method]:
            if re.fullmatch(pattern, name):
                out[re.sub(pattern, ours, name)] = part
                break
        else:
            later = LATER.fullmatch(name)
            if later:
                head, place, kind = later.groups()
                out[f"depths.{head}.blocks.{(int(place) - 3) // 2}.linear.{kind}"] = part
            elif "embed_tokens" not in name and "inv_freq" not in name:
                raise CheckpointError(f"The {method} head holds {name}, which its method has no place for.")
    if not any(re.match(r"blocks\.\d+\.[1-9]", name) for name in out):  # a single layer has no number
        out = {re.sub(r"^(blocks\.\d+)\.0\.", r"\1.", name): part for name, part in out.items()}
    for name in [name for name in out if re.fullmatch(r"output\.\d+\.weight", name)]:
        out.setdefault(name.replace("weight", "bias"), torch.zeros(len(out[name])))
    return out
