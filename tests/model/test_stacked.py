"""Experts that lie in one tensor: whatever changes the text is used or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.load import load_model
from tests.model.gguf.files import write_gguf
from tests.oracle.walk import close, ours
from tests.tiny import tiny_checkpoint

GATE_UP, DOWN = (f"model.layers.0.mlp.experts.{name}_proj" for name in ("gate_up", "down"))


def in_one(path: Path, width: int) -> dict[str, Tensor]:
    """A tiny Qwen 3.5 mixture of one layer, its experts in one tensor each."""
    tiny_checkpoint(
        path, "qwen3_5_moe_text", vocab=96, layers=1, with_tokenizer=False, moe_intermediate_size=width,
        layer_types=["full_attention"],
    )  # fmt: skip
    weights = load_file(path / "model.safetensors")

    def take(index: int, part: str) -> Tensor:
        return weights.pop(f"model.layers.0.mlp.experts.{index}.{part}_proj.weight")

    pairs = [torch.cat((take(i, "gate"), take(i, "up"))) for i in range(4)]
    downs = [take(i, "down") for i in range(4)]
    return {**weights, GATE_UP: torch.stack(pairs), DOWN: torch.stack(downs)}


def put(path: Path, weights: dict[str, Tensor]) -> None:
    save_file(weights, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("width", [16, 24, 32])
def test_transposed_experts(width: int, tmp_path: Path) -> None:
    """Of 32 hidden numbers: square pairs, none, square matrices behind them."""
    weights = in_one(tmp_path, width)
    before = ours(tmp_path)
    put(tmp_path, weights)
    assert before is not None and close(ours(tmp_path), before)
    put(tmp_path, weights | {name: weights[name].transpose(1, 2).contiguous() for name in (GATE_UP, DOWN)})
    assert close(ours(tmp_path), before)


def test_what_would_be_dropped(tmp_path: Path) -> None:
    weights = in_one(tmp_path, 24)
    changed = {
        "expert 4": {name: torch.cat((weights[name], weights[name][:1])) for name in (GATE_UP, DOWN)},
        "no expert 2": {name: weights[name][:2] for name in (GATE_UP, DOWN)},
        "float8_e4m3fn": {DOWN: weights[DOWN].to(torch.float8_e4m3fn)},
        "int8": {GATE_UP: (20 * weights[GATE_UP]).to(torch.int8)},
        "both": {"model.layers.0.mlp.experts.1.up_proj.weight": torch.ones(24, 32)},
    }
    for said, others in changed.items():
        put(tmp_path, weights | others)
        with pytest.raises(CheckpointError, match=said):
            load_model(tmp_path, dtype="float32", cache=False)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("minimax_m2", {"scoring_func": "softmax"}),
        ("minimax_m2", {"routed_scaling_factor": 3.0}),
        ("sarvam_moe", {"score_function": "softmax"}),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}),
        ("qwen3_5_text", {"output_gate_type": "sigmoid"}),
    ],
)
def test_keys_that_authors_read(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Keys that transformers leaves out, and the authors' own code does not."""
    path = tiny_checkpoint(tmp_path, family, vocab=96, with_tokenizer=False)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=next(iter(changes))):
        load_model(path, dtype="float32", cache=False)
    usual = {"scoring_func": "sigmoid", "routed_scaling_factor": 1.0, "output_gate_type": "swish"}
    kept = {key: usual[key] for key in changes if key in usual}
    (path / "config.json").write_text(json.dumps(config | kept))
    load_model(path, dtype="float32", cache=False)


def test_an_expert_too_many_in_gguf(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "qwen3_moe", vocab=96, layers=1, with_tokenizer=False, decoder_sparse_step=1,
                           norm_topk_prob=True)  # fmt: skip
    weights = load_file(path / "model.safetensors")
    more = {
        name.replace("experts.5.", "experts.6."): it.clone() for name, it in weights.items() if "experts.5." in name
    }
    put(path, weights | more)
    with pytest.raises(CheckpointError, match="expert 6"):
        load_model(write_gguf(tmp_path / "model.gguf", path), dtype="float32", cache=False)
