"""Models that need no download: random weights, made where they are computed with."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.attend import quickest
from paceline.attend.device import tensors_on
from paceline.model.checkpoint import read_config
from paceline.model.decoder import Decoder
from paceline.model.families import FAMILIES
from paceline.model.fingerprint import Fingerprint
from paceline.model.gpu.furnish import furnish
from paceline.model.linear import on_gpu
from paceline.model.loader import Loader

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip
TOY: dict[str, Any] = {
    **LLAMA_8B, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 64,
}  # fmt: skip


class RandomTensors:
    """A checkpoint that has every tensor that is asked for."""

    interleaved: bool | None = None

    def __init__(self, device: torch.device) -> None:
        self.place: dict[str, str] = {}
        self.device = device
        self.stream = torch.Generator(device).manual_seed(0)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=self.device, dtype=dtype)
        made = torch.empty(shape, device=self.device, dtype=dtype or torch.float32)
        return made.normal_(0, shape[-1] ** -0.5, generator=self.stream)

    def let_go(self) -> None:
        pass


class NoFingerprint(Fingerprint):
    """Names in place of weights."""

    def add(self, name: str, *tensors: Tensor | None) -> None:
        self.parts.append(name)


@contextmanager
def config(parts: dict[str, Any]) -> Iterator[Path]:
    """A directory with this configuration and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(parts))
        yield Path(folder)


def decoder(parts: dict[str, Any], quantize: str | None, dtype: torch.dtype) -> Decoder:
    """A decoder of random weights on the GPU."""
    device = tensors_on("cuda")
    with config(parts) as folder:
        spec = read_config(folder)
    packing = on_gpu(quantize, dtype, "cuda")
    tensors: Any = RandomTensors(device)
    loader = Loader(spec, FAMILIES["llama"].names, tensors, packing, device)
    loader.fingerprint = NoFingerprint()
    with torch.inference_mode():
        made = Decoder(spec, loader.weights(), packing, quickest("cuda", dtype))
        furnish(made)
    return made
