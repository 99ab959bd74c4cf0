"""Adapters of low rank (LoRA; Hu et al. 2021): y = W x + s B (A x), as PEFT's directories hold them.

    adapter_config.json             rank, alpha, patterns
    adapter_model.safetensors       <module>.lora_A.weight [rank, in], <module>.lora_B.weight [out, rank]; or .bin

What would change the arithmetic and is not computed here (DoRA, biases, trained embeddings) is refused by name.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import sqrt
from pathlib import Path
from re import _parser as re_parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.model.families import FAMILIES
from paceline.model.packed import by_head, halves, interleave
from paceline.model.spec import Attention, Experts, ModelSpec, ShortConv

log = logging.getLogger("paceline")
MAX_LORA_RANK = 256
"""Largest rank of a module."""
MAX_LORA_CONFIG_BYTES = 1 << 20
MAX_LORA_PATTERN_CHARS, MAX_MODULE_NAME_CHARS = 400, 200
SINGLE_CHARACTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY")
"""What of a regular expression stands for one character."""
PLAIN_LORA_KEYS = frozenset({
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "base_model_name_or_path", "lora_dropout", "inference_mode", "task_type",
    "auto_mapping", "revision", "peft_version", "init_lora_weights", "loftq_config", "eva_config", "corda_config",
    "megatron_config", "megatron_core", "qalora_group_size", "ensure_weight_tying", "lora_ga_config",
})  # fmt: skip
"""Keys of a config that are used, or say nothing of the arithmetic. Any other that is set is refused."""
CHANGED_BASES = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Ways to begin a training that change the weights below the adapter."""
PART_NAME = re.compile(r"(.+)\.lora_(A|B)(?:\.[^.]+)?\.weight")


class LoraPair(NamedTuple):
    """One module's factors, in float32: down [rank, in], and up [out, rank] times its scale."""

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """An adapter that was read and fits a model."""

    modules: Mapping[str, LoraPair]
    """By the module's name in the checkpoint's layout."""
    digest: str
    """Digest of all that changes what it computes, 32 hexadecimal digits."""
    rank: int
    """Largest rank of a module."""
    interleaved: bool = False
    """Whether the rows of queries and keys stand in pairs that are rotated together."""
    own: object | None = None
    """What drafts for it alone (engine/own_drafts.py)."""


@dataclass(frozen=True, slots=True)
class LoraPlace:
    """A matrix of a decoder, and the modules that lie in it side by side."""

    layer: int
    matrix: str
    """Attribute path below the layer's block."""
    modules: tuple[str, ...]
    outs: tuple[int, ...]
    width: int
    """Inputs."""
    order: Callable[[Tensor], Tensor] | None = None
    """Puts the outputs in the decoder's order."""


def lora_places(spec: ModelSpec, native: bool, interleaved: bool, apart: Sequence[bool] = ()) -> Iterator[LoraPlace]:
    """All matrices that an adapter may change. `apart`: whether a layer has the values in a matrix of their own."""
    if spec.multipliers is not None or not spec.uniform or spec.value_norm:
        return  # its weights hold factors that an adapter's lack, or are not those that an adapter names
    names = FAMILIES[spec.family].names
    q, kv, hidden = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.hidden
    pairs = interleave if native and spec.gated else None
    for index, layer in enumerate(spec.layers):
        at = names.layer.format(index)

        def place(
            matrix: str, modules: Sequence[str], outs: tuple[int, ...], width: int,
            order: Callable[[Tensor], Tensor] | None = None, below: str = at, index: int = index,
        ) -> LoraPlace:  # fmt: skip
            whole = outs if len(modules) == len(outs) else (sum(outs),)
            return LoraPlace(index, matrix, tuple(below + name for name in modules), whole, width, order)

        if isinstance(layer.mixer, Attention) and not spec.gated_attention:
            values = bool(apart) and apart[index]
            order = partial(_heads, spec, 2 * len(layer.mixer.rope.inverse), native, interleaved, not values)
            yield place("mixer.qkv", names.qkv[: 3 - values], (q, kv, kv)[: 3 - values], hidden, order)
            if values:
                yield place("mixer.value", names.qkv[2:], (kv,), hidden)
            yield place("mixer.out", (names.out,), (hidden,), q)
        elif isinstance(layer.mixer, ShortConv):
            yield place("mixer.inner", (names.conv_in,), (3 * hidden,), hidden)
            yield place("mixer.out", (names.conv_out,), (hidden,), hidden)
        if (form := layer.feed) is None:
            continue
        if not isinstance(form, Experts):
            yield place("ffn.gate_up", names.gate_up, (form.width,) * (1 + spec.gated), hidden, pairs)
            yield place("ffn.down", (names.down,), (hidden,), form.width)
            continue
        yield place("ffn.router", (names.router,), (form.count,), hidden)
        for number in range(form.count):
            below, mine = at + names.expert.format(number), f"ffn.experts.{number}"
            yield place(f"{mine}.gate_up", names.expert_gate_up, (form.width,) * (1 + spec.gated), hidden, None, below)
            yield place(f"{mine}.down", (names.expert_down,), (hidden,), form.width, None, below)
        if form.shared:
            below = at + names.shared
            wide = (form.shared,) * (1 + spec.gated)
            yield place("ffn.shared.gate_up", names.expert_gate_up, wide, hidden, None, below)
            yield place("ffn.shared.down", (names.expert_down,), (hidden,), form.shared, None, below)
            yield place("ffn.shared_gate", (names.shared_gate,), (1,), hidden)


def _heads(spec: ModelSpec, rotated: int, native: bool, interleaved: bool, values: bool, rows: Tensor) -> Tensor:
    if interleaved:
        rows = halves(rows, spec.heads + spec.kv_heads, spec.head_dim, rotated)
    return by_head(rows, spec.heads, spec.kv_heads, values) if native else rows


def fused(place: LoraPlace, weights: LoraWeights) -> LoraPair | None:
    """The factors of a whole matrix: those of its modules one below the other, each for its own outputs. None where
    the adapter leaves it alone."""
    found = [weights.modules.get(name) for name in place.modules]
    if not any(found):
        return None
    down = torch.cat([pair.down for pair in found if pair is not None])
    up, row, column = torch.zeros(sum(place.outs), len(down)), 0, 0
    for out, pair in zip(place.outs, found):
        if pair is not None:
            rank = len(pair.down)
            up[row : row + out, column : column + rank] = pair.up
            column += rank
        row += out
    return LoraPair(down, up if place.order is None else place.order(up))


def read_lora(path: Path, spec: ModelSpec, max_rank: int = MAX_LORA_RANK) -> LoraWeights:
    """An adapter from its directory, or a GGUF file. CheckpointError or RefusalError for what does not fit the model,
    is damaged, or is not computed here."""
    if path.is_file():
        from paceline.model.lora_gguf import read_gguf_lora

        return checked(read_gguf_lora(path, spec), path, spec, max_rank)
    config = read_lora_config(path)
    weights = checked(_assembled(path, config, read_lora_tensors(path)), path, spec, max_rank)
    _check_complete(path, config, weights, spec)
    _check_named(path, config, weights)
    return weights


def read_lora_config(path: Path) -> dict[str, Any]:
    """adapter_config.json. RefusalError for what is not computed here."""
    file = path / "adapter_config.json"
    try:
        if file.stat().st_size > MAX_LORA_CONFIG_BYTES:
            raise CheckpointError(f"{file} is too large for a config.")
        config = json.loads(file.read_text())
    except FileNotFoundError:
        model = "it is a model: a fine-tune of the served one is given as --zoo NAME=DIRECTORY"
        other = "give a directory that PEFT has saved, or a GGUF adapter"
        raise CheckpointError(
            f"{path} has no adapter_config.json; {model if (path / 'config.json').exists() else other}."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}).") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise RefusalError(f"{path} is an adapter of type {str(kind)[:40]!r}, but LORA alone is served.")
    if config.get("use_dora"):
        raise RefusalError(f"{path} uses DoRA, which is not served; merge it into the model.")
    if config.get("modules_to_save"):
        raise RefusalError(
            f"{path} replaces whole modules (modules_to_save: {config['modules_to_save']}), which is not served; merge "
            "it into the model."
        )
    if config.get("bias", "none") != "none":
        raise RefusalError(f"{path} has trained biases (bias: {config['bias']!r}), which are not served; merge it.")
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(CHANGED_BASES):
        raise RefusalError(
            f"{path} was begun with {begun!r}, which changes the model below it; save it with "
            "path_initial_model_for_weight_conversion, or merge it."
        )
    for key, value in config.items():
        if key not in PLAIN_LORA_KEYS | {"use_dora", "modules_to_save", "bias"} and value:
            raise RefusalError(f"{path} sets {key} in adapter_config.json, which is not served; merge it.")
    if not isinstance(config.get("use_rslora"), bool | None):
        raise CheckpointError(
            f"{file} has use_rslora: {str(config['use_rslora'])[:40]!r}, but true or false is expected."
        )
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise CheckpointError(f"{file} has {key}: {str(value)[:40]!r}, but a positive number is expected.")
    return config


def read_lora_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of an adapter's file, by name."""
    whole, pickled = path / "adapter_model.safetensors", path / "adapter_model.bin"
    try:
        if whole.is_file():
            from safetensors.torch import load_file

            return dict(load_file(whole))
        if pickled.is_file():
            return dict(torch.load(pickled, map_location="cpu", weights_only=True))
    except Exception as error:  # each library has errors of its own for a file that is cut or is none
        raise CheckpointError(f"The adapter {path} cannot be read ({error}); its file is damaged.") from None
    raise CheckpointError(f"{path} has neither adapter_model.safetensors nor adapter_model.bin.")


def _assembled(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LoraWeights:
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = PART_NAME.fullmatch(name.removeprefix("base_model.model."))
        if match is None or not isinstance(tensor, Tensor):
            raise RefusalError(
                f"The adapter {path} has the tensor {name}, which is none of a linear layer's; embeddings, heads and "
                "biases are not served. Merge it into the model."
            )
        parts.setdefault(match[1], {})[match[2]] = tensor
    digest, modules = hashlib.sha256(), dict[str, LoraPair]()
    for module, pair in sorted(parts.items()):
        if len(pair) < 2:
            raise CheckpointError(f"The adapter {path} has only one factor of {module}; its file is cut.")
        down, up = pair["A"], pair["B"]
        if down.dim() != 2 or up.dim() != 2:
            raise RefusalError(f"The adapter {path} changes {module}, which is no linear layer; merge it.")
        rank = _pattern(config, "rank_pattern", module, config["r"])
        if len(down) != rank or up.shape[1] != rank:
            raise CheckpointError(
                f"The adapter {path} has factors {list(down.shape)} and {list(up.shape)} of {module}, but its config "
                f"says rank {rank}."
            )
        alpha = _pattern(config, "alpha_pattern", module, config["lora_alpha"])
        scale = alpha / (sqrt(rank) if config.get("use_rslora") else rank)
        digest.update(f"{module}\0{scale!r}\0{list(down.shape)}{list(up.shape)}".encode())
        wide = LoraPair(down.float().contiguous(), (up.float() * scale).contiguous())
        for part in wide:
            digest.update(part.numpy().tobytes())
        modules[module] = wide
    return LoraWeights(modules, digest.hexdigest()[:32], max((len(p.down) for p in modules.values()), default=0))


def _pattern(config: Mapping[str, Any], key: str, module: str, default: float) -> float:
    """PEFT's rule: the first pattern that matches the end of the module's name."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"adapter_config.json has {key} {str(patterns)[:40]!r}, but an object is expected.")
    for pattern, value in patterns.items():
        try:
            if isinstance(value, bool):
                raise TypeError("a truth value is no number")
            if name_pattern(pattern).match(module[-MAX_MODULE_NAME_CHARS:]):
                return float(value)
        except (re.error, TypeError, ValueError, OverflowError, RecursionError):
            raise CheckpointError(
                f"adapter_config.json has {key} {pattern[:80]!r}: {str(value)[:40]!r}, which is none that is served: a "
                "pattern may repeat single characters, four times, and a value is a number."
            ) from None
    return default


@lru_cache(4096)
def name_pattern(pattern: str) -> "re.Pattern[str]":
    """A pattern of module names, as PEFT reads it. ValueError for one that may take long, as (a+)+b does: only single
    characters and sets of them may repeat, four times in all. re.error for one that is none."""
    if len(pattern) > MAX_LORA_PATTERN_CHARS:
        raise ValueError("it is too long")
    made, repeats = re.compile(rf"(?:.*\.)?(?:{pattern})$"), 0
    parts = list(re_parser.parse(pattern))
    while parts:
        name, value = parts.pop()
        kind = str(name)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            repeats += 1
            if repeats > 4 or len(value[2]) != 1 or str(value[2][0][0]) not in SINGLE_CHARACTERS:
                raise ValueError("it may take long")
        elif kind == "SUBPATTERN":
            parts += list(value[3])
        elif kind == "BRANCH":
            parts += [each for branch in value[1] for each in branch]
        elif kind not in (*SINGLE_CHARACTERS, "AT"):
            raise ValueError("it may take long")
    return made


def _check_named(path: Path, config: Mapping[str, Any], weights: LoraWeights) -> None:
    """CheckpointError where a module has factors and the config leaves it out: PEFT would compute without them."""
    layers, excluded = config.get("layers_to_transform"), config.get("exclude_modules")
    layers = [layers] if isinstance(layers, int) else layers
    for module in weights.modules:
        wrong = None
        if config.get("target_modules") and _names(config["target_modules"], module) is False:
            wrong = "target_modules"
        elif excluded and _names(excluded, module):
            wrong = "exclude_modules"
        elif isinstance(layers, list) and layers and layer_of(module) not in layers:
            wrong = "layers_to_transform"
        if wrong is not None:
            raise CheckpointError(
                f"The adapter {path} has factors of {module}, which {wrong} of its config leaves out; mend the config, "
                "or save the adapter again."
            )


def _names(wish: object, module: str) -> bool | None:
    """Do names, or an expression, of a config mean this module? None for an expression that may take long to match."""
    if isinstance(wish, list):
        return any(module == name or module.endswith(f".{name}") for name in wish)
    if wish == "all-linear":
        return True
    try:
        name_pattern(str(wish))
        return re.fullmatch(str(wish), module[-MAX_MODULE_NAME_CHARS:]) is not None
    except (re.error, ValueError, OverflowError, RecursionError):
        return None


def _check_complete(path: Path, config: Mapping[str, Any], weights: LoraWeights, spec: ModelSpec) -> None:
    """CheckpointError where a module that the config names has no factors: the file is cut, or of another model."""
    targets, some = config.get("target_modules"), config.get("layers_to_transform")
    if not isinstance(targets, list) or some is not None or config.get("exclude_modules"):
        return
    all_of_them = [name for place in lora_places(spec, False, False) for name in place.modules]
    for target in targets:
        mine = [name for name in all_of_them if name == target or name.endswith(f".{target}")]
        if not mine:
            raise RefusalError(
                f"The adapter {path} is for modules {target!r}, which no linear layer of this {spec.family} model is "
                "called; it is of another model, or changes embeddings or head, which is not served."
            )
        missing = [name for name in mine if name not in weights.modules]
        depth = 1 + max((layer_of(name) for name in weights.modules), default=-1)
        if missing and depth < len(spec.layers) and all(layer_of(name) >= depth for name in missing):
            raise RefusalError(
                f"The adapter {path} is for a model of {depth} layers, but this one has {len(spec.layers)}; it is of "
                "another model."
            )
        if missing:
            raise CheckpointError(f"The adapter {path} lacks the factors of {missing[0]}; its file is cut.")


def layer_of(name: str) -> int:
    """The number of the layer in a module's name; -1 without one."""
    found = re.search(r"\.layers\.(\d+)\.", f".{name}")
    return int(found[1]) if found else -1


def checked(weights: LoraWeights, path: Path, spec: ModelSpec, max_rank: int = MAX_LORA_RANK) -> LoraWeights:
    """Checked weights. CheckpointError where a module is not one of the model, or does not fit it."""
    shapes: dict[str, tuple[int, int]] = {}
    for place in lora_places(spec, False, False):
        shapes.update((name, (out, place.width)) for name, out in zip(place.modules, place.outs))
    if not weights.modules:
        raise CheckpointError(f"The adapter {path} has no factors.")
    if weights.rank > max_rank:
        raise InputError(f"The adapter {path} has rank {weights.rank}, but at most {max_rank} is served.")
    for name, (down, up) in weights.modules.items():
        if name not in shapes:
            raise RefusalError(
                f"The adapter {path} changes {name}, which no linear layer of this {spec.family} model is called; it "
                "is of another model, or changes embeddings or head, which is not served."
            )
        out, width = shapes[name]
        if down.shape[1] != width or len(up) != out:
            raise CheckpointError(
                f"The adapter {path} has {down.shape[1]} inputs and {len(up)} outputs for {name}, but the model has "
                f"{width} and {out}; it is of another model."
            )
        if not (down.isfinite().all() and up.isfinite().all()):
            raise CheckpointError(f"The adapter {path} has numbers in {name} that are not finite.")
    return weights


def interleaved(spec: ModelSpec, weights: LoraWeights) -> bool:
    """Whether queries and keys of this adapter are in pairs: as the family's checkpoints, or as its own file says."""
    return weights.interleaved or FAMILIES[spec.family].interleaved is True
