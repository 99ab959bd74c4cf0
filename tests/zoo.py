"""Fine-tunes of tiny models, for every test that needs some."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_checkpoint

LAYERS = 4


def tuned(
    path: Path, layers: Sequence[int], seed: int, family: str = "llama", *, by: float = 0.5, ends: bool = False,
    **config: Any,
) -> Path:  # fmt: skip
    """The tiny model of a family with other weights in these layers; `ends`: in embedding and last norm, too."""
    tiny_checkpoint(path, family, **{"num_hidden_layers": LAYERS, "hidden": 64, **config})
    weights, stream = load_file(path / "model.safetensors"), torch.Generator().manual_seed(seed)
    for name, tensor in weights.items():
        if any(f"layers.{layer}." in name for layer in layers) or (ends and not name.startswith("model.layers")):
            noise = torch.randn(tensor.shape, generator=stream) * tensor.float().abs().mean()
            weights[name] = (tensor + by * noise).to(tensor.dtype)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def family_of_tunes(at: Path, family: str = "llama", **config: Any) -> dict[str, Path]:
    """{base, a, b, c}: a changes the upper half, b one layer and both ends, c all layers."""
    base = tuned(at / "base", (), 0, family, **config)
    return {
        "base": base,
        "a": tuned(at / "a", range(LAYERS // 2, LAYERS), 1, family, **config),
        "b": tuned(at / "b", (1,), 2, family, ends=True, **config),
        "c": tuned(at / "c", range(LAYERS), 3, family, **config),
    }
