"""Adapters of experts and routers as current PEFT names them (`target_parameters`): transformers with these changes in
its weights says the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import PacelineError
from paceline.model.checkpoint import read_config
from paceline.model.load import load_model
from paceline.model.lora import read_lora
from tests.oracle.rows import Chunk, lay_out
from tests.tiny import tiny_checkpoint

IDS = [(7 * i + 3) % 320 for i in range(12)]
RANK, ALPHA = 2, 6


def stacked_adapter(path: Path, model: Any) -> Path:
    """An adapter of all experts and routers of a transformers model, and the same change in the model's weights."""
    stream, tensors = torch.Generator().manual_seed(3), dict[str, torch.Tensor]()
    for name, weight in model.named_parameters():
        module, _, end = name.rpartition(".")
        if weight.dim() == 3 and module.endswith("experts"):
            outs, ins = weight.shape[1:]
            if turned := getattr(model.get_submodule(module), "is_transposed", False):
                outs, ins = ins, outs
            module += ".base_layer" if end == "gate_up_proj" else ""
            down = torch.randn(RANK * len(weight), ins, generator=stream) * ins**-0.5
            up = torch.randn(outs, RANK * len(weight), generator=stream) * 0.2
            more = torch.einsum("ore,eri->eoi", up.view(outs, RANK, -1), down.view(-1, RANK, ins))
            more = more.transpose(1, 2) if turned else more
        elif name.endswith(("gate.weight", "router.weight")) and weight.dim() == 2:
            down = torch.randn(RANK, weight.shape[1], generator=stream) * weight.shape[1] ** -0.5
            up = torch.randn(len(weight), RANK, generator=stream) * 0.2
            more = up @ down
        else:
            continue
        weight.data += ALPHA / RANK * more
        tensors |= {f"base_model.model.{module}.lora_A.weight": down, f"base_model.model.{module}.lora_B.weight": up}
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    parameters = ["experts.gate_up_proj", "experts.down_proj", "gate.weight", "router.weight"]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": [], "bias": "none"}
    config["target_parameters"] = parameters
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "granitemoe", "gpt_oss"])
def test_experts_are_those_of_the_trained_model(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names of modules, other names of experts, gates and ups in turn."""
    from transformers import AutoModelForCausalLM

    base = tiny_checkpoint(tmp_path / "base", family)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        path = stacked_adapter(tmp_path / "x", model)
        want = model(input_ids=torch.tensor([IDS])).logits[0]
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    decoder = load_model(base, dtype="float32", cache=False)
    decoder.allocate(8, 8)
    decoder.adapt().install(1, read_lora(path, decoder.spec))
    for slot in range(2):
        rows = lay_out([Chunk(range(8), 0, IDS)], 8)
        rows = replace(rows, segments=[it._replace(adapter=slot) for it in rows.segments])
        assert torch.allclose(decoder.forward(rows).logits, want, atol=1e-4) == (slot == 1)


def test_what_lacks_or_does_not_fit(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = tiny_checkpoint(tmp_path / "base", "qwen3_moe", mlp_only_layers=[], decoder_sparse_step=1)
    spec, path = read_config(base), stacked_adapter(tmp_path / "x", AutoModelForCausalLM.from_pretrained(base))
    file, config = path / "adapter_model.safetensors", json.loads((path / "adapter_config.json").read_text())
    whole, first = load_file(file), "base_model.model.model.layers.1.mlp.experts"
    low, high = (f"{first}.lora_{part}.weight" for part in "AB")
    assert "model.layers.0.mlp.experts.3.down_proj" in read_lora(path, spec).modules
    for change, wish, words in (
        ({low: None, high: None}, None, "lacks the factors of model.layers.1.mlp.experts.0.down_proj"),
        ({high: None}, None, "only one factor"),
        ({low: whole[low][:-1]}, None, "another model"),
        ({low: whole[low][:, :-1]}, None, "another model"),
        ({low: whole[low][0]}, None, "another model"),
        ({first + ".base_layer.base_layer.lora_A.weight": whole[low],
          first + ".base_layer.base_layer.lora_B.weight": whole[high]}, None, "twice"),
        ({name: None for name in whole if "experts.lora" in name}, None, "lacks the factors of experts.down_proj"),
        ({}, ["experts.gate_up_proj"], "target_parameters of its config leaves out"),
        ({}, ["gate.weight", "experts.gate_up_proj"], "target_parameters of its config leaves out"),
        ({}, ["experts.down_proj", "experts.gate_up_proj"], "target_parameters of its config leaves out"),
        ({}, "experts.down_proj", "list of names"),
    ):  # fmt: skip
        save_file({n: t.clone() for n, t in (whole | change).items() if t is not None}, file)
        made = config if wish is None else config | {"target_parameters": wish}
        (path / "adapter_config.json").write_text(json.dumps(made))
        with pytest.raises(PacelineError, match=words):
            read_lora(path, spec)
