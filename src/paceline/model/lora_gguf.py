"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

general.type "adapter", adapter.type "lora", adapter.lora.alpha
<tensor>.lora_a [rank, in], <tensor>.lora_b [out, rank]       scale alpha / rank; of experts, one behind the other
"""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from paceline.core.errors import CheckpointError, RefusalError
from paceline.model.families import FAMILIES
from paceline.model.gguf.architectures import ARCHITECTURES
from paceline.model.gguf.header import TensorEntry
from paceline.model.gguf.tensors import load_header, mapped, names_of
from paceline.model.gguf.types import FLOAT_KINDS
from paceline.model.lora import LoraPair, LoraWeights, fused
from paceline.model.lora_places import LoraPlace, checkpoint_form, lora_places, value_turns
from paceline.model.packed import by_kind
from paceline.model.spec import Delta, ModelSpec

GGUF_ADAPTER_KEYS = ("adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix")
"""What of an adapter's metadata is used, or says nothing of the arithmetic."""
GGUF_FAMILIES = {
    "llama": ("llama", "mistral", "ministral", "mixtral"),
    "mistral3": ("mistral", "ministral", "ministral3"),
    "deepseek2": ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"),
}
"""Families of an architecture that stands for several."""
EXPERT_NUMBER = re.compile(r"(?<=\.experts\.)\d+\.")


def factor(entry: TensorEntry, path: Path) -> torch.Tensor:
    """One factor, as it is stored. RefusalError for one that is quantised."""
    if entry.kind not in FLOAT_KINDS:
        raise RefusalError(f"{path} has {entry.name} as {entry.kind.name}; convert the adapter to f16, bf16 or f32.")
    kept = torch.frombuffer(mapped(entry.file), dtype=torch.uint8, count=entry.bytes, offset=entry.offset)
    return kept.clone().view(FLOAT_KINDS[entry.kind]).view(entry.shape)


def read_gguf_lora(path: Path, spec: ModelSpec) -> LoraWeights:
    """An adapter's weights by the names of the Hugging Face checkpoint. CheckpointError or RefusalError."""
    header = load_header(path)
    facts = header.metadata
    if facts.get("general.type") != "adapter" or facts.get("adapter.type") != "lora":
        raise RefusalError(f"{path} is a GGUF file, but no adapter (LoRA); give one, or a directory of PEFT's.")
    architecture, alpha = facts.get("general.architecture"), facts.get("adapter.lora.alpha")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise RefusalError(f"{path} is for the architecture {architecture!r}, which is not served.")
    theirs = GGUF_FAMILIES.get(architecture, (ARCHITECTURES[architecture].model_type,))
    if spec.family not in theirs:
        raise RefusalError(
            f"{path} is for a model of the architecture {architecture!r}, but this one is of the family "
            f"{spec.family!r}; it is of another model."
        )
    if spec.multipliers is not None:
        raise RefusalError(
            f"{path} may have {spec.family}'s factors in its numbers, which is not served; give a directory of PEFT's."
        )
    odd = next((key for key in facts if key.startswith("adapter.") and key not in GGUF_ADAPTER_KEYS), None)
    if odd is not None:
        raise RefusalError(f"{path} has {odd}, which is not served and may change what is computed; merge it.")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1e9:
        raise CheckpointError(f"{path} has the alpha {alpha!r}, but a positive number is expected.")
    digest, modules = hashlib.sha256(b"gguf"), dict[str, LoraPair]()
    stems = stems_of(architecture, spec)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, entry in header.tensors.items():
        stem, _, kind = name.rpartition(".")
        stem = stem.removesuffix(".weight")
        if kind not in ("lora_a", "lora_b") or stem not in stems:
            raise RefusalError(f"{path} has the tensor {name}, which is no linear layer's of this model; merge it.")
        parts.setdefault(stem, {})[kind] = factor(entry, path)
    for stem, pair in parts.items():
        if len(pair) < 2:
            raise CheckpointError(f"{path} has only one factor of {stem}; its file is cut.")
        down, up, names = pair["lora_a"].float(), pair["lora_b"].float(), stems[stem]
        stacked = len(names) > 1
        if (
            down.dim() != 2 + stacked or up.dim() != down.dim() or down.shape[-2] != up.shape[-1]
            or not up.shape[-1] or (stacked and not len(down) == len(up) == len(names))
        ):  # fmt: skip
            raise CheckpointError(f"{path} has factors {list(down.shape)} and {list(up.shape)} of {stem}.")
        wide = up * (alpha / up.shape[-1])
        for module, *of in zip(names, *((down, wide) if stacked else (down[None], wide[None]))):
            modules[module] = LoraPair(*(part.contiguous() for part in of))
    modules = as_checkpoint(modules, spec, ARCHITECTURES[architecture].tiled)
    for module, made in sorted(modules.items()):
        digest.update(f"{module}\0{list(made.down.shape)}{list(made.up.shape)}".encode())
        for part in made:
            digest.update(part.numpy().tobytes())
    rank = max((len(pair.down) for pair in modules.values()), default=0)
    return LoraWeights(modules, digest.hexdigest()[:32], rank, ARCHITECTURES[architecture].interleaved)


def stems_of(architecture: str, spec: ModelSpec) -> dict[str, list[str]]:
    """The modules of each tensor of a file, without `.weight`: one, or those of all experts in turn."""
    known, found = names_of(architecture, len(spec.layers)), dict[str, list[str]]()
    for place in lora_places(spec, False, False):
        for module in place.modules:
            theirs = known.get(module) or known.get(EXPERT_NUMBER.sub("", module), module)
            found.setdefault(theirs, []).append(module)
    for apart in split_projections(spec):
        found.update((known[module], [module]) for module in apart if module in known)
    return found


def split_projections(spec: ModelSpec) -> list[tuple[str, str]]:
    """Input projections of delta rules that such files may have apart, where checkpoints have them in one: gates, and
    queries, keys and values."""
    names = FAMILIES[spec.family].names
    return [
        (f"{at}{names.delta_inner[0]}", f"{at}{names.delta_inner[1]}")
        for index, layer in enumerate(spec.layers)
        if isinstance(layer.mixer, Delta) and checkpoint_form(spec, layer.mixer).fused
        for at in (names.layer.format(index) + names.delta,)
    ]


def as_checkpoint(found: Mapping[str, LoraPair], spec: ModelSpec, tiled: bool) -> dict[str, LoraPair]:
    """The factors of delta rules in the order of the family's checkpoints. `tiled`: value heads are in turns of the key
    heads."""
    out, names = dict(found), FAMILIES[spec.family].names
    forms = [(i, layer.mixer) for i, layer in enumerate(spec.layers) if isinstance(layer.mixer, Delta)]
    for index, form in forms:
        at, back = names.layer.format(index) + names.delta, partial(value_turns, form, back=True)
        keys, plain = form.channels - form.width, checkpoint_form(spec, form)
        for name in names.inner(plain) if tiled else ():
            if (pair := out.get(at + name)) is not None:
                first = keys if name == names.delta_inner[1] else 0
                out[at + name] = pair._replace(up=torch.cat((pair.up[:first], back(pair.up[first:]))))
        if tiled and (pair := out.get(f"{at}out_proj")) is not None:
            out[f"{at}out_proj"] = pair._replace(down=back(pair.down.T).T.contiguous())
        apart = (f"{at}{names.delta_inner[0]}", f"{at}{names.delta_inner[1]}")
        mine = {name: pair for name in apart if plain.fused and (pair := out.pop(name, None)) is not None}
        both = fused(LoraPlace(index, "", apart, (form.width, form.channels), 0), LoraWeights(mine, "", 0))
        if both is not None:
            place = by_kind(torch.arange(sum(plain.inner))[:, None], plain).flatten()[: len(both.up)]
            up = torch.empty_like(both.up).index_copy(0, place, both.up)
            out[at + names.inner(plain)[0]] = both._replace(up=up)
    return out
