"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

general.type "adapter", adapter.type "lora", adapter.lora.alpha
<tensor>.lora_a [rank, in], <tensor>.lora_b [out, rank]       scale alpha / rank
"""

import hashlib
from pathlib import Path

import torch

from paceline.core.errors import CheckpointError, RefusalError
from paceline.model.gguf.architectures import ARCHITECTURES
from paceline.model.gguf.header import TensorEntry
from paceline.model.gguf.tensors import load_header, mapped, names_of
from paceline.model.gguf.types import FLOAT_KINDS
from paceline.model.lora import LoraPair, LoraWeights
from paceline.model.lora_places import lora_places
from paceline.model.spec import ModelSpec

GGUF_ADAPTER_KEYS = ("adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix")
"""What of an adapter's metadata is used, or says nothing of the arithmetic."""
LLAMA_LIKE = ("llama", "mistral", "ministral", "mixtral")
"""Families that GGUF files call `llama`."""


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
    theirs = LLAMA_LIKE if architecture == "llama" else (ARCHITECTURES[architecture].model_type,)
    if spec.family not in theirs:
        raise RefusalError(
            f"{path} is for a model of the architecture {architecture!r}, but this one is of the family "
            f"{spec.family!r}; it is of another model."
        )
    odd = next((key for key in facts if key.startswith("adapter.") and key not in GGUF_ADAPTER_KEYS), None)
    if odd is not None:
        raise RefusalError(f"{path} has {odd}, which is not served and may change what is computed; merge it.")
    if not isinstance(alpha, int | float) or not 0 < alpha < 1e9:
        raise CheckpointError(f"{path} has the alpha {alpha!r}, but a positive number is expected.")
    known = names_of(architecture, len(spec.layers))
    ours = {known.get(m, m): m for place in lora_places(spec, False, False) for m in place.modules}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, entry in header.tensors.items():
        stem, _, kind = name.rpartition(".")
        stem = stem.removesuffix(".weight")
        if kind not in ("lora_a", "lora_b") or stem not in ours:
            raise RefusalError(f"{path} has the tensor {name}, which is no linear layer's of this model; merge it.")
        parts.setdefault(ours[stem], {})[kind] = factor(entry, path)
    digest, modules = hashlib.sha256(b"gguf"), dict[str, LoraPair]()
    for module, pair in sorted(parts.items()):
        if len(pair) < 2:
            raise CheckpointError(f"{path} has only one factor of {module}; its file is cut.")
        down, up = pair["lora_a"].float(), pair["lora_b"].float()
        if down.dim() != 2 or up.dim() != 2 or len(down) != up.shape[1] or not len(down):
            raise CheckpointError(f"{path} has factors {list(down.shape)} and {list(up.shape)} of {module}.")
        made = LoraPair(down.contiguous(), (up * (alpha / len(down))).contiguous())
        digest.update(f"{module}\0{list(down.shape)}{list(up.shape)}".encode())
        for part in made:
            digest.update(part.numpy().tobytes())
        modules[module] = made
    rank = max((len(pair.down) for pair in modules.values()), default=0)
    return LoraWeights(modules, digest.hexdigest()[:32], rank, ARCHITECTURES[architecture].interleaved)
