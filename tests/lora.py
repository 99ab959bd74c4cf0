"""Adapters of tiny models, and what spoils them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from paceline.bench.random_lora import random_lora


def make_adapter(path: Path, model: Path, seed: int = 0, rank: int = 4, **config: Any) -> Path:
    """A random adapter that changes what a tiny model says."""
    return random_lora(path, model, seed, rank, 0.2, **{"lora_alpha": 2 * rank, **config})


def merge(path: Path, model: Path, adapter: Path) -> Path:
    """The model with an adapter in its weights, by PEFT's formula."""
    path.mkdir(parents=True)
    for file in model.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(model / "model.safetensors")
    config, factors = (
        json.loads((adapter / "adapter_config.json").read_text()),
        load_file(adapter / "adapter_model.safetensors"),
    )
    for name, down in factors.items():
        if ".lora_A." in name:
            weight = name.removeprefix("base_model.model.").replace("lora_A.", "")
            delta = factors[name.replace("lora_A", "lora_B")] @ down
            tensors[weight] = tensors[weight] + config["lora_alpha"] / config["r"] * delta
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def configure(path: Path, **changes: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change(path: Path, how: Callable[[torch.Tensor], torch.Tensor | None], *parts: str) -> None:
    """Change the first tensor, or these factors of its module."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    first = min(tensors)
    for name in [re.sub(r"lora_[AB]", f"lora_{part}", first) for part in parts] or [first]:
        new = how(tensors.pop(name))
        tensors |= {} if new is None else {name: new}
    save_file(tensors, file)


def shallow(path: Path) -> None:
    """Leave the tensors of the first layer."""
    file = path / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if ".layers.0." in name}, file)


def add(path: Path, name: str) -> None:
    file = path / "adapter_model.safetensors"
    save_file({**load_file(file), name: torch.zeros(2, 2)}, file)
