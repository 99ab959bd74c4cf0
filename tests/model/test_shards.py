"""What lies in a checkpoint's directory is used or refused: shards and their index, an adapter, stored frequencies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.draft.mtp import holds_head
from paceline.model.load import load_model
from paceline.model.shards import SHARD_INDEX, SINGLE_FILE
from tests.oracle.walk import close, ours
from tests.tiny import tiny_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path, "llama", vocab=96, layers=2, with_tokenizer=False)


def sharded(path: Path, listed: dict[str, str] | None = None) -> dict[str, Tensor]:
    """Two shards in place of the one file; `listed`: what the index says besides."""
    weights, table = load_file(path / SINGLE_FILE), {}
    for number, names in enumerate((sorted(weights)[::2], sorted(weights)[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: weights[name] for name in names}, path / file, {"format": "pt"})
        table |= dict.fromkeys(names, file)
    (path / SHARD_INDEX).write_text(json.dumps({"weight_map": table | (listed or {})}))
    (path / SINGLE_FILE).unlink()
    return weights


def refused(path: Path, said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        load_model(path, dtype="float32", cache=False)
    assert "\n" not in str(caught.value)


def test_shards_are_the_same_model(path: Path) -> None:
    before = ours(path)
    sharded(path, {"lm_head.weight": "model-1.safetensors"})
    assert before is not None and close(ours(path), before)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.sinks"])
def test_what_the_index_lists_must_be_there(name: str, path: Path) -> None:
    """Without it the model would load, as one that never had such a tensor."""
    sharded(path, {name: "model-1.safetensors"})
    refused(path, f"do not hold, such as {name}")


@pytest.mark.parametrize(
    "name",
    ["lm_head.weight", "language_model.lm_head.weight", "mtp.fc.weight",
     "visual.merger.weight", "model.layers.0.self_attn.k_proj.k_scale"],
)  # fmt: skip
def test_what_no_pass_reads_may_be_missing(name: str, tmp_path: Path) -> None:
    """Parts that are left out, a tied head, and a layer for further tokens, without which none is drafted."""
    if "language" in name or name.startswith("visual"):
        path = picture_checkpoint(tmp_path)
    else:
        path = tiny_checkpoint(tmp_path, "qwen3_5_text", vocab=96, tie_word_embeddings=True, with_tokenizer=False)
    before = ours(path)
    sharded(path, {name: "model-1.safetensors"})
    assert before is not None and close(ours(path), before) and not holds_head(path)


def picture_checkpoint(path: Path) -> Path:
    """A text's model as one that reads pictures has it."""
    tiny_checkpoint(path, "qwen3_5_text", vocab=96, tie_word_embeddings=True, with_tokenizer=False)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": config}))
    weights = load_file(path / SINGLE_FILE)
    save_file({it.replace("model.", "model.language_model.", 1): weights[it] for it in weights}, path / SINGLE_FILE)
    return path


@pytest.mark.parametrize("family", ["deepseek_v3", "llama"])
def test_layers_behind_the_last_may_be_missing(family: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, vocab=96, layers=2, with_tokenizer=False)
    before = ours(path)
    sharded(path, dict.fromkeys(("model.layers.2.norm.weight", "visual.merger.weight"), "model-1.safetensors"))
    assert before is not None and close(ours(path), before)


def test_an_index_of_other_files(path: Path) -> None:
    """A model of one file may bring the index of the one that it was made of."""
    before = ours(path)
    table = dict.fromkeys([*load_file(path / SINGLE_FILE), "lm_head.more"], "model-00001-of-00002.safetensors")
    (path / SHARD_INDEX).write_text(json.dumps({"weight_map": table}))
    assert before is not None and close(ours(path), before)


def test_weights_twice(path: Path) -> None:
    """The one file and the shards of another: programs differ on which they read."""
    weights = sharded(path)
    save_file(weights, path / SINGLE_FILE, {"format": "pt"})
    refused(path, "weights twice")
    (path / SINGLE_FILE).unlink()
    save_file(
        {**load_file(path / "model-0.safetensors"), "model.norm.weight": weights["model.norm.weight"] * 2},
        path / "model-0.safetensors",
    )
    save_file(
        {**load_file(path / "model-1.safetensors"), "model.norm.weight": weights["model.norm.weight"]},
        path / "model-1.safetensors",
    )
    refused(path, "is both in")


def test_an_adapter_next_to_the_model(path: Path) -> None:
    before = ours(path)
    (path / "adapter_config.json").write_text("{}")
    assert before is not None and close(ours(path), before)
    (path / "adapter_model.safetensors").write_bytes(b"")
    refused(path, "--lora")


@pytest.mark.parametrize(
    ("factor", "theta", "taken"), [(1.0, 1e4, True), (0.25, 1e4, True), (1.0, 5e4, False), (1.0, 0.0, False)]
)
def test_stored_frequencies(factor: float, theta: float, taken: bool, path: Path) -> None:
    """Those of the config, rounded or not yet divided by a scaling's factor, say nothing; others are refused."""
    weights, before = load_file(path / SINGLE_FILE), ours(path)
    found = factor * theta ** -(torch.arange(0, 8, 2) / 8) if theta else torch.zeros(4)
    save_file({**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": found.bfloat16()}, path / SINGLE_FILE)
    if taken:
        assert close(ours(path), before)
    else:
        refused(path, "inv_freq, frequencies of another rotation")


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "theta", "dtype", "taken"),
    [
        (YARN, 1e4, torch.float32, True), (LLAMA3, 1e4, torch.float32, True), (None, 5e6, torch.float16, True),
        (YARN, 5e6, torch.float16, True), (YARN, 2e4, torch.float32, False),
    ],
)  # fmt: skip
def test_frequencies_before_any_scaling(
    scaling: dict[str, Any] | None, theta: float, dtype: torch.dtype, taken: bool, tmp_path: Path
) -> None:
    """A scaling may come later than the stored frequencies; float16 has the least ones as subnormal numbers."""
    base = theta if taken else 1e4
    turn = {"rope_theta": base, "rope_type": "default", **(scaling or {})}
    path = tiny_checkpoint(tmp_path, vocab=96, head_dim=128, rope_parameters=turn, with_tokenizer=False)
    weights, before = load_file(path / SINGLE_FILE), ours(path)
    found = (theta ** -(torch.arange(0, 128, 2) / 128)).to(dtype)
    save_file({**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": found}, path / SINGLE_FILE)
    if taken:
        assert before is not None and close(ours(path), before)
    else:
        refused(path, "inv_freq, frequencies of another rotation")


@pytest.mark.parametrize(
    ("value", "name"), [(torch.nan, "self_attn.q_proj.bias"), (1e-30, "mlp.down_proj.bias"), (0.0, "self_attn.sinks")]
)
def test_biases_that_say_something(value: float, name: str, path: Path) -> None:
    """Zeros in place of a bias say nothing, but zeros among the scores of a softmax take their share."""
    save_file({**load_file(path / SINGLE_FILE), f"model.layers.0.{name}": torch.full((32,), value)}, path / SINGLE_FILE)
    refused(path, "no place for")
