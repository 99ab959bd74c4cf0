"""Settings and members of quantised checkpoints that change what the weights mean: used or refused, never dropped."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.load import load_model
from paceline.model.quantised import scheme_of
from tests.model.test_quantised import CASES, checkpoints, edit, logits

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("gptq-4-32", {"pack_dtype": "int16"}),
    ("gptq-4-32", {"is_marlin_format": True}),
    ("gptq-4-32", {"rotation": "hadamard"}),
    ("gptq-4-32", {"adapter": {"name": "lora", "rank": 8}}),
    ("gptq-4-32", {"format": "gptq_v2"}),
    ("gptq-4-32", {"format": "marlin", "checkpoint_format": None}),
    ("gptq-4-32", {"bits": 3}),
    ("gptq-4-32", {"bits": True}),
    ("gptq-4-32", {"dynamic": {r".*down.*": {"sym": False}}}),
    ("awq-32", {"checkpoint_format": "gemv"}),
    ("awq-32", {"version": "gemv_fast"}),
    ("awq-32", {"group_size": "32"}),
    ("fp8-blocks", {"fmt": "e3m4"}),
    ("fp8-blocks", {"scale_fmt": "log2"}),
    ("fp8-blocks", {"weight_block_size": "48x48"}),
    ("modelopt-nvfp4", {"pre_quant_scale": True}),
    ("modelopt-nvfp4", {"has_zero_point": True}),
    ("modelopt-nvfp4", {"swap_weight_nibbles": True}),
    ("modelopt-nvfp4", {"quant_algo": "MIXED_PRECISION"}),
    ("ct-4-32", {"quantization_status": "calibration"}),
    ("ct-4-32", {"format": "mixed-precision"}),
    ("ct-fp8-channel", {"format": "marlin-24"}),
]
"""Settings that change what weights mean, or how they lie."""


@pytest.mark.parametrize(("name", "changes"), OTHERS)
def test_settings_of_another_form(name: str, changes: dict[str, Any]) -> None:
    settings = CASES[name][0]
    assert scheme_of({"quantization_config": settings})
    with pytest.raises(CheckpointError) as caught:
        scheme_of({"quantization_config": settings | changes})
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre_quant_scale": True}, "pre_quant_scale is True, .* is not served; a checkpoint without it is."),
        ({"quant_algo": "NVFP4_AWQ", "pre_quant_scale": True}, "quant_algo is NVFP4_AWQ, .*; FP8 and NVFP4 are."),
        ({"checkpoint_weight_scale_layout": "x"}, "layout is x, .* is not served; linear is."),
    ],
)
def test_what_is_said_of_settings(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        scheme_of({"quantization_config": CASES["modelopt-nvfp4"][0] | changes})


def test_settings_that_say_nothing_of_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever published checkpoints say next to it; a key that nobody knows is warned about."""
    silent = {
        "gptq-4-32": {"sym": True, "true_sequential": True, "damp_percent": 0.01, "meta": {"quantizer": ["x:1"]},
                      "pack_dtype": "int32", "lm_head": False, "modules_in_block_to_quantize": [["mlp.up_proj"]]},
        "awq-32": {"zero_point": True, "modules_to_not_convert": ["lm_head"], "do_fuse": False,
                    "format": "GEMM"},
        "fp8-blocks": {"activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0", "ignored_layers": [],
                       "dequantize": True},
        "ct-4-32": {"quantization_status": "compressed", "kv_cache_scheme": None, "version": "0.9",
                    "global_compression_ratio": 1.6},
        "modelopt-fp8": {"producer": {"name": "modelopt"}, "ignore": ["lm_head"], "kv_cache_quant_algo": "FP8"},
    }  # fmt: skip
    for name, more in silent.items():
        scheme_of({"quantization_config": CASES[name][0] | more})
    assert not caplog.text
    scheme_of({"quantization_config": CASES["awq-32"][0] | {"a_key_of_tomorrow": 1}})
    assert "a_key_of_tomorrow, which is not read" in caplog.text


Made = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A case's quantised checkpoint and its dequantised twin, to be copied."""
    return cache(lambda name: checkpoints(tmp_path_factory.mktemp(name), name))


def changed(path: Path, change: dict[str, Any]) -> None:
    """Members of all quantised layers: replaced by a function of the member that is there, or put in."""
    weights = load_file(path / "model.safetensors")
    stems = [it.removesuffix(".weight_scale_inv") for it in weights if it.endswith(".weight_scale_inv")]
    stems += [it.rpartition(".")[0] for it in weights if it.endswith((".qweight", ".weight_packed", ".weight_scale"))]
    for stem in dict.fromkeys(stems):
        for member, make in change.items():
            name = f"{stem}.{member}"
            weights[name] = make(weights.get(name)).contiguous()
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def test_zero_points_that_the_settings_deny(made: Made, tmp_path: Path) -> None:
    """Without zero points all of them are in the middle."""
    small = shutil.copytree(made("awq-32")[0], tmp_path / "it")
    edit(small, quantization_config=CASES["awq-32"][0] | {"zero_point": False})
    with pytest.raises(CheckpointError, match="has zero points"):
        load_model(small, dtype="float32", cache=False)
    changed(small, {"qzeros": lambda it: torch.full_like(it, -0x77777778)})
    load_model(small, dtype="float32", cache=False)


def constant(*numbers: float, dtype: torch.dtype = torch.float32) -> Any:
    return lambda _: torch.tensor(numbers, dtype=dtype)


MEMBERS: list[tuple[str, dict[str, Any], str]] = [
    ("ct-4-32", {"weight_shape": constant(4, 4, dtype=torch.int64)}, "weight_shape"),
    ("ct-4-32", {"weight_scale": lambda it: it.to(torch.int16)}, "weight_scale as"),
    ("ct-4-32", {"weight_packed": lambda it: it.long()}, "weight_packed as"),
    ("fp8-blocks", {"weight": lambda it: it.float().to(torch.int8)}, "weight as"),
    ("fp8-blocks", {"weight_scale_inv": lambda it: torch.full_like(it, 127, dtype=torch.uint8)}, "_inv as"),
    ("fp8-blocks", {"weight_scale_inv": lambda it: it.t()}, "scales of shape"),
    ("fp8-blocks", {"weight_scale_inv": constant(1.0)}, "scales of shape"),
    ("fp8-blocks", {"weight_scale": constant(1.0)}, "no place for"),
    ("fp8-blocks", {"weight_zero_point": constant(1.0)}, "no place for"),
    ("fp8-blocks", {"weight_g_idx": constant(1.0)}, "no place for"),
    ("fbgemm-fp8", {"weight_scale": lambda it: it.view(1, -1)}, "scales of shape"),
    ("modelopt-fp8", {"pre_quant_scale": constant(1.0)}, "no place for"),
    ("modelopt-nvfp4", {"weight_scale": lambda it: it.float()}, "weight_scale as"),
    ("awq-32", {"g_idx": constant(1.0)}, "no place for"),
    ("awq-32", {"scales": lambda it: it.to(torch.int16)}, "scales as"),
    ("gptq-4-32", {"qzeros": lambda it: it.long()}, "qzeros as"),
    ("gptq-4-32", {"lora_A": constant(1.0)}, "no place for"),
    ("gptq-4-32", {"bias": constant(torch.nan)}, "no place for"),
]
"""Members that are not as the method has them, or that it does not have."""


@pytest.mark.parametrize(("name", "change", "said"), MEMBERS)
def test_members_of_another_form(name: str, change: dict[str, Any], said: str, made: Made, tmp_path: Path) -> None:
    small = shutil.copytree(made(name)[0], tmp_path / "it")
    changed(small, change)
    with pytest.raises(CheckpointError, match=said):
        load_model(small, dtype="float32", cache=False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu, torch.bfloat16])
def test_scales_that_are_powers_of_two(dtype: torch.dtype, made: Made, tmp_path: Path) -> None:
    """Bytes of exponents where the settings say so, and the same numbers as floats."""
    small, dense = (shutil.copytree(it, tmp_path / it.name) for it in made("fp8-blocks"))
    weights = load_file(small / "model.safetensors")
    settings = CASES["fp8-blocks"][0] | {"scale_fmt": "ue8m0"}
    plain = load_file(dense / "model.safetensors")
    for name in [it for it in weights if it.endswith("_inv")]:
        exponents = (torch.arange(weights[name].numel()).view_as(weights[name]) % 3 + 123).to(torch.uint8)
        scale = exponents.view(torch.float8_e8m0fnu).float()
        weights[name] = exponents if dtype == torch.uint8 else scale.to(dtype)
        key = name.removesuffix("_scale_inv")
        spread = scale.repeat_interleave(48, 0).repeat_interleave(48, 1)
        plain[key] = weights[key].float() * spread[: plain[key].shape[0], : plain[key].shape[1]]
    save_file(weights, small / "model.safetensors", {"format": "pt"})
    save_file(plain, dense / "model.safetensors", {"format": "pt"})
    edit(small, quantization_config=settings)
    torch.testing.assert_close(logits(small), logits(dense), rtol=1e-5, atol=1e-5)


def test_members_of_activations(made: Made, tmp_path: Path) -> None:
    """They say nothing of the weights, next to a quantised layer; elsewhere they belong to something else."""
    small, dense = (shutil.copytree(it, tmp_path / it.name) for it in made("modelopt-fp8"))
    weights: dict[str, Tensor] = load_file(small / "model.safetensors")
    at = "model.layers.0."
    beside = [f"{at}mlp.up_proj.input_scale", f"{at}mixer.k_proj.k_scale", f"{at}self_attn.v_scale"]
    beside += [f"{at}self_attn.kv_scale", f"{at}self_attn.attn.kv_scale", "lm_head.input_scale"]
    save_file({**weights, **{it: torch.tensor(2.0) for it in beside}}, small / "model.safetensors")
    torch.testing.assert_close(logits(small), logits(dense), rtol=1e-5, atol=1e-5)
    left, whole = f"{at}self_attn.o_proj", load_file(dense / "model.safetensors")
    as_it_is = {name: it for name, it in weights.items() if not name.startswith(left)}
    as_it_is |= {f"{left}.weight": whole[f"{left}.weight"], f"{left}.input_scale": torch.tensor(2.0)}
    save_file(as_it_is, small / "model.safetensors")
    torch.testing.assert_close(logits(small), logits(dense), rtol=1e-5, atol=1e-5)
    for name in (
        "mlp.router.input_scale",
        "input_layernorm.input_scale",
        "mlp.output_scale",
        "input_layernorm.k_scale",
    ):
        save_file({**weights, at + name: torch.tensor(2.0)}, small / "model.safetensors")
        with pytest.raises(CheckpointError, match="no place for"):
            load_model(small, dtype="float32", cache=False)


@pytest.mark.parametrize("name", ["gptq-4-32", "ct-4-32", "fbgemm-fp8"])
def test_a_quantised_checkpoint_that_does_not_say_so(name: str, made: Made, tmp_path: Path) -> None:
    """Its settings may lie in a file of another program: the weights are there, but nothing says what they mean."""
    small = shutil.copytree(made(name)[0], tmp_path / "it")
    edit(small, quantization_config=None)
    with pytest.raises(CheckpointError, match="without a quantization_config"):
        load_model(small, dtype="float32", cache=False)
