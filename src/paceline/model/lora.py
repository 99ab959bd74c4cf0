"""Adapters of low rank (LoRA; Hu et al. 2021): y = W x + s B (A x), as PEFT's directories hold them.

    adapter_config.json             rank, alpha, patterns
    adapter_model.safetensors       <module>.lora_A.weight [rank, in], <module>.lora_B.weight [out, rank]; or .bin

What would change the arithmetic and is not computed here (DoRA, biases, trained embeddings) is refused by name.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.model.families import FAMILIES
from paceline.model.lora_config import by_pattern, layer_of, left_out, read_lora_config, tails
from paceline.model.lora_experts import unmatched, unstacked
from paceline.model.lora_files import check_size, read_lora_tensors
from paceline.model.lora_places import LoraPlace, lora_places
from paceline.model.spec import ModelSpec
from paceline.model.tensor_names import TEXT_PREFIXES, of_authors, of_text, renamed

log = logging.getLogger("paceline")
MAX_LORA_RANK = 256
"""Largest rank of a module."""
MAX_LORA_NORM = 1e6
"""Largest product of the Frobenius norms of a module's factors: below it, activations stay finite in bfloat16."""
PEFT_PREFIX = "base_model.model."
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


def fused(place: LoraPlace, weights: LoraWeights) -> LoraPair | None:
    """The factors of a whole matrix: those of its modules one below the other, each for its own outputs. None where
    the adapter leaves it alone."""
    found = [weights.modules.get(name) for name in place.modules]
    if not any(found):
        return None
    down = torch.cat([pair.down for pair in found if pair is not None])
    if place.inputs is not None:
        down = place.inputs(down.T).T
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
    shapes = module_shapes(spec)
    values, factors = max_rank * sum(map(sum, shapes.values())), 2 * len(shapes)
    if path.is_file():
        from paceline.model.lora_gguf import read_gguf_lora

        check_size(path, values, factors)
        return checked(read_gguf_lora(path, spec), path, spec, max_rank)
    config = read_lora_config(path)
    if spec.multipliers is not None and spec.multipliers.folded:
        raise RefusalError(
            f"The adapter {path} lacks factors that this GGUF file has in its weights; serve its checkpoint in Hugging "
            "Face layout, or merge it."
        )
    tensors = read_lora_tensors(path, values, factors)
    named = as_trained(tensors, spec.family)
    made, named = _assembled(path, config, tensors, spec, shapes, named)
    weights = checked(made, path, spec, max_rank)
    _check_complete(path, config, weights, spec, named)
    for module in weights.modules:
        if (key := left_out(config, named(module))) is not None:  # PEFT would compute without them
            raise CheckpointError(
                f"The adapter {path} has factors of {module}, which {key} of its config leaves out; mend the config, "
                "or save the adapter again."
            )
    return weights


def module_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of each linear layer, by its name in the checkpoint's layout."""
    shapes: dict[str, tuple[int, int]] = {}
    for place in lora_places(spec, False, False):
        shapes.update((name, (out, place.width)) for name, out in zip(place.modules, place.outs))
    return shapes


def as_trained(names: Iterable[str], kind: str) -> Callable[[str], str]:
    """What the model's modules are called in an adapter with these tensors, and in the patterns of its config: one that
    was trained on a model that reads pictures, too, has a longer path, and one on its authors' code their names."""
    plain = [name.removeprefix(PEFT_PREFIX) for name in names]
    if any(renamed(name, kind) != name for name in plain):
        return lambda module: of_authors(module, kind)
    found = next((it for it in TEXT_PREFIXES if any(name.startswith(it[0]) for name in plain)), ("", ""))
    return lambda module: found[0] + module.removeprefix(found[1]) if module.startswith(found[1]) else module


def _check_shape(path: Path, module: str, down: Tensor, up: Tensor, shape: tuple[int, int]) -> None:
    """CheckpointError for factors of another model."""
    if (len(up), down.shape[1]) != shape:
        raise CheckpointError(
            f"The adapter {path} has {down.shape[1]} inputs and {len(up)} outputs for {module}, but the model has "
            f"{shape[1]} and {shape[0]}; it is of another model."
        )


def _unknown(path: Path, module: str, spec: ModelSpec) -> RefusalError:
    """Error of a module that the model does not have."""
    return RefusalError(
        f"The adapter {path} changes {module}, which no linear layer of this {spec.family} model is called; it is of "
        "another model, or changes embeddings or head, which is not served."
    )


def _assembled(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], spec: ModelSpec,
    shapes: Mapping[str, tuple[int, int]], plain: Callable[[str], str],
) -> tuple[LoraWeights, Callable[[str], str]]:  # fmt: skip
    """The weights, and what modules are called in the config, from what those outside of experts are."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        ours = of_text(name.removeprefix(PEFT_PREFIX))
        if ours is None:
            raise RefusalError(
                f"The adapter {path} changes {name}, of the part that reads pictures or hears, which is not served; "
                "train one of the text alone."
            )
        match = PART_NAME.fullmatch(renamed(ours, spec.family))
        if match is None or not isinstance(tensor, Tensor):
            raise RefusalError(
                f"The adapter {path} has the tensor {name}, which is none of a linear layer's; embeddings, heads and "
                "biases are not served. Merge it into the model."
            )
        if not tensor.is_floating_point():
            raise CheckpointError(f"The adapter {path} has {name} as {tensor.dtype}; save it in a floating-point type.")
        if match[2] in parts.setdefault(match[1], {}):
            raise CheckpointError(
                f"The adapter {path} has factor {match[2]} of {match[1]} under two names; save one adapter alone."
            )
        parts[match[1]][match[2]] = tensor
    parts, experts = unstacked(parts, spec)

    def named(module: str) -> str:
        return plain(experts.get(module, module))

    digest, modules = hashlib.sha256(), dict[str, LoraPair]()
    if FAMILIES[spec.family].names.layer.startswith("backbone."):  # as checkpoints call it, and transformers may not
        parts = {re.sub(r"^model\.(?=layers\.)", "backbone.", module): pair for module, pair in parts.items()}
    for module, pair in sorted(parts.items()):
        if len(pair) < 2:
            raise CheckpointError(f"The adapter {path} has only one factor of {module}; its file is cut.")
        down, up = pair["A"], pair["B"]
        if down.dim() != 2 or up.dim() != 2:
            raise RefusalError(f"The adapter {path} changes {module}, which is no linear layer; merge it.")
        if module not in shapes:  # patterns are tried on the model's own names alone
            raise _unknown(path, module, spec)
        rank = by_pattern(config, "rank_pattern", named(module), config["r"])
        if len(down) != rank or up.shape[1] != rank or not rank:
            raise CheckpointError(
                f"The adapter {path} has factors {list(down.shape)} and {list(up.shape)} of {module}, but its config "
                f"says rank {rank:g}; both must be the same number above 0."
            )
        _check_shape(path, module, down, up, shapes[module])
        alpha = by_pattern(config, "alpha_pattern", named(module), config["lora_alpha"])
        scale = alpha / (sqrt(rank) if config.get("use_rslora") else rank)
        digest.update(f"{module}\0{scale!r}\0{list(down.shape)}{list(up.shape)}".encode())
        wide = LoraPair(down.float().contiguous(), (up.float() * scale).contiguous())
        for part in wide:
            digest.update(part.numpy().tobytes())
        modules[module] = wide
    return LoraWeights(modules, digest.hexdigest()[:32], max((len(p.down) for p in modules.values()), default=0)), named


def _check_complete(
    path: Path, config: Mapping[str, Any], weights: LoraWeights, spec: ModelSpec, named: Callable[[str], str]
) -> None:
    """CheckpointError where a module that the config names has no factors: the file is cut, or of another model. Where
    transformers holds routers and experts in no linear layers of their own, PEFT leaves all of them out."""
    places = [(kind_of(place), name) for place in lora_places(spec, False, False) for name in place.modules]
    kinds = {"", *(kind for kind, name in places if name in weights.modules)}
    targets, names = config.get("target_modules"), [name for kind, name in places if kind in kinds]
    if isinstance(targets, frozenset) and (
        other := targets.difference(tail for _, name in places for tail in tails(named(name)))
    ):
        raise RefusalError(
            f"The adapter {path} is for modules {min(other)!r}, which no linear layer of this {spec.family} model is "
            "called; it is of another model, or changes embeddings or head, which is not served."
        )
    if (lacking := unmatched(config, map(named, weights.modules))) is not None:
        raise CheckpointError(f"The adapter {path} lacks the factors of {lacking}; its file is cut.")
    missing = [name for name in names if name not in weights.modules and left_out(config, named(name)) is None]
    depth = 1 + max((layer_of(name) for name in weights.modules), default=-1)
    if missing and depth < len(spec.layers) and all(layer_of(name) >= depth for name in missing):
        raise RefusalError(
            f"The adapter {path} is for a model of {depth} layers, but this one has {len(spec.layers)}; it is of "
            "another model."
        )
    if missing:
        raise CheckpointError(f"The adapter {path} lacks the factors of {missing[0]}; its file is cut.")


def kind_of(place: LoraPlace) -> str:
    """What of a mixture a matrix belongs to: its routers, or its experts; else nothing."""
    return next((kind for kind in ("ffn.router", "ffn.experts.") if place.matrix.startswith(kind)), "")


def checked(weights: LoraWeights, path: Path, spec: ModelSpec, max_rank: int = MAX_LORA_RANK) -> LoraWeights:
    """Checked weights. CheckpointError where a module is not one of the model, or does not fit it."""
    shapes = module_shapes(spec)
    if not weights.modules:
        raise CheckpointError(f"The adapter {path} has no factors.")
    if weights.rank > max_rank:
        raise InputError(f"The adapter {path} has rank {weights.rank}, but at most {max_rank} is served.")
    for name, (down, up) in weights.modules.items():
        if name not in shapes:
            raise _unknown(path, name, spec)
        _check_shape(path, name, down, up, shapes[name])
        if not (down.isfinite().all() and up.isfinite().all()):
            raise CheckpointError(f"The adapter {path} has numbers in {name} that are not finite.")
        if down.norm() * up.norm() > MAX_LORA_NORM:
            raise CheckpointError(
                f"The adapter {path} has numbers in {name} that are far too large: the norm of its change is up to "
                f"{float(down.norm() * up.norm()):.0e}, but at most {MAX_LORA_NORM:.0e} is expected; it is damaged."
            )
    return weights


def interleaved(spec: ModelSpec, weights: LoraWeights) -> bool:
    """Whether queries and keys of this adapter are in pairs: as the family's checkpoints, or as its own file says."""
    return weights.interleaved or FAMILIES[spec.family].interleaved is True
