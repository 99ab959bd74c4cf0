"""Checkpoints that read pictures, too, as text models: the tower is skipped, whatever the prefix of names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError
from paceline.model.load import load_model
from paceline.model.recognise import TEXT_BESIDE_TOWER
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import feed
from tests.tiny import randomise, tiny_config

SIZES = {"patch_size": 4, "image_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
QWEN = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
        "num_position_embeddings": 4, "deepstack_visual_indexes": []}  # fmt: skip
QWEN2 = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
QWEN25 = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4,
          "out_hidden_size": 32, "fullatt_block_indexes": [0]}  # fmt: skip
GLM = {"model_type": "glm4v_vision", "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
       "patch_size": 4, "out_hidden_size": 32, "image_size": 8}  # fmt: skip
UNIFIED = {"mm_embed_dim": 16, "mm_posemb_size": 8, "patch_size": 4, "output_proj_dims": 16}
SOUND = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
CLIP, SIGLIP = (SIZES | {"model_type": f"{name}_vision_model"} for name in ("clip", "siglip"))
GRID = {"image_grid_pinpoints": [[8, 8]]}
QWEN35 = {name: it for name, it in QWEN.items() if name != "deepstack_visual_indexes"}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (tiny_config("gemma3", vocab=96, layers=3), SIZES | {"model_type": "siglip_vision_model"}),
    "gemma4": (
        tiny_config("gemma4_text", vocab=96, layers=3, layer_types=["sliding_attention", *["full_attention"] * 2])
        | {"num_kv_shared_layers": 1},
        {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "position_embedding_size": 64,
        },
    ),
    "mistral3": (
        tiny_config("mistral", vocab=96, layers=3, head_dim=8),
        SIZES | {"model_type": "pixtral", "head_dim": 8},
    ),
    "mistral4": (
        tiny_config("deepseek_v3", vocab=96, layers=3)
        | {
            "model_type": "mistral4",
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "llama_4_scaling_beta": 0.1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        SIZES | {"model_type": "pixtral", "head_dim": 8},
    ),
    "qwen3_5": (tiny_config("qwen3_5_text", vocab=96, layers=3), QWEN35),
    "qwen3_5_moe": (tiny_config("qwen3_5_moe_text", vocab=96, layers=3), QWEN35),
    "qwen3_vl_moe": (tiny_config("qwen3_moe", vocab=96, layers=3) | {"model_type": "qwen3_vl_moe_text"}, QWEN),
    "qwen3_vl": (tiny_config("qwen3", vocab=96, layers=3) | {"model_type": "qwen3_vl_text"}, QWEN),
}


def inner(family: str, **changes: Any) -> dict[str, Any]:
    return tiny_config(family, vocab=96, layers=3) | changes


FURTHER: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (inner("qwen2", model_type="qwen2_vl_text", rope_parameters=SECTIONS), QWEN2, {}),
    "qwen2_5_vl": (inner("qwen2", model_type="qwen2_5_vl_text", rope_parameters=SECTIONS), QWEN25, {}),
    "gemma4_unified": (
        inner(
            "gemma4_text",
            model_type="gemma4_unified_text",
            layer_types=["sliding_attention", *["full_attention"] * 2],
            hidden_size_per_layer_input=0,
        ),
        UNIFIED,
        {},
    ),
    "glm46v": (
        inner(
            "llama",
            model_type="glm4v_text",
            rope_parameters=SECTIONS | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1]},
        ),
        GLM,
        {},
    ),
    "exaone4_5": (inner("exaone4"), QWEN25, {}),
    "lfm2_vl": (inner("lfm2"), SIZES | {"model_type": "siglip2_vision_model", "num_patches": 4}, {}),
    "llava": (inner("llama"), CLIP, {}),
    "llava_next": (inner("mistral", sliding_window=None), CLIP, GRID),
    "llava_onevision": (inner("qwen2"), SIGLIP, GRID),
    "smolvlm": (inner("llama"), SIZES, {}),
    "idefics3": (inner("llama"), SIZES, {}),
    "internvl": (inner("qwen3"), SIZES | {"image_size": [8, 8], "patch_size": [4, 4]}, {}),
    "voxtral": (inner("llama"), {}, {"audio_config": SOUND}),
}
"""More of them, with what else their configs say."""
QUICK = ("qwen2_5_vl", "gemma4_unified", "lfm2_vl", "smolvlm")
"""Those of a quick run."""
CASES = [
    *KINDS, *(pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in FURTHER)
]  # fmt: skip
for part in ("intermediate_size", "mlp_only_layers", "norm_topk_prob", "decoder_sparse_step"):
    KINDS["qwen3_5_moe"][0].pop(part, None)  # its config has none of them


def older(name: str) -> str:
    """As versions of transformers before 5 named the tensors."""
    if name.startswith("model.language_model."):
        return "language_model.model." + name.removeprefix("model.language_model.")
    if name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.")):
        return name
    return "language_model." + name if name.startswith("lm_head") else name.removeprefix("model.")


@pytest.mark.parametrize("kind", CASES)
def test_the_text_of_one_that_reads_pictures(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM

    more = {"mm_tokens_per_image": 4} if kind == "gemma3" else {}
    inner, tower, more = FURTHER[kind] if kind in FURTHER else (*KINDS[kind], more)
    if tower:
        more = more | {"vision_config": tower}
    whole = {"mistral4": "mistral3"}.get(kind, kind)
    config = AutoConfig.for_model(whole, text_config=inner, tie_word_embeddings=False, **more)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        make = AutoModelForImageTextToText if tower else AutoModelForMultimodalLM
        model = make.from_config(config, attn_implementation="eager").eval()
    randomise(model, 0)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([text(1)])).logits[0]
    published = load_file(tmp_path / "model.safetensors")
    for _ in range(2):
        ours = load_model(tmp_path, dtype="float32", cache=False)
        ours.allocate(BLOCKS, BLOCK)
        torch.testing.assert_close(feed(ours, text(1), range(10), BLOCK, [7, 8]), expected, rtol=1e-4, atol=1e-4)
        weights = load_file(tmp_path / "model.safetensors")
        save_file({older(name): it for name, it in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    saved = json.loads((tmp_path / "config.json").read_text())
    if kind in TEXT_BESIDE_TOWER:  # as it is published: next to the tower
        flat = {**saved["text_config"], **saved, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
        flat = {key: it for key, it in flat.items() if key not in ("text_config", "rope_parameters")}
        (tmp_path / "config.json").write_text(json.dumps(flat | {"model_type": kind, "rope_theta": 1e6}))
        save_file(published, tmp_path / "model.safetensors", {"format": "pt"})
        ours = load_model(tmp_path, dtype="float32", cache=False)
        ours.allocate(BLOCKS, BLOCK)
        torch.testing.assert_close(feed(ours, text(1), range(10), BLOCK, [7, 8]), expected, rtol=1e-4, atol=1e-4)
    saved["text_config"]["model_type"] = "gemma5_text"
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(CheckpointError, match="the nearest that is served is gemma"):
        load_model(tmp_path)
