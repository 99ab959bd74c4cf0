"""Digest of the weights of a model: two fine-tunes of one size differ in it."""

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from paceline.model.linear import Packing
from paceline.model.spec import ModelSpec


class Fingerprint:
    """SHA-256 of each tensor in the order in which a checkpoint gives them, before they are packed: packed layouts
    differ between machines, and some cannot be read back."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        """Digest of each, with its name."""

    def add(self, name: str, *tensors: Tensor | None) -> None:
        """Tensors of one name; None stands for a part that is not there."""
        part = hashlib.sha256(name.encode())
        for tensor in tensors:
            if tensor is None:
                part.update(b"none")
                continue
            part.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1)
            part.update(flat.view(torch.uint8).numpy().data if len(flat) else b"")
        self.parts.append(part.hexdigest())

    def digest(self) -> str:
        """64 hexadecimal digits."""
        return self.since(0)

    def since(self, count: int, *more: object) -> str:
        """That of all but the first `count` parts, and of what else there is to say."""
        return hashlib.sha256(repr((self.parts[count:], *more)).encode()).hexdigest()


def identity(weights: str, spec: ModelSpec, packing: Packing, known: int | None, interleaved: bool) -> str:
    """Name, 32 hexadecimal digits, of what a model computes: its weights' digest, its shape with every rotation, the
    dtypes of weights, activations and K/V, and which ids may be drawn. The longest text is no part of it."""
    facts = (weights, replace(spec, max_len=0), packing.describe(), known, interleaved)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
