"""`paceline info` on a config.json alone: popular models of 2026 by the numbers of their published cards."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli import app

CONFIGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "configs_2026.json").read_text())
BILLIONS = {
    "Qwen3-0.6B": 0.6, "Qwen3-8B": 8.2, "Qwen3-30B-A3B": 30.5, "Qwen3-VL-8B": 8.2, "Llama-3.1-8B": 8.0,
    "Llama-3.2-3B": 3.2, "Mistral-Small-3.2-24B": 23.6, "Ministral-3-8B": 8.5, "gemma-3-4b-it": 3.9,
    "gemma-3-12b-it": 11.8, "SmolLM3-3B": 3.1, "GLM-4.5-Air": 106.0, "ERNIE-4.5-21B-A3B": 21.9,
    "granite-3.1-3b-a800m": 3.3, "OLMoE-1B-7B": 6.9, "Mixtral-8x7B": 46.7, "gpt-oss-20b": 20.9, "Qwen3.5-9B": 8.95,
    "Granite-4.0-H-Tiny": 6.94, "Falcon-H1-0.5B": 0.52, "gemma-4-E4B": 7.5, "gemma-4-26B-A4B": 25.2,
    "GLM-4.7-Flash": 29.9, "DeepSeek-V2-Lite": 15.7, "Qwen3.5-35B-A3B": 34.7, "Qwen3-VL-30B-A3B": 30.5,
    "MiniMax-M2": 228.7, "dots.llm1": 142.8, "Kimi-K2-Instruct": 1026.0, "internlm3-8b": 8.8, "stablelm-2-1_6b": 1.64,
    "Minitron-8B-Base": 8.27, "Hunyuan-7B-Instruct": 7.5, "Hunyuan-A13B-Instruct": 80.4,
    "Apertus-8B-Instruct-2509": 8.05, "Phi-3.5-MoE": 41.9, "Qwen2.5-VL-7B-Instruct": 7.62,
    "EXAONE-3.5-7.8B-Instruct": 7.82, "stablelm-2-12b-chat": 12.14, "gemma-4-12B-it": 11.9, "Llama-4-Scout": 107.8,
    "Trinity-Mini": 26.1, "Hy3": 295.0, "FlexOlmo-7x7B-1T": 33.0,
}  # fmt: skip
"""Parameters of the text's model in billions, of those that are served, as their makers give them."""
NEAREST = {
    "DeepSeek-V4": "deepseek_v3",
    "MiMo-V2-Flash": "afmoe",
    "gemma-3n-E4B": "gemma4_text",
}
"""What is said of the others."""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    told = CliRunner().invoke(app, ["info", "--model", str(tmp_path), "--json"])
    if name in NEAREST:
        assert told.exit_code == 2 and f"nearest that is served is {NEAREST[name]};" in " ".join(told.output.split())
        assert CONFIGS[name]["model_type"] in told.output
        return
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["parameters"] == pytest.approx(1e9 * BILLIONS[name], rel=0.04)
    inner = CONFIGS[name].get("text_config", CONFIGS[name])  # a tied table lies there twice, as rows and as a head
    tied = CONFIGS[name].get("tie_word_embeddings", "gemma" in name) * inner["vocab_size"] * inner["hidden_size"]
    assert found["weight_bytes"]["bfloat16"] == pytest.approx(2 * (found["parameters"] + tied), rel=0.04)
    eight, four = (found["weight_bytes"][it] for it in ("int8", "int4"))
    if eight is not None:
        assert 0.5 < eight / found["parameters"] < 1.6 and four < eight
