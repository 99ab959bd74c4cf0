"""Bounds of the numbers in a head's config.json and the shapes of its weights, checked before use."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CheckpointError
from paceline.model import checks

if TYPE_CHECKING:
    from torch import Tensor

MOST_OF_HEADS: dict[str, int] = {
    "width": 2**20, "target_width": 2**20, "vocab": 2**24, "draft_vocab": 2**24, "max_len": 2**26, "depth": 64,
    "layers": 64, "heads": 4096, "kv_heads": 4096, "head_dim": checks.MAX_HEAD_SIZE, "ffn": 2**22,
}  # fmt: skip
"""Largest value of each size; others are at most 2^26."""


def check_sizes(sizes: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a whole number beyond the bounds, or a fraction that is not finite or below 0. Values
    of other types are skipped."""
    for name, value in sizes.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            checks.whole(name, value, 0, MOST_OF_HEADS.get(name, 2**26))
        elif isinstance(value, float) and checks.number(name, value) < 0:
            checks.refuse(name, value, "0 or more")


def check_shapes(method: str, sizes: Mapping[str, tuple[int, ...]], weights: "Mapping[str, Tensor]") -> None:
    """Raise CheckpointError for a weight that is missing or has another shape."""
    for name, size in sizes.items():
        if name not in weights or tuple(weights[name].shape) != size:
            has = f"has the shape {tuple(weights[name].shape)}" if name in weights else "is missing"
            raise CheckpointError(f"Weight {name} of the {method} head {has}, but {size} is expected.")


def sketched(sizes: Mapping[str, tuple[int, ...]], seed: int) -> "dict[str, Tensor]":
    """Random weights of these shapes, for a toy."""
    import torch

    stream = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=stream) for name, size in sizes.items()}


def rates_of(value: Any) -> tuple[tuple[float, ...], ...]:
    """`accuracy`: a chance for each rank of each depth. Raises CheckpointError."""
    try:
        rates = tuple(tuple(float(rate) for rate in row) for row in value)
    except (TypeError, ValueError, OverflowError):
        rates = ((-1.0,),)
    if not all(0 <= rate <= 1 for row in rates for rate in row):
        raise CheckpointError(
            "The config of the head has an accuracy that is not a list of lists of chances from 0 to 1; restore it, or "
            "train the head again."
        )
    return rates


def verifier_of(config: Mapping[str, Any]) -> str:
    """The model that a head's config says it was made for; empty where it says nothing usable."""
    found: Any = config
    for key in ("speculators_config", "verifier", "name_or_path"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""
