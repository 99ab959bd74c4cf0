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


FP8 = torch.float8_e4m3fn
FORMS: dict[str, tuple[int, list[int] | None, tuple[int, ...], tuple[int, ...]]] = {
    "blocks": (32, [16, 8], (4, 4, 4), (4, 2, 4)),
    "blocks that end early": (32, [24, 20], (4, 3, 2), (4, 2, 2)),
    "blocks of gates and of ups": (24, [20, 32], (4, 4, 1), (4, 2, 1)),
    "blocks over both": (28, [20, 32], (4, 3, 1), (4, 2, 1)),
    "a row each": (24, None, (4, 48, 1), (4, 32, 1)),
    "gates and ups each": (24, None, (4, 2, 1), (4, 1, 1)),
    "an expert each": (24, None, (4,), (4, 1, 1)),
    "all one": (24, None, (1,), (4,)),
}
"""Width, blocks, and shapes of the scales of 4 experts."""


def spread_by_hand(scale: Tensor, shape: tuple[int, ...], block: list[int] | None, halved: bool) -> Tensor:
    """The factor of each number, looked up one by one."""
    out = torch.empty(shape)
    for expert in range(shape[0]):
        for row in range(shape[1]):
            for column in range(shape[2]):
                if scale.dim() == 1:
                    out[expert, row, column] = scale[expert % len(scale)]
                    continue
                rows, half = scale.shape[1], shape[1] // 2
                if block is not None and halved:
                    at = row // half * (rows // 2) + row % half // block[0]
                elif block is not None:
                    at = row // block[0]
                else:
                    at = row * rows // shape[1]
                out[expert, row, column] = scale[expert, at, 0 if block is None else column // block[1]]
    return out


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_experts_in_fp8(form: str, turned: bool, tmp_path: Path) -> None:
    """They are the numbers times their scales, whichever of rows and columns are outputs."""
    width, block, up, down = FORMS[form]
    weights, config = in_one(tmp_path, width), json.loads((tmp_path / "config.json").read_text())
    stream, wide, packed = torch.Generator().manual_seed(0), dict(weights), dict(weights)
    for name, shape in ((GATE_UP, up), (DOWN, down)):
        codes, scale = weights[name].to(FP8), torch.rand(shape, generator=stream) + 0.5
        halved = form == "blocks of gates and of ups" and name == GATE_UP
        wide[name] = codes.float() * spread_by_hand(scale, codes.shape, block, halved)
        if turned:
            codes, scale = (
                codes.transpose(1, 2).contiguous(),
                scale.transpose(1, 2).contiguous() if scale.dim() == 3 else scale,
            )
        packed |= {name: codes, f"{name}_scale_inv": scale, f"{name}_activation_scale": torch.ones(4)}
    put(tmp_path, wide)
    expected = ours(tmp_path)
    turned_block = None if block is None else block[::-1] if turned else block
    quantised = {"quant_method": "fp8", "weight_block_size": turned_block}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    put(tmp_path, packed)
    assert expected is not None and close(ours(tmp_path), expected)
    for name, it in packed.items():
        if name.endswith("scale_inv") and it.numel() > 1:
            put(tmp_path, packed | {name: 1.5 * it})
            assert not close(ours(tmp_path), expected)


@pytest.mark.parametrize(
    ("block", "shape", "said"),
    [
        ([16, 16], (4, 4, 4), "blocks of 16 by 16"),
        ([30, 32], (4, 2, 1), "does not fit"),  # two blocks over both, or one for each half
        (None, (4, 3, 1), "without blocks"),
        (None, (5,), "without blocks"),
        ([16, 16], None, "scale_inv is missing"),
    ],
)
def test_scales_that_do_not_fit(block: Any, shape: Any, said: str, tmp_path: Path) -> None:
    weights, config = in_one(tmp_path, 28), json.loads((tmp_path / "config.json").read_text())
    quantised = {"quant_method": "fp8", "weight_block_size": block}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    scale = {} if shape is None else {f"{GATE_UP}_scale_inv": torch.ones(shape)}
    put(tmp_path, {**weights, GATE_UP: weights[GATE_UP].to(FP8), **scale})
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
