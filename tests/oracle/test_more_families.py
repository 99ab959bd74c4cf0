"""The other families against transformers: chunks, a tree, and half precision."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError, InputError, RefusalError
from paceline.model.checkpoint import read_config
from paceline.model.families import FAMILIES as KNOWN
from paceline.model.load import load_model
from paceline.model.spec import Experts
from paceline.native.build import library
from tests.oracle.cases import BLOCK, BLOCKS, LLAMA3, LONG, Case, Oracle, load, text, write
from tests.oracle.rows import Chunk, feed, lay_out
from tests.tiny import FAMILIES, MORE

SLIDING = ["sliding_attention", "sliding_attention", "full_attention"]
HYBRID = ["linear_attention", "full_attention", "linear_attention"]
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
CASES = {name: Case(name) for name in MORE} | {
    "exaone4-full": Case("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "starcoder2-untied": Case("starcoder2", {"tie_word_embeddings": False, "use_bias": False, "sliding_window": None}),
    "smollm3-window": Case("smollm3", {"use_sliding_window": True, "sliding_window": 6}),
    "olmo2-one-head": Case("olmo2", {"num_key_value_heads": 4, "attention_bias": True}),
    "lfm2_moe": Case("lfm2_moe", {"layer_types": ["conv", "full_attention", "conv"]}),
    "granitemoehybrid": Case("granitemoehybrid", {"layer_types": HYBRID}),
    "granitemoehybrid-dense": Case(
        "granitemoehybrid", {"layer_types": HYBRID, "num_local_experts": 0, "position_embedding_type": "rope"}
    ),
    "mamba2-biases": Case("mamba2", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True}),
    "mamba2-limits": Case("mamba2", {"time_step_limit": [0.3, 0.8], "n_groups": 1}),
    "falcon_h1-normed": Case("falcon_h1", {"mamba_rms_norm": True, "mamba_proj_bias": True, "projectors_bias": True}),
    "falcon_h1-gate-first": Case(
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen3_5-biases": Case("qwen3_5_text", {"attention_bias": True, "linear_num_value_heads": 6}),
    "qwen3_next-dense": Case("qwen3_next", {"mlp_only_layers": [1]}),
    "deepseek_v2-greedy": Case("deepseek_v2", {"topk_method": "greedy", "attention_bias": False, "q_lora_rank": 24}),
    "deepseek_v3-apart": Case("deepseek_v3", {"rope_interleave": False, "attention_bias": True, "q_lora_rank": None}),
    "gemma4-mixture": Case(
        "gemma4_text",
        {
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "layer_types": SLIDING,
            "attention_k_eq_v": False,
        },
    ),
    "gemma4-shared": Case(
        "gemma4_text",
        {
            "layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_text": Case("gemma4_text", {"layer_types": SLIDING, "hidden_size_per_layer_input": 32}),
    "mellum": Case("mellum", {"layer_types": SLIDING, "mlp_layer_types": ["dense", "sparse", "sparse"]}),
    "hunyuan-without-alpha": Case(
        "hunyuan_v1_dense", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 6.0}}
    ),
    "internlm3-dynamic": Case("internlm3", {"rope_parameters": {"rope_type": "dynamic", "factor": 6.0}}),
    "stablelm-without-biases": Case("stablelm", {"use_qkv_bias": False, "rope_parameters": QUARTER}),
    "stablelm-12b": Case("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "cohere-normed": Case("cohere", {"use_qk_norm": True}),
    "cohere2-full": Case("cohere2", {"layer_types": ["full_attention"] * 3}),
    "exaone4-full-with-a-window": Case("exaone4", {"layer_types": ["full_attention"] * 3}),
    "exaone_moe-full": Case("exaone_moe", {"layer_types": ["full_attention"] * 3}),
    "cohere2_moe-sigmoid": Case(
        "cohere2_moe",
        {
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "prefix_dense_sliding_window_pattern": 2,
            "prefix_dense_intermediate_size": None,
        },
    ),
    "llama4-every-layer": Case(
        "llama4_text", {"interleave_moe_layer_step": 1, "num_experts_per_tok": 1, "use_qk_norm": False}
    ),
    "llama4-scout": Case(
        "llama4_text",
        {
            "rope_parameters": {
                **LLAMA3,
                "rope_theta": 1e4,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 48,
            }
        },
    ),
    "lfm3": Case("lfm3", {"layer_types": ["conv", "sliding_attention", "full_attention"]}),
    "lfm3-ungated": Case("lfm3", {"layer_types": ["conv", *SLIDING[1:]], "use_attention_gate": False}),
    "granitemoe_swa-bases": Case("granitemoe_swa", {"layer_rope_theta": [0, 1e4, 5e5], "shared_intermediate_size": 0}),
    "granite_swa-bases": Case("granite_swa", {"layer_rope_theta": [0, 1e4, 5e5]}),
    "phimoe-long": Case(
        "phimoe",
        {
            "original_max_position_embeddings": 48,
            "rope_parameters": {
                **LONG["rope_parameters"],
                "short_mscale": 1.2,
                "long_mscale": 1.3,
                "original_max_position_embeddings": 48,
            },
        },
        max_len=48,
    ),
    "phimoe-plain": Case("phimoe", {"lm_head_bias": False, "attention_bias": False, "tie_word_embeddings": True}),
    "granite-biases": Case("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
}
RECURRENT = ("lfm2", "lfm3", "mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "qwen3_next", "qwen3_5")
VARIED = (
    "deepseek",
    "glm4_moe_lite",
    "gemma4",
    "sarvam_mla",
    "youtu",
    "hunyuan",
    "apertus",
    "phimoe",
    "llama4",
    "cohere2_moe",
)
NATIVE = [name for name in MORE if not name.startswith((*RECURRENT, *VARIED))]


def test_every_family_has_a_case() -> None:
    cases = {**FAMILIES, **MORE}.values()
    pictures = {
        "qwen3_vl_text", "qwen3_vl_moe_text", "mistral4", "qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text",
        "gemma4_unified_text",
    }  # test_pictures.py  # fmt: skip
    assert {case["model_type"] for case in cases} == set(KNOWN) - pictures


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    """In one pass, in chunks, and along a path of a tree."""
    path = write(tmp_path, CASES[name])
    ours, tokens = load(path, CASES[name]), text(1)
    expected = Oracle(path).logits(tokens)
    for cuts in ([], [1, 9, 12, 31]):
        torch.testing.assert_close(feed(ours, tokens, range(10), BLOCK, cuts), expected, rtol=1e-4, atol=1e-4)
    tree = lay_out([Chunk(range(12), 36, tokens[36:37], [5, *tokens[37:40]], [-1, -1, 1, 2])], BLOCK)
    feed(ours, tokens[:36], range(12), BLOCK, [])
    torch.testing.assert_close(ours.forward(tree).logits[[0, 2, 3, 4]], expected[36:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MORE)
def test_half(name: str, tmp_path: Path) -> None:
    """No further from float32 than transformers' own bfloat16 is, plus its rounding once more; natively where the
    layers are the native decoder's."""
    path, tokens = write(tmp_path, CASES[name]), text(1)
    exact = Oracle(path).logits(tokens)
    theirs = (Oracle(path, torch.bfloat16).logits(tokens) - exact).abs()
    decoder = load(path, CASES[name], "bfloat16")
    assert decoder.packing.native == (decoder.spec.common and library() is not None)
    assert name not in NATIVE or decoder.spec.common
    ours = (feed(decoder, tokens, range(10), BLOCK, [5, 6, 30]) - exact).abs()
    if any(isinstance(layer.feed, Experts) for layer in decoder.spec.layers):
        # Rounding may give a few tokens another expert, which is no small step: the usual row is compared.
        assert ours.mean(1).median() < 1.5 * theirs.mean(1).median()
    else:
        assert ours.mean() < 1.5 * theirs.mean() and ours.max() < 3 * theirs.max()


def test_what_is_not_served_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a", Case("olmoe", {"clip_qkv": 8.0}))
    with pytest.raises(CheckpointError, match="clip_qkv"):
        load_model(path)
    if library() is not None:
        path = write(tmp_path / "b", Case("falcon_h1"))
        with pytest.raises(RefusalError, match="falcon_h1 yet; leave kv_dtype out"):
            load_model(path, kv_dtype="int8")


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla"),
        ("hunyuan_v1_dense", {"use_qk_norm": False}, "use_qk_norm False"),
        ("hunyuan_v1_moe", {"num_shared_expert": [2, 2, 2]}, "num_shared_expert 2"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2, 2]}, "moe_topk differs"),
        ("apertus", {"post_norm": True}, "post_norm"),
        ("nemotron_h", {"time_step_limit": [0.1, 0.5]}, "time_step_limit"),
        ("hyperclovax", {"use_post_norm": False}, "use_post_norm"),
        ("hunyuan_v1_dense", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "alpha": 9.0}}, "alpha"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 9.0, "factor": 1.0}},
            "alpha",
        ),
        ("cohere2_moe", {"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ("cohere2_moe", {"expert_selection_fn": "sparsemax"}, "expert_selection_fn"),
        ("cohere2_moe", {"shared_expert_combination_strategy": "max"}, "shared_expert_combination_strategy"),
        ("lfm3", {"use_sandwich_norm": False}, "use_sandwich_norm"),
        ("afmoe", {"attention_bias": True}, "attention_bias"),
        ("afmoe", {"route_norm": False}, "route_norm"),
        ("afmoe", {"score_func": "softmax"}, "score_func"),
        ("afmoe", {"n_group": 2}, "n_group"),
        ("llama4_text", {"floor_scale": 0}, "floor_scale"),
        ("hy_v3", {"route_norm": False}, "route_norm"),
        ("hy_v3", {"qk_norm": False}, "qk_norm"),
        ("hy_v3", {"moe_router_use_sigmoid": False}, "moe_router_use_sigmoid"),
        ("hy_v3", {"moe_router_enable_expert_bias": False}, "moe_router_enable_expert_bias"),
        ("flex_olmo", {"clip_qkv": 0.01}, "clip_qkv"),
        ("granite_swa", {"layer_rope_theta": [1e4]}, "3 layers' rotations"),
    ],
)
def test_keys_of_the_authors_own_code(family: str, changes: dict[str, object], named: str, tmp_path: Path) -> None:
    """Keys that transformers does not read, and lists by layer: used or refused; one number for all layers is used."""
    path = write(tmp_path, CASES.get(family, Case(family)))
    before = read_config(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=named):
        read_config(path)
    if family == "hunyuan_v1_moe":
        (path / "config.json").write_text(json.dumps(config | {"moe_topk": [2] * 3, "num_shared_expert": [1] * 3}))
        assert read_config(path) == before


def test_mxfp4_experts(tmp_path: Path) -> None:
    """gpt-oss as it is published, experts in MXFP4, is the model of the dequantised numbers; a block of another size is
    named."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    path = write(tmp_path, Case("gpt_oss"))
    weights, stream = load_file(path / "model.safetensors"), torch.Generator().manual_seed(0)
    packed = dict(weights)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = weights[name].shape
        codes = torch.randint(16, (count, outputs, inputs), generator=stream, dtype=torch.uint8)
        exponent = torch.randint(122, 125, (count, outputs, inputs // 32), generator=stream, dtype=torch.uint8)
        wide = table[(codes & 7).long()] * (1 - 2 * (codes >> 3).float())
        wide *= torch.exp2(exponent.float() - 127).repeat_interleave(32, 2)
        weights[name] = wide.transpose(1, 2).contiguous()
        del packed[name]
        pairs = codes.view(count, outputs, inputs // 32, 16, 2)
        packed |= {f"{name}_blocks": pairs[..., 0] | pairs[..., 1] << 4, f"{name}_scales": exponent}
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    expected = Oracle(path).logits(text(1))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    save_file(packed, path / "model.safetensors", {"format": "pt"})
    ours = feed(load(path, Case("gpt_oss")), text(1), range(10), BLOCK, [7, 8])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    if library() is not None:
        own = load(path, Case("gpt_oss"), "bfloat16")
        assert {part.gate_up.c.bits for block in own.weights.blocks for part in block.ffn.experts} == {4}  # type: ignore[union-attr]
        assert (feed(own, text(1), range(10), BLOCK, [7, 8]) - expected).abs().median() < 0.2
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    save_file(packed | {name: packed[name][..., :8].contiguous()}, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="blocks of 32 numbers in 16 bytes"):
        load(path, Case("gpt_oss"))


@pytest.mark.parametrize("name", ["gemma4-shared", "deepseek_v3"])
def test_keys_of_several_shapes_move(name: str, tmp_path: Path) -> None:
    """Packed and unpacked elsewhere, and moved, the text goes on as it was; bytes of another size are refused."""
    path, tokens = write(tmp_path, CASES[name]), text(1)
    one, other = load(path, CASES[name]), load(path, CASES[name])
    whole = feed(one, tokens, range(10), BLOCK, [20])
    packed = one.read([*range(20)])
    assert len(packed) == 20 * one.kv_bytes_per_token
    other.write([*range(40, 60)], packed)
    other.move([*range(40, 60)], [*range(80, 100)])
    rows = lay_out([Chunk(range(20, 30), 20, tokens[20:])], BLOCK)
    torch.testing.assert_close(other.forward(rows).logits, whole[20:], rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="bytes"):
        other.write([0], packed)


QUICK = ("lfm2", "deepseek_v2", "gemma4_text", "qwen3_next")
LOOSE = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in MORE if name not in NATIVE]


@pytest.mark.skipif(library() is None, reason="8 and 4 bits are the library's")
@pytest.mark.parametrize("name", LOOSE)
def test_in_bits(name: str, tmp_path: Path) -> None:
    """Layers that are PyTorch's in 8 and 4 bits: the same rows, and less to read."""
    path, tokens = write(tmp_path, CASES[name]), text(1)
    exact, sizes = Oracle(path).logits(tokens), []
    for bits, near in ((8, 0.95), (4, 0.6)):
        decoder = load_model(path, quantize=f"int{bits}", cache=False)
        decoder.allocate(BLOCKS, BLOCK)
        sizes.append(decoder.weight_bytes)
        whole = feed(decoder, tokens, range(10), BLOCK, [])
        assert torch.nn.functional.cosine_similarity(whole, exact, dim=1).median() > near
        apart = feed(decoder, tokens, range(10), BLOCK, [5, 6, 30])
        assert torch.nn.functional.cosine_similarity(whole, apart, dim=1).median() > 0.999
    assert sizes[1] < 0.8 * sizes[0]
