"""Digest of the weights of a model: two fine-tunes of one size differ in it."""

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from paceline.model.linear import Packing
from paceline.model.spec import ModelSpec


class Fingerprint:
    """SHA-256 over tensors in the order in which a checkpoint gives them, before they are packed: packed layouts
    differ between machines, and some cannot be read back."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, *tensors: Tensor | None) -> None:
        """Tensors of one name; None stands for a part that is not there."""
        self._hash.update(name.encode())
        for tensor in tensors:
            if tensor is None:
                self._hash.update(b"none")
                continue
            self._hash.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1)
            self._hash.update(flat.view(torch.uint8).numpy().data if len(flat) else b"")

    def digest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()


def identity(weights: str, spec: ModelSpec, packing: Packing, known: int | None, interleaved: bool) -> str:
    """Name, 32 hexadecimal digits, of what a model computes: its weights' digest, its shape with every rotation, the
    dtypes of weights, activations and K/V, and which ids may be drawn. The longest text is no part of it."""
    facts = (weights, replace(spec, max_len=0), packing.describe(), known, interleaved)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
