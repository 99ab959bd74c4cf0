"""The rule of all loaders, as a walk: a key or a tensor that changes the arithmetic is used or refused, never dropped.

Each key of a tiny checkpoint's config is given another value, each tensor other numbers. What transformers makes of the
changed checkpoint is the judge: where its logits move, ours move with them, or the load is refused.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.model.load import load_model
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import feed
from tests.tiny import tiny_checkpoint

LENGTH = 24
OTHER_NAMES = {"silu": "gelu_pytorch_tanh", "gelu_pytorch_tanh": "silu", "relu2": "silu", "softmax": "sigmoid",
               "sliding_attention": "full_attention", "full_attention": "sliding_attention"}  # fmt: skip
MODEL_KEYS = ("is_decoder", "add_cross_attention", "cross_attention_hidden_size", "is_encoder_decoder", "pruned_heads",
              "architectures", "model_type", "dtype", "torch_dtype", "per_layer_config")  # fmt: skip
"""Keys by which transformers chooses another class of model, or none: their values are no number of a model."""
WRITTEN_OVER = {"youtu": ("pad_token_id",), "mamba2": ("rescale_prenorm_residual",)}
"""Keys by which transformers writes over weights that it has loaded, by family: zeros in the row of this token, and the
factor of weights that nobody has trained yet."""
KEYS_OF_ALL: tuple[tuple[str, Any], ...] = (
    ("is_causal", False), ("partial_rotary_factor", 0.5), ("rope_theta", 5e5),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0}), ("rope_scaling", {"type": "dynamic", "factor": 4.0}),
)  # fmt: skip
"""Keys that transformers reads in configs of every family, also where a config need not have them."""


@dataclass(frozen=True)
class Walked:
    """What a walk over one family saw."""

    keys: int = 0
    tensors: int = 0
    refused: int = 0
    moved: int = 0


def others(value: Any) -> Iterator[Any]:
    """Other values of the kind of this one."""
    if isinstance(value, bool):
        yield not value
    elif value is None:
        yield from (True, 3, 0.5)
    elif isinstance(value, int):
        yield value + 1 if value < 4 else value // 2
    elif isinstance(value, float):
        yield value * 1.5 + 0.1
    elif isinstance(value, str):
        yield OTHER_NAMES.get(value, value + "x")
    elif isinstance(value, list) and value:
        yield [next(others(item), item) for item in value]


def changes(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every key, also of the rotations, and the config with another value of it."""
    found = []
    for key, value in config.items():
        if key in MODEL_KEYS:
            continue
        if isinstance(value, dict):
            found += [(f"{key}.{name}", config | {key: inner}) for name, inner in changes(value)]
        found += [(key, config | {key: other}) for other in others(value)]
    return found


def ours(path: Path) -> Tensor | None:
    """Our logits; None: refused."""
    try:
        decoder = load_model(path, dtype="float32", cache=False)
    except PacelineError:
        return None
    decoder.allocate(BLOCKS, BLOCK)
    return feed(decoder, text(1, LENGTH), range(LENGTH // BLOCK), BLOCK, [])


@torch.no_grad()
def theirs(path: Path) -> Tensor | str | None:
    """The logits of transformers; None: the weights do not fit; a text: why it makes no such model at all."""
    from transformers import AutoModelForCausalLM

    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        if told["missing_keys"] or told["mismatched_keys"] or told["unexpected_keys"]:
            return None
        logits: Tensor = model.eval()(torch.tensor([text(1, LENGTH)])).logits[0]
        return logits
    except Exception as error:  # whatever its validation, its constructor or its pass raise
        return f"{type(error).__name__}: {error}"


def close(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-3, atol=1e-3))


def walk(path: Path, family: str, share: float, seed: int, **options: Any) -> Walked:
    """A `share` of all keys and tensors of a family's tiny checkpoint, drawn by `seed`. AssertionError names what was
    dropped."""
    stream = random.Random(seed)
    tiny_checkpoint(path, family, vocab=96, layers=3, with_tokenizer=False, **options)
    config, weights = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    before = ours(path)
    assert before is not None, f"{family}: the checkpoint itself is refused"
    keys = tensors = refused = moved = 0
    added = [(f"{key} = {value}", config | {key: value}) for key, value in KEYS_OF_ALL if key not in config]
    for key, changed in [*changes(config), *added]:
        if stream.random() >= share or key in WRITTEN_OVER.get(family, ()):
            continue
        keys += 1
        (path / "config.json").write_text(json.dumps(changed))
        found = ours(path)
        if found is None:
            refused += 1
            continue
        expected = theirs(path)
        moved += not close(found, before)
        if isinstance(expected, str):
            continue
        assert expected is not None, (
            f"{family}: {key} is dropped, though transformers finds the weights of another model"
        )
        assert close(found, expected), f"{family}: {key} is {'dropped' if close(found, before) else 'read otherwise'}"
    (path / "config.json").write_text(json.dumps(config))
    for name in weights:
        if stream.random() >= share:
            continue
        tensors += 1
        save_file(
            {**weights, name: weights[name] + noise(weights[name].shape)}, path / "model.safetensors", {"format": "pt"}
        )
        if close(ours(path), before):  # an expert that no token of the text uses says nothing there either
            expected = theirs(path)
            assert isinstance(expected, Tensor) and close(expected, before), f"{family}: the tensor {name} is dropped"
    for name, it in (
        (f"{next(iter(weights))}_of_another", torch.ones(2)),
        ("model.layers.0.self_attn.k_proj.more", torch.ones(2)),
    ):
        save_file({**weights, name: it}, path / "model.safetensors", {"format": "pt"})
        assert ours(path) is None, f"{family}: the tensor {name}, which has no place, is dropped"
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return Walked(keys, tensors, refused, moved)


def noise(shape: torch.Size) -> Tensor:
    """Numbers of which no norm takes the mean out."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
