"""Adapters of random numbers in PEFT's layout, to measure and to test with."""

import json
from pathlib import Path
from typing import Any

import torch

from paceline.model.checkpoint import read_config
from paceline.model.lora_places import lora_places


def random_lora(path: Path, model: Path, seed: int = 0, rank: int = 8, size: float = 0.02, **config: Any) -> Path:
    """Write an adapter of all linear layers of a model, whose factors B have this standard deviation; its directory.
    `config`: more for adapter_config.json."""
    from safetensors.torch import save_file

    stream, tensors, targets = torch.Generator().manual_seed(seed), {}, set()
    for place in lora_places(read_config(model), False, False):
        for module, out in zip(place.modules, place.outs):
            targets.add(module.rpartition(".")[2])
            name = f"base_model.model.{module}.lora_"
            tensors[f"{name}A.weight"] = torch.randn(rank, place.width, generator=stream) * place.width**-0.5
            tensors[f"{name}B.weight"] = torch.randn(out, rank, generator=stream) * size
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": sorted(targets)}
    (path / "adapter_config.json").write_text(json.dumps({**facts, **config}))
    return path
