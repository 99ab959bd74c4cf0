"""Checkpoints that are quantised already, against plain dequantisation as each format's own description has it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model import load as loading
from paceline.model.checkpoint import Tensors, read_config
from paceline.model.footprint import footprint
from paceline.model.grouped import meaning, unpack
from paceline.model.groups import Groups, stack
from paceline.model.linear import STORED, plain
from paceline.model.load import form, load_model
from tests.model.test_footprint import held
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import feed
from tests.tiny import tiny_checkpoint

Stored = dict[str, Tensor]
"""Members of a layer by their names."""
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def pack(numbers: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Along the last dimension into int32, one by one: number `order[i]` of each word lies at bit i * bits."""
    each = 32 // bits
    grouped = numbers.long().view(*numbers.shape[:-1], -1, each)
    word = torch.zeros(grouped.shape[:-1], dtype=torch.int64)
    for i in range(each):
        word |= grouped[..., order[i] if order else i] << (i * bits)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)


def drawn(shape: tuple[int, ...], high: int, seed: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def scales(outputs: int, groups: int, seed: int) -> Tensor:
    made = torch.rand(outputs, groups, generator=torch.Generator().manual_seed(seed)) * 0.02 + 0.01
    return made.half()


def plain_of(q: Tensor, zero: Tensor, scale: Tensor, group: Tensor) -> Tensor:
    """(q - zero) * scale, the group of each input by number."""
    return (q.float() - zero.float()[:, group]) * scale.float()[:, group]


def gptq(bits: int, size: int, symmetric: bool, act: bool, v2: bool = False) -> Callable[..., tuple[Stored, Tensor]]:
    def make(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
        groups = inputs // size if size > 0 else 1
        q, scale = drawn((outputs, inputs), 1 << bits, seed), scales(outputs, groups, seed)
        zero = torch.full((outputs, groups), 1 << (bits - 1))
        if not symmetric:
            zero = 1 + drawn((outputs, groups), (1 << bits) - 1, seed + 1)
        index = torch.arange(inputs) // (inputs // groups)
        if act:
            index = index[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]
        members = {
            "qweight": pack(q.t().contiguous().t(), bits).t().contiguous() if False else pack_down(q.t(), bits),
            "qzeros": pack(zero.t().contiguous() - (0 if v2 else 1), bits),
            "scales": scale.t().contiguous(),
            "g_idx": index.to(torch.int32),
        }
        return members, plain_of(q, zero, scale, index)

    return make


def pack_down(numbers: Tensor, bits: int) -> Tensor:
    """[in, out] -> [in / each, out]."""
    return pack(numbers.t().contiguous(), bits).t().contiguous()


def awq(size: int) -> Callable[..., tuple[Stored, Tensor]]:
    def make(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
        q, scale = drawn((outputs, inputs), 16, seed), scales(outputs, inputs // size, seed)
        zero = drawn((outputs, inputs // size), 16, seed + 1)
        members = {
            "qweight": pack(q.t().contiguous(), 4, AWQ),
            "qzeros": pack(zero.t().contiguous(), 4, AWQ),
            "scales": scale.t().contiguous(),
        }
        return members, plain_of(q, zero, scale, torch.arange(inputs) // size)

    return make


def packed(bits: int, size: int, symmetric: bool, act: bool = False) -> Callable[..., tuple[Stored, Tensor]]:
    """compressed-tensors, pack-quantized."""

    def make(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
        groups = inputs // size if size > 0 else 1
        q, scale = drawn((outputs, inputs), 1 << bits, seed), scales(outputs, groups, seed).bfloat16()
        zero = torch.full((outputs, groups), 1 << (bits - 1))
        index = torch.arange(inputs) // (inputs // groups)
        members = {"weight_packed": pack(q, bits), "weight_shape": torch.tensor([outputs, inputs])}
        members["weight_scale"] = scale
        if not symmetric:
            zero = drawn((outputs, groups), 1 << bits, seed + 1)
            members["weight_zero_point"] = pack_down(zero, bits)
        if act:
            index = index[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]
            members["weight_g_idx"] = index.to(torch.int32)
        return members, plain_of(q, zero, scale, index)

    return make


def whole(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
    q, scale = drawn((outputs, inputs), 256, seed) - 128, scales(outputs, 1, seed).float() / 16
    return {"weight": q.to(torch.int8), "weight_scale": scale}, q.float() * scale


def shifted(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
    """Bytes whose zero points were not made small, with inputs in another order than their groups."""
    q, scale = drawn((outputs, inputs), 256, seed) - 128, scales(outputs, 2, seed).float() / 16
    zero, index = drawn((outputs, 2), 64, seed + 1) - 32, torch.arange(inputs) % 2
    members = {"weight": q.to(torch.int8), "weight_scale": scale, "weight_zero_point": zero.to(torch.int32)}
    return {**members, "weight_g_idx": index.to(torch.int32)}, plain_of(q, zero, scale, index)


def fp8(block: int, name: str = "weight_scale_inv") -> Callable[..., tuple[Stored, Tensor]]:
    """block 0: a scale for each output; -1: for all."""

    def make(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
        w = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)).to(torch.float8_e4m3fn)
        shape = {0: (outputs, 1), -1: (1,)}.get(block, (-(-outputs // max(block, 1)), -(-inputs // max(block, 1))))
        scale = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.1 + 0.1
        expected = torch.empty(outputs, inputs)
        for i in range(outputs):
            for j in range(inputs):
                each = scale[i, 0] if block == 0 else scale[0] if block < 0 else scale[i // block, j // block]
                expected[i, j] = w[i, j].float() * each
        return {"weight": w, name: scale}, expected

    return make


def mx(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat((table, -table))
    q, exponent = drawn((outputs, inputs), 16, seed), 120 + drawn((outputs, inputs // 32), 5, seed)
    words = q[:, 0::2] | q[:, 1::2] << 4
    expected = table[q] * torch.exp2(exponent.float() - 127).repeat_interleave(32, 1)
    return {"weight_packed": words.to(torch.uint8), "weight_scale": exponent.to(torch.uint8)}, expected


def nv(packed: str, every: str) -> Callable[..., tuple[Stored, Tensor]]:
    def make(outputs: int, inputs: int, seed: int) -> tuple[Stored, Tensor]:
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        table, q = torch.cat((table, -table)), drawn((outputs, inputs), 16, seed)
        scale = scales(outputs, inputs // 16, seed).float().mul(2000).to(torch.float8_e4m3fn)
        whole = torch.tensor([2000.0]) if every == "weight_global_scale" else torch.tensor(1 / 2000)
        by = scale.float() / whole if every == "weight_global_scale" else scale.float() * whole
        members = {packed: (q[:, 0::2] | q[:, 1::2] << 4).to(torch.uint8), "weight_scale": scale, every: whole}
        return {**members, "input_scale": torch.ones(1)}, table[q] * by.repeat_interleave(16, 1)

    return make


def ct(form: str, bits: int, kind: str = "int", **weights: Any) -> dict[str, Any]:
    settings = {"num_bits": bits, "type": kind, **weights}
    group = {"group_0": {"weights": settings, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": group, "ignore": ["lm_head"]}


def g(bits: int, size: int, act: bool = False, form: str = "gptq") -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": act, "checkpoint_format": form}


CASES: dict[str, tuple[dict[str, Any], Callable[..., tuple[Stored, Tensor]], int | None]] = {
    "gptq-4-32": (g(4, 32), gptq(4, 32, True, False), 4),
    "gptq-4-64-zeros": (g(4, 64), gptq(4, 64, False, False), 4),
    "gptq-4-64-act": (g(4, 64, True), gptq(4, 64, True, True), None),
    "gptq-4-32-act-zeros": (g(4, 32, True), gptq(4, 32, False, True), None),
    "gptq-8-whole": (g(8, -1), gptq(8, -1, True, False), 8),
    "gptq-v2": (g(4, 32, form="gptq_v2"), gptq(4, 32, False, False, v2=True), 4),
    "awq-32": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq(32), 4),
    "awq-128": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"}, awq(128), 4),
    "ct-4-32": (ct("pack-quantized", 4), packed(4, 32, True), 4),
    "ct-4-128-zeros": (ct("pack-quantized", 4), packed(4, 128, False), 4),
    "ct-4-64-act": (ct("pack-quantized", 4), packed(4, 64, True, act=True), None),
    "ct-4-channel": (ct("pack-quantized", 4), packed(4, -1, True), 4),
    "ct-8": (ct("pack-quantized", 8), packed(8, 128, True), 8),
    "ct-int8": (ct("int-quantized", 8), whole, 8),
    "ct-int8-act": (ct("int-quantized", 8, symmetric=False, actorder="group"), shifted, None),
    "ct-fp8-channel": (ct("float-quantized", 8, "float"), fp8(0, "weight_scale"), None),
    "ct-fp8-tensor": (ct("float-quantized", 8, "float"), fp8(-1, "weight_scale"), None),
    "ct-mxfp4": (ct("mxfp4-pack-quantized", 4, "float"), mx, 4),
    "ct-nvfp4": (
        ct("nvfp4-pack-quantized", 4, "float", group_size=16),
        nv("weight_packed", "weight_global_scale"),
        4,
    ),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nv("weight", "weight_scale_2"), 4),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(-1, "weight_scale"), None),
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": [48, 48]}, fp8(48), None),
    "fbgemm-fp8": ({"quant_method": "fbgemm_fp8"}, fp8(0, "weight_scale"), None),
}
"""Settings, a layer's members with its weights by plain arithmetic, and the bits in which it stays in groups."""


def checkpoints(path: Path, name: str) -> tuple[Path, Path]:
    """The quantised checkpoint, and its dequantised twin."""
    settings, make, _ = CASES[name]
    dense = tiny_checkpoint(path / "dense", "llama", vocab=96, layers=1, hidden=128, with_tokenizer=False)
    small = tiny_checkpoint(path / "small", "llama", vocab=96, layers=1, hidden=128, with_tokenizer=False)
    weights = load_file(dense / "model.safetensors")
    stored = dict(weights)
    for number, (key, weight) in enumerate(sorted(weights.items())):
        if key.endswith("proj.weight"):
            stem = key.removesuffix(".weight")
            members, weights[key] = make(*weight.shape, seed=number)
            del stored[key]
            stored |= {f"{stem}.{member}": tensor for member, tensor in members.items()}
    save_file(weights, dense / "model.safetensors", {"format": "pt"})
    save_file(
        {key: tensor.contiguous() for key, tensor in stored.items()}, small / "model.safetensors", {"format": "pt"}
    )
    edit(small, quantization_config=settings)
    return small, dense


def edit(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))


def logits(path: Path, dtype: str = "float32") -> Tensor:
    decoder = load_model(path, dtype=dtype, fast=False)
    decoder.allocate(BLOCKS, BLOCK)
    return feed(decoder, text(1), range(10), BLOCK, [7, 8])


@pytest.mark.parametrize("name", CASES)
def test_equals_plain_dequantisation(name: str, tmp_path: Path) -> None:
    small, dense = checkpoints(tmp_path, name)
    torch.testing.assert_close(logits(small), logits(dense), rtol=1e-5, atol=1e-5)
    tensors, weights = Tensors(small), load_file(dense / "model.safetensors")
    key = "model.layers.0.mlp.up_proj.weight"
    shape = (weights[key].shape[0], weights[key].shape[1])
    groups, bits = tensors.groups(key, shape), CASES[name][2]
    assert (None if groups is None else groups.bits) == bits
    if groups is not None:
        torch.testing.assert_close(groups.floats(), weights[key], rtol=1e-6, atol=1e-7)
        both = stack([groups, groups])
        assert both is not None and both.size == groups.size
        codes, scale, low = both.even()
        wide = codes.view(2 * shape[0], -1, both.size).float() * scale[:, :, None] + low[:, :, None]
        torch.testing.assert_close(wide.view(-1, shape[1])[: shape[0]], weights[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gptq-4-64-zeros", "awq-32", "ct-int8"])
def test_groups_reach_the_packing_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers, scales and minimums of fused matrices make the layers of a packing that takes them."""
    small, dense = checkpoints(tmp_path, name)
    expected, seen = logits(dense), []

    def groups(it: Groups, bias: Tensor | None) -> Any:
        seen.append(it.bits)
        codes, scale, low = it.even()
        weight = codes.view(*scale.shape, it.size).float() * scale[:, :, None] + low[:, :, None]
        return lambda x: torch.nn.functional.linear(x, weight.flatten(1), bias)

    def form(dtype: str, *_: Any) -> Any:
        from dataclasses import replace

        return replace(plain(torch.float32, torch.device("cpu")), groups=groups)

    monkeypatch.setattr(loading, "form", form)
    torch.testing.assert_close(logits(small), expected, rtol=1e-4, atol=1e-4)
    assert len(seen) == 4


@pytest.mark.parametrize("name", CASES)
def test_each_keeps_its_own_bits(name: str, tmp_path: Path) -> None:
    """What lies in groups is packed as it is, close to the same numbers in bfloat16; what does not is widened."""
    if not form("bfloat16", None, "cpu").native:
        pytest.skip("the native decoder is not available here")
    small, dense = checkpoints(tmp_path, name)
    decoder, bits = load_model(small), CASES[name][2]
    assert decoder.packing.name == ("native" if bits is None else STORED)
    assert load_model(small, quantize="none").packing.name == load_model(dense).packing.name == "native"
    if bits is not None:
        down: Any = decoder.weights.blocks[0].ffn
        codes, scale, low = unpack(down.down)
        scale, low = (part.double().repeat_interleave(32, 1) for part in (scale, low))
        wide = meaning(down.down, codes) * scale + low
        expected = load_file(dense / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
        near = 2e-3 if "nvfp4" in name else 1e-6  # 16 inputs of a group become 32, which are rounded
        torch.testing.assert_close(wide.float(), expected, rtol=1e-5, atol=near)
        assert down.down.c.bits == (8 if "nvfp4" in name else bits)
        spec = read_config(small)
        foretold = footprint(spec, decoder.packing, 2, 2, 1)
        assert foretold.weights <= 1.4 * held(decoder.weights) and held(decoder.weights) <= foretold.weights


REFUSED: list[tuple[Any, list[str]]] = [
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ["bitsandbytes", "gptq"]),
    ({"bits": 4}, ["an unnamed method"]),
    ([4], ["quantization_config is [4]", "an object"]),
    (g(3, 32), ["bits is 3", "4 or 8"]),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, ["gemv"]),
    (ct("nvfp5-pack-quantized", 4, "float"), ["nvfp5-pack-quantized", "int-quantized"]),
    (ct("nvfp4-pack-quantized", 4, "float", group_size=32), ["groups of 32", "groups of 16"]),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, ["W4A8_AWQ", "NVFP4"]),
    (ct("pack-quantized", 2), ["num_bits is 2"]),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, ["several kinds"]),
    ({"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}}, ["several kinds"]),
    (g(4, "128"), ["group_size is '128'", "whole number"]),  # type: ignore[arg-type]
    (ct("pack-quantized", 4, "float"), ["pack-quantized (float)"]),
    (
        ct("pack-quantized", 4) | {"config_groups": {n: {"weights": {"num_bits": 4}, "format": n} for n in "ab"}},
        ["several formats (a, b)"],
    ),
]


@pytest.mark.parametrize(("settings", "named"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(settings: Any, named: list[str], tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "llama", vocab=96, layers=1, with_tokenizer=False)
    edit(path, quantization_config=settings)
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    message = str(caught.value)
    assert all(part in message for part in named) and "\n" not in message and message.endswith(".")


@pytest.mark.parametrize(
    ("name", "member", "changed"),
    [
        ("gptq-4-32", "g_idx", lambda it: it + 100),
        ("gptq-4-32", "qweight", lambda it: it[1:]),
        ("gptq-4-32", "scales", lambda it: None),
        ("awq-32", "qzeros", lambda it: it[:, :1]),
        ("ct-4-32", "weight_scale", lambda it: it[:, :3]),
        ("ct-int8", "weight_scale", lambda it: None),
        ("fp8-blocks", "weight_scale_inv", lambda it: it[:1, :2]),
        ("ct-mxfp4", "weight_scale", lambda it: it[1:]),
        ("ct-int8", "weight_scale", lambda it: it[::2].view(-1, 2)),
        ("gptq-4-64-act", "g_idx", lambda it: None),
        ("ct-nvfp4", "weight_packed", lambda it: it.view(torch.int8)),
        ("ct-nvfp4", "weight_scale", lambda it: it.half()),
        ("modelopt-nvfp4", "weight", lambda it: it.half()),
        ("modelopt-nvfp4", "weight_scale", lambda it: it.view(torch.float8_e5m2)),
        ("ct-mxfp4", "weight_scale", lambda it: it.view(torch.float8_e4m3fn)),
    ],
)
def test_a_damaged_layer_is_named(name: str, member: str, changed: Callable[[Tensor], Any], tmp_path: Path) -> None:
    small, _ = checkpoints(tmp_path, name)
    weights = load_file(small / "model.safetensors")
    key = f"model.layers.0.self_attn.q_proj.{member}"
    made = changed(weights.pop(key))
    if made is not None:
        weights[key] = made.contiguous()
    save_file(weights, small / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_model(small)
    assert "q_proj" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "said"), [("gptq-4-64-act", True), ("ct-int8-act", True), ("gptq-4-32", False)])
def test_weights_that_act_order_widens_are_named(
    name: str, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small, dense = checkpoints(tmp_path, name)
    with caplog.at_level("INFO", "paceline"):
        ours = logits(small, "float64")
    torch.testing.assert_close(ours, logits(dense, "float64"), rtol=1e-5, atol=1e-5)
    assert ("act-order" in caplog.text and "16 bits" in caplog.text) == said


@pytest.mark.parametrize("name", ["ct-nvfp4", "modelopt-nvfp4"])
def test_what_is_rounded_is_said(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small, _ = checkpoints(tmp_path, name)
    with caplog.at_level("INFO", "paceline"):
        load_model(small, dtype="float32", cache=False)
    assert "NVFP4" in caplog.text and "rounded to 8 bits" in caplog.text


@pytest.mark.parametrize(
    ("name", "weights", "named"),
    [
        ("ct-4-64-act", {"group_size": 96}, "groups of 96"),
        ("ct-4-32", {"group_size": 128}, "groups of 128"),
        ("ct-4-32", {"symmetric": False}, "weight_zero_point"),
        ("ct-4-32", {"actorder": "group"}, "weight_g_idx"),
        ("ct-int8", {"symmetric": False}, "weight_zero_point"),
        ("gptq-4-64-zeros", {"group_size": 96}, "groups of 96"),
        ("awq-128", {"group_size": 96}, "groups of 96"),
    ],
)
def test_settings_that_the_members_contradict_are_refused(
    name: str, weights: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """Groups that do not divide a row, or a member that the settings promise and that is missing."""
    small, _ = checkpoints(tmp_path, name)
    settings = CASES[name][0]
    if "config_groups" in settings:
        changed = ct(settings["format"], settings["config_groups"]["group_0"]["weights"]["num_bits"], **weights)
    else:
        changed = settings | weights
    edit(small, quantization_config=changed)
    with pytest.raises(CheckpointError) as caught:
        load_model(small)
    assert named in str(caught.value) and "proj" in str(caught.value) and "\n" not in str(caught.value)
