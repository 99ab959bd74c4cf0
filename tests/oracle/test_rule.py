"""A key or a tensor that changes the arithmetic is used or refused, never dropped: the walk over all families, and what
each loader once dropped."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError
from paceline.draft.eagle_shape import EagleShape, random_weights
from paceline.draft.head import HeadFiles, load_head
from paceline.model.gguf import load_header, spec_of
from paceline.model.linear import plain
from paceline.model.load import load_model
from paceline.model.quantised import scheme_of
from paceline.model.rope import SCALINGS, rope
from tests.model.gguf.files import write_gguf
from tests.oracle.walk import Walked, close, ours, theirs, walk
from tests.tiny import FAMILIES, MORE, tiny_checkpoint

EVERY = [*FAMILIES, *MORE]
SOME = EVERY[::5]
"""Families of a quick run, and how much of each is walked there."""
SHARE = 0.04


def families(whole: bool) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.full) for name in EVERY] if whole else SOME


PLAIN = {"rope_type": "default", "rope_theta": 1e4}
BY_KIND = {"full_attention": PLAIN, "sliding_attention": PLAIN}


def options(family: str) -> dict[str, Any]:
    """What three layers need."""
    if family == "gemma4_text":
        return {"layer_types": ["sliding_attention", "full_attention", "full_attention"], "num_kv_shared_layers": 1}
    if family in ("olmo3", "ministral", "mellum"):
        dense = {"mlp_layer_types": ["dense", "sparse", "sparse"]} if family == "mellum" else {}
        return {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], **dense}
    kind = {"lfm2_moe": "conv", "lfm3": "conv", "granitemoehybrid": "linear_attention"}.get(family)
    return {} if kind is None else {"layer_types": [kind, "full_attention", kind]}


@pytest.mark.parametrize("family", families(False))
def test_some_keys_and_tensors(family: str, tmp_path: Path) -> None:
    walk(tmp_path, family, SHARE, seed=len(family), **options(family))


@pytest.mark.parametrize("family", families(True))
def test_every_key_and_tensor(family: str, tmp_path: Path, record_property: Any) -> None:
    found = walk(tmp_path, family, 1.0, seed=0, **options(family))
    record_property("walked", found)
    print(family, found)
    assert isinstance(found, Walked) and found.keys >= 18 and found.tensors >= 20 and found.moved >= 2


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "is_causal", False),
        ("gemma3", "is_causal", None),
        ("qwen3", "partial_rotary_factor", 0.5),
        ("mixtral", "rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0,
                                        "partial_rotary_factor": 0.25}),
        ("llama4_text", "rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                            "original_max_position_embeddings": 128}),
        ("olmo3", "rope_parameters", {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0}),
        ("llama", "rope_parameters", {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}),
        ("granite_swa", "rope_parameters", {**BY_KIND, "rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}),
    ],
)  # fmt: skip
def test_keys_that_programs_read_differently(family: str, key: str, value: Any, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, vocab=96, with_tokenizer=False)
    change(path, **{key: value})
    with pytest.raises(
        CheckpointError, match={"mixtral": "partial_rotary_factor", "llama4_text": "normed"}.get(family, key)
    ):
        load_model(path, dtype="float32", cache=False)


def test_a_part_of_each_head_is_rotated_where_all_programs_do(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "phi3", vocab=96, with_tokenizer=False)
    before = ours(path)
    change(path, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    found, expected = ours(path), theirs(path)
    assert isinstance(expected, torch.Tensor) and close(found, expected) and not close(found, before)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("mamba2", {"rescale_prenorm_residual": True}),  # says what weights are before a training
        ("olmo3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ("olmo3", {"rope_parameters": {**BY_KIND, "rope_theta": 1e4, "rope_type": "default"}}),
        ("llama", {"rope_parameters": {"full_attention": PLAIN, **PLAIN}}),
        ("llama", {"rope_parameters": {"full_attention": PLAIN}}),
        ("llama", {"rope_parameters": {**BY_KIND, "sliding_attention": {**PLAIN, "rope_theta": 5e5}, **PLAIN}}),
        ("mistral", {"rope_parameters": {**BY_KIND, "full_attention": {**PLAIN, "rope_theta": 5e5}, **PLAIN}}),
        ("granite_swa", {"rope_parameters": {**BY_KIND, "rope_theta": 3e4, "rope_type": "default"}}),
    ],
)
def test_keys_that_change_nothing(family: str, fields: dict[str, Any], tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, family, vocab=96, with_tokenizer=False)
    change(path, **fields)
    found = ours(path)
    if family == "mamba2":  # transformers 5 would multiply the weights that it has read
        change(path, rescale_prenorm_residual=False)
    assert close(found, theirs_of(path))


def theirs_of(path: Path) -> torch.Tensor:
    found = theirs(path)
    assert isinstance(found, torch.Tensor)
    return found


def test_the_default_rotations_of_lfm3(tmp_path: Path) -> None:
    """Those of whole texts turn a part of each head, which the kind of the rotation says."""
    path = tiny_checkpoint(tmp_path, "lfm3", vocab=96, with_tokenizer=False)
    assert json.loads((path / "config.json").read_text())["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    assert close(ours(path), theirs_of(path))


def change(path: Path, **fields: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotations_refuse_what_they_do_not_read(kind: str) -> None:
    full: dict[str, Any] = {
        "rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32, "beta_slow": 1,
        "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
    }  # fmt: skip
    read = {
        "default": (),
        "dynamic": ("factor",),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor", "beta_fast", "beta_slow"),
        "longrope": ("factor", "short_factor", "long_factor"),
        "proportional": ("factor",),
    }[kind]
    own = {key: it for key, it in full.items() if key in ("rope_type", "rope_theta", *read) or key.startswith("orig")}
    before, same = rope(own, 64, 128, 128), ("short_factor", "low_freq_factor", "high_freq_factor")
    for key in read:
        value = own[key]
        by = 1 / 8 if key.startswith("beta") else 8  # a smaller one: the text of the first training is short
        changed = own | {key: [by * it for it in value] if isinstance(value, list) else by * value}
        assert rope(changed, 64, 128, 128) != before or kind == "dynamic" or key in same
    for key in ("llama_4_scaling_beta", "extrapolation", *({*full} - {*own})):
        with pytest.raises(CheckpointError, match=key):
            rope(own | {key: full.get(key, 0.1)}, 64, 128, 128)
    for other in ("su", "ntk"):
        with pytest.raises(CheckpointError, match=other):
            rope(own | {"rope_type": other}, 64, 128, 128)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "gptq", "bits": 4, "dynamic": {r"+:.*down.*": {"bits": 8}}}, "form of their own"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "format marlin"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "blocks of FP8"),
        ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}},
            },
            "several kinds",
        ),
    ],
)
def test_settings_of_quantised_checkpoints(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        scheme_of({"quantization_config": settings})
    assert scheme_of({"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}}}})


def test_blocks_of_fp8_are_told_by_the_config(tmp_path: Path) -> None:
    """As many scales as outputs may be those of blocks."""
    from paceline.model.quantised import QuantisedLayer

    scale = torch.rand(4, 16) + 0.5
    parts = {"weight": torch.ones(64, 256).to(torch.float8_e4m3fn), "weight_scale_inv": scale}
    layer = QuantisedLayer("x", (64, 256), lambda member, _: parts[member], lambda member: member in parts)
    scheme = scheme_of({"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}})
    assert scheme is not None
    torch.testing.assert_close(scheme.read(layer), scale.repeat_interleave(16, 0).repeat_interleave(16, 1))
    whole = scheme_of({"quantization_config": {"quant_method": "fp8"}})
    assert whole is not None
    with pytest.raises(CheckpointError, match="scales of shape"):
        whole.read(layer)


def test_zeros_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "llama", vocab=96, with_tokenizer=False)
    weights, name = load_file(path / "model.safetensors"), "model.layers.0.self_attn.q_proj.bias"
    save_file({**weights, name: torch.zeros(32)}, path / "model.safetensors", {"format": "pt"})
    load_model(path, dtype="float32", cache=False)
    save_file({**weights, name: torch.full((32,), 0.1)}, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="no place for"):
        load_model(path, dtype="float32", cache=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.scale", 0.5), ("attn_logit_softcapping", 30.0), ("rope.scaling.factor", 4.0), ("expert_count", 4),
     ("attention.causal", False), ("a_key_of_tomorrow", 1)],
)  # fmt: skip
def test_keys_of_gguf(key: str, value: Any, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "qwen2", vocab=96, with_tokenizer=False, use_sliding_window=False)
    file = write_gguf(tmp_path / "model.gguf", path, **{f"qwen2__{key}": value})
    with pytest.raises(CheckpointError, match="mixture of experts" if key == "expert_count" else key):
        spec_of(load_header(file))


@pytest.mark.parametrize("key", ["expert_count", "expert_used_count", "expert_gating_func", "block_count",
                                 "expert_shared_feed_forward_length", "rope.scaling.type", "nextn_predict_layers",
                                 "pooling_type"])  # fmt: skip
def test_lists_in_place_of_numbers(key: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "qwen3_5_moe_text", vocab=96, with_tokenizer=False, full_attention_interval=2)
    file = write_gguf(tmp_path / "model.gguf", path, **{f"qwen35moe__{key}": [1, 2]})
    with pytest.raises(CheckpointError, match=key):
        load_model(file, dtype="float32", cache=False)
    file = write_gguf(tmp_path / "other.gguf", path, split__count=[1, 2])
    with pytest.raises(CheckpointError, match=r"split\.count"):
        load_model(file, dtype="float32", cache=False)


def test_tokens_of_gguf(tmp_path: Path) -> None:
    """A vocabulary without the rule by which text is cut, or that names a token twice, is refused."""
    from paceline.model.gguf import text_of

    path = tiny_checkpoint(tmp_path, "llama", num_key_value_heads=2)
    with pytest.raises(CheckpointError, match="pre"):
        text_of(write_gguf(tmp_path / "a.gguf", path, **{"tokenizer.ggml.pre": None}))
    words = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
    twice = [*sorted(words, key=words.__getitem__)[:-1], "a"]
    with pytest.raises(CheckpointError, match="names one token twice"):
        text_of(write_gguf(tmp_path / "b.gguf", path, **{"tokenizer.ggml.tokens": twice}))


SHAPE = EagleShape(8, 2, 1, 4, 16, 40, 20, 64, ("input:2", "input:3", "input:5"))
FLOAT = plain(torch.float32, torch.device("cpu"))


def test_heads_with_parts_that_are_not_computed(tmp_path: Path) -> None:
    """EAGLE-3: scaled rotations are used, variants refused; its authors' file is read."""
    layer = SHAPE.written()["transformer_layer_config"]
    scaled = {"rope_type": "linear", "factor": 4.0}
    weights = {**random_weights(SHAPE), "d2t": torch.arange(20)}
    torch.save(weights, tmp_path / "pytorch_model.bin")

    def load(**changes: Any) -> Any:
        written = SHAPE.written() | {"transformer_layer_config": layer | changes}
        (tmp_path / "config.json").write_text(json.dumps(written))
        return load_head(tmp_path, 8, 40, FLOAT, 8)[1]

    before, after = load(), load(rope_scaling=scaled)
    assert before.spec.attentions[0].rope != after.spec.attentions[0].rope
    assert EagleShape.read(after.shape.written()) == after.shape and HeadFiles(tmp_path).numbers() > 0
    for changes in (
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"type": "dynamic", "factor": 2}},
    ):
        with pytest.raises(CheckpointError, match=r"attention_bias|hidden_act|dynamic"):
            load(**changes)
    torch.save({**weights, "norm.bias": torch.ones(8)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        load()
