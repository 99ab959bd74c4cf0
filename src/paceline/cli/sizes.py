"""What `paceline info` says of a config.json without weights: whether the model is served, and what it would take."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.core.errors import RefusalError

if TYPE_CHECKING:
    from paceline.model.spec import ModelSpec

FORMS: dict[str, str | None] = {"bfloat16": None, "int8": "int8", "int4": "int4"}
"""Weights' forms, and what `quantize` calls them."""


def config_alone(model: str) -> Path | None:
    """The directory, if it holds a config.json and no weights."""
    path = Path(model).expanduser()
    weights = path.is_dir() and any(found for end in ("safetensors", "gguf") for found in path.glob(f"*.{end}"))
    return path if (path / "config.json").is_file() and not weights else None


def sizes(path: Path) -> dict[str, Any]:
    """By name: shape, weights, and bytes of weights in each form that this machine has for it. Raises CheckpointError
    for what is not served."""
    import torch

    from paceline.model.checkpoint import read_config
    from paceline.model.decoder import kv_bytes
    from paceline.model.footprint import absorbed_numbers, footprint, layer_matrices, token_numbers
    from paceline.model.load import form, suited

    spec = read_config(path)
    taken: dict[str, int | None] = {}
    for name, quantize in FORMS.items():
        try:
            packing = suited(form("bfloat16", quantize, "cpu"), spec, torch.device("cpu"))
            taken[name] = footprint(spec, packing, 2, 2, 1).weights
        except RefusalError:
            taken[name] = None
    tables = spec.vocab * spec.hidden * (1 if spec.tied else 2) + token_numbers(spec) + absorbed_numbers(spec)
    tables -= repeated_gates(spec)
    each = [[o * i for o, i in layer_matrices(spec, layer)] for layer in spec.layers]
    return {
        "family": spec.family,
        "layers": len(spec.layers),
        "context": spec.max_len,
        "parameters": sum(map(sum, each)) + tables,
        "active_parameters": sum(map(sum, each)) - idle(spec) + tables,
        "weight_bytes": taken,
        "kv_bytes_per_token": kv_bytes(spec, form("bfloat16", None, "cpu")),
    }


def repeated_gates(spec: "ModelSpec") -> int:
    """Weights of gates that a checkpoint has once for a head, and memory once for each of its numbers."""
    many = len(spec.attentions) * spec.heads * (spec.head_dim - 1) * spec.hidden
    return many if spec.gated_attention and spec.head_gates else 0


def idle(spec: "ModelSpec") -> int:
    """Weights of experts that a token does not use."""
    return sum((it.count - it.active) * 3 * spec.hidden * it.width for it in spec.mixtures)


def say_sizes(path: Path, *, as_json: bool) -> None:
    """Print the sizes of a model."""
    found = sizes(path)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from paceline.cli.info import size

    whole, active = (found[name] / 1e9 for name in ("parameters", "active_parameters"))
    typer.echo(f"{path} holds a config and no weights. {found['family']} is served: {found['layers']} layers, "
               f"{whole:.2f} billion parameters, {active:.2f} of them for a token.")  # fmt: skip
    for name, taken in found["weight_bytes"].items():
        typer.echo(f"  {name}: {'not served here' if taken is None else size(taken)}")
    typer.echo(f"  K/V: {found['kv_bytes_per_token']:,} bytes a token, context {found['context']:,}")
