"""Every bad checkpoint meets one sentence that names what is wrong and what to do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError
from paceline.model.checkpoint import Tensors
from paceline.model.families import FAMILIES
from paceline.model.load import inspect, load_model
from paceline.model.lora_config import read_lora_config
from tests.tiny import tiny_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "model", vocab=96, with_tokenizer=False)


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(path, **options)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


def edit_config(path: Path, **changes: Any) -> Path:
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def edit_weights(path: Path, **changes: torch.Tensor | None) -> Path:
    weights = {k: v for k, v in (load_file(path / "model.safetensors") | changes).items() if v is not None}
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def test_missing_tensor(checkpoint: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    assert f"tensor {name} is missing" in refusal(edit_weights(checkpoint, **{name: None}))


def test_wrong_shape(checkpoint: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    message = refusal(edit_weights(checkpoint, **{name: torch.zeros(16, 31)}))
    assert name in message and "(16, 31)" in message and "(16, 32)" in message


def test_unknown_tensor(checkpoint: Path) -> None:
    assert "no place for, such as model.adapter.weight" in refusal(
        edit_weights(checkpoint, **{"model.adapter.weight": torch.zeros(2)})
    )


def test_harmless_extra_tensors(checkpoint: Path) -> None:
    turns = 1e4 ** -(torch.arange(0, 8, 2) / 8)
    load_model(edit_weights(checkpoint, **{"model.layers.0.self_attn.rotary_emb.inv_freq": turns}))


def test_quantised_tensor(checkpoint: Path) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    message = refusal(edit_weights(checkpoint, **{name: torch.zeros(32, 32, dtype=torch.int8)}))
    assert name in message and "int8" in message


@pytest.mark.parametrize("keep", [0, 5, 400, -8])
def test_truncated_file(checkpoint: Path, keep: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "model.safetensors is truncated or damaged" in refusal(checkpoint)


def test_missing_shard(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, vocab=96, with_tokenizer=False, shard="20KB")
    shard = sorted(path.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard.name} is listed in model.safetensors.index.json but missing" in refusal(path)


def test_no_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    assert "convert the weights to safetensors" in refusal(checkpoint)


def test_gguf(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "model-q4.gguf")
    assert "GGUF" in refusal(checkpoint)
    assert "GGUF" in refusal(checkpoint / "model-q4.gguf")


def test_no_config(tmp_path: Path) -> None:
    assert "has no config.json; give a Hugging Face model directory" in refusal(tmp_path)


def test_an_adapter_or_a_model_at_the_place_of_the_other(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "--lora NAME=DIRECTORY" in refusal(tmp_path)
    with pytest.raises(CheckpointError, match=r"it is a model: .* --zoo NAME=DIRECTORY"):
        read_lora_config(checkpoint)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_damaged_config(checkpoint: Path, content: str) -> None:
    (checkpoint / "config.json").write_text(content, encoding="latin-1")
    assert "config.json" in refusal(checkpoint)


def test_invalid_config(checkpoint: Path) -> None:
    assert "not a valid llama config" in refusal(edit_config(checkpoint, hidden_size="wide"))


def test_neither_directory_nor_hub_id(tmp_path: Path) -> None:
    assert "neither a directory nor a hub id" in refusal(tmp_path / "no such" / "place")


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "no directory nobody/nothing" in refusal("nobody/nothing")


def test_hub_arguments(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    """Revision and token reach the hub, and code files are never asked for."""
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    load_model("owner/name", revision="abc", token="secret")
    assert (asked["name"], asked["revision"], asked["token"]) == ("owner/name", "abc", "secret")
    assert not any(pattern.endswith((".py", ".bin")) or pattern == "*" for pattern in asked["allow_patterns"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "falcon", "architectures": ["FalconForCausalLM"]}, ["FalconForCausalLM", *FAMILIES]),
        ({"model_type": "secret", "auto_map": {"AutoConfig": "secret.Config"}}, ["secret", "remote code"]),
        ({"model_type": "deepseek_v32", "n_routed_experts": 8}, ["deepseek_v32", "MoE", "nearest", "deepseek_v3"]),
        ({"model_type": "jetmoe", "num_local_experts": 8}, ["jetmoe", "MoE", "nearest that is served is mixtral;"]),
        ({"model_type": "llama4"}, ["llama4", "no text_config"]),
        ({"model_type": "gemma3n"}, ["gemma3n", "nearest that is served is gemma4_text;"]),
        ({"model_type": "gemma3", "vision_config": {}}, ["gemma3", "pictures", "text_config"]),
        ({"model_type": "voxtral"}, ["voxtral", "hears", "text_config"]),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ["bitsandbytes"]),
        ({"quantization_config": {"quant_method": "aqlm"}}, ["aqlm"]),
        ({"quantization_config": {"quant_method": "hqq"}}, ["hqq"]),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 0.5, "rope_theta": 1e4}}, ["dynamic", "cached keys"]),
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}, ["axial", "llama3"]),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ["rope_parameters", "factor"]),
        ({"hidden_act": "relu"}, ["relu", "silu"]),
    ],
)
def test_refused_by_name(checkpoint: Path, changes: dict[str, Any], named: list[str]) -> None:
    message = refusal(edit_config(checkpoint, **changes))
    assert all(name in message for name in named), message


def test_max_len(checkpoint: Path) -> None:
    assert load_model(checkpoint, max_len=100).max_len == 100
    assert "outside 1..512" in refusal(checkpoint, max_len=513)
    assert "outside 1..512" in refusal(checkpoint, max_len=0)


def test_unknown_dtype(checkpoint: Path) -> None:
    assert "bfloat16" in refusal(checkpoint, dtype="int8")


def test_inspect_reads_no_weights(checkpoint: Path) -> None:
    facts = inspect(checkpoint)
    file = checkpoint / "model.safetensors"
    assert (facts.tensors, facts.bytes) == (2 * 9 + 3, file.stat().st_size)
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2  # layers, k and v, heads, head_dim, bytes
    assert facts.spec.eos == (1,)


def test_bytes_of_a_pass(checkpoint: Path) -> None:
    decoder = load_model(checkpoint, dtype="float32")
    embedding = 96 * 32 * 4
    assert (
        decoder.weight_bytes == sum(v.nbytes for v in load_file(checkpoint / "model.safetensors").values()) - embedding
    )
    assert decoder.kv_bytes_per_token == inspect(checkpoint, dtype="float32").kv_bytes_per_token


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is in memory")
def test_a_tensor_that_was_let_go_takes_no_memory_and_can_still_be_read(tmp_path: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is itself in memory")
    save_file({"weight": torch.ones(1024, 1024)}, tmp_path / "model.safetensors")

    def resident() -> int:
        maps = Path("/proc/self/smaps").read_text().split(str(tmp_path / "model.safetensors"))
        return sum(int(it.split("Rss:")[1].split()[0]) for it in maps[1:])

    tensors = Tensors(tmp_path)
    weight = tensors.take("weight", (1024, 1024))
    assert weight.sum() == 1024 * 1024 and resident() >= 4096
    tensors.let_go()
    assert resident() < 400
    assert weight.sum() == 1024 * 1024
