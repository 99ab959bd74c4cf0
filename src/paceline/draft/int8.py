"""Weights of a head in int8 on disk."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

SCALE_SUFFIX = "_scale"
"""Suffix of the name of an int8 matrix's scales [outputs, 1]."""


def shrink(path: Path) -> int:
    """Rewrite the matrices of a head's directory in int8, with a scale for each output. Returns the new size of the
    file in bytes. The head then serves the rounded weights, whatever form the engine packs them in."""
    from safetensors.torch import load_file, save_file

    out, file = dict[str, Tensor](), path / "model.safetensors"
    for name, part in load_file(file).items():
        if part.is_floating_point() and part.dim() == 2:
            scale = part.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            out[name], out[name + SCALE_SUFFIX] = (part.float() / scale).round().to(torch.int8), scale
        else:
            out[name] = part
    save_file(out, file)
    return file.stat().st_size


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in float32, dequantized where the file stores int8 with a scale (`shrink`)."""
    out = dict[str, Tensor]()
    for name, part in tensors.items():
        if not name.endswith(SCALE_SUFFIX):
            scale = tensors.get(name + SCALE_SUFFIX)
            out[name] = part if scale is None else part.float() * scale
    return out
