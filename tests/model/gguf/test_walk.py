"""A key or a tensor of a GGUF file that changes the arithmetic is used or refused, never dropped: all architectures."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.gguf.files import write_gguf
from tests.model.gguf.test_models import mistral4
from tests.model.gguf.tiny_files import OTHERS, USUAL
from tests.model.gguf.walk import SILENT, Seen, walk, walk_words
from tests.tiny import tiny_checkpoint

EVERY = {**USUAL, **OTHERS}
SHARE = 0.06
OF_DENSE = ("feed_forward_length",)
"""The width of dense parts, where all layers are mixtures."""
OWN_SILENT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "gpt_oss", "qwen3_5_moe_text", "qwen3_next", "minimax_m2"), OF_DENSE),
    "granitemoehybrid": ("rope.dimension_count", "rope.freq_base", "rope.scale_linear"),  # nothing is rotated
    "gemma4_text": ("expert_gating_func = True", "blk.4.layer_output_scale.weight"),  # a factor before the last norm
    "youtu": ("expert_feed_forward_length", "leading_dense_block_count = 0"),
    "deepseek_v3": ("rope.scaling.original_context_length",),  # it moves the same bounds
    # up to the length of the first training: what comes beyond it is not served
    "ministral3": ("context_length", "attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
}
"""What says nothing in a family's tiny file."""
YARN_BOUNDS = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
"""They move whole numbers of frequencies, of which a tiny head has four."""


def walked(family: str, path: Path, share: float) -> Seen:
    changes: dict[str, Any] = {"layers": 3, **EVERY[family]}
    tiny_checkpoint(path, family, vocab=96, with_tokenizer=False, **changes)
    silent = (*SILENT, *YARN_BOUNDS, "expert_gating_func = 0", *OWN_SILENT.get(family, ()))
    return walk(write_gguf(path / "model.gguf", path), share, silent)


@pytest.mark.parametrize("family", [*EVERY][::5])
def test_some_changes_of_a_file(family: str, tmp_path: Path) -> None:
    found = walked(family, tmp_path, SHARE)
    assert not found.dropped and found.refused > 0


@pytest.mark.parametrize("family", [pytest.param(it, marks=pytest.mark.full) for it in EVERY])
def test_every_change_of_a_file(family: str, tmp_path: Path, record_property: Any) -> None:
    found = walked(family, tmp_path, 1.0)
    record_property("walked", found)
    print(family, found)
    assert not found.dropped and found.keys > 350 and found.tensors > 25


def test_every_key_of_a_tokenizer(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "llama", layers=1)
    found = walk_words(write_gguf(tmp_path / "model.gguf", path))
    assert not found.dropped and found.keys > 80 and found.refused > 20


@pytest.mark.full
def test_every_change_of_a_mistral4(tmp_path: Path) -> None:
    silent = (
        "rope.scaling.original_context_length",
        "attention.temperature_scale",
        "context_length",
        "expert_gating_func = 0",
    )
    path, _ = mistral4(tmp_path)
    found = walk(write_gguf(path / "model.gguf", path), 1.0, (*SILENT, *YARN_BOUNDS, *silent))
    assert not found.dropped and found.keys > 350
