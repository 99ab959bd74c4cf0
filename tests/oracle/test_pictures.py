"""Checkpoints that read pictures, too, as text models: the tower is skipped, whatever the prefix of names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import CheckpointError
from paceline.model.load import load_model
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import feed
from tests.tiny import randomise, tiny_config

SIZES = {"patch_size": 4, "image_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
QWEN = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
        "num_position_embeddings": 4, "deepstack_visual_indexes": []}  # fmt: skip
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


for part in ("intermediate_size", "mlp_only_layers", "norm_topk_prob", "decoder_sparse_step"):
    KINDS["qwen3_5_moe"][0].pop(part, None)  # its config has none of them


def older(name: str) -> str:
    """As versions of transformers before 5 named the tensors."""
    if name.startswith("model.language_model."):
        return "language_model.model." + name.removeprefix("model.language_model.")
    return "language_model." + name if name.startswith("lm_head") else name.removeprefix("model.")


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_one_that_reads_pictures(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    inner, tower = KINDS[kind]
    more = {"mm_tokens_per_image": 4} if kind == "gemma3" else {}
    whole = {"mistral4": "mistral3"}.get(kind, kind)
    config = AutoConfig.for_model(whole, text_config=inner, vision_config=tower, tie_word_embeddings=False, **more)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    randomise(model, 0)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([text(1)])).logits[0]
    for _ in range(2):
        ours = load_model(tmp_path, dtype="float32", cache=False)
        ours.allocate(BLOCKS, BLOCK)
        torch.testing.assert_close(feed(ours, text(1), range(10), BLOCK, [7, 8]), expected, rtol=1e-4, atol=1e-4)
        weights = load_file(tmp_path / "model.safetensors")
        save_file({older(name): it for name, it in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["text_config"]["model_type"] = "gemma5_text"
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(CheckpointError, match="the nearest that is served is gemma"):
        load_model(tmp_path)
