"""Mutants of mixtures, which the comparison with transformers must find."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.model import blocks
from paceline.model.decoder import Decoder
from tests.oracle.cases import BLOCK, Case, Oracle, load, text, write
from tests.oracle.rows import feed

Routes = tuple[Tensor, Tensor]
ROUTES = blocks.routes


def used_twice(*given: Any) -> Routes:
    """The best expert stands for the second, too."""
    weights, chosen = ROUTES(*given)
    return weights, chosen[:, :1].expand_as(chosen)


def weighed_by_what_chooses(form: Any, scores: Tensor, correction: Tensor | None) -> Routes:
    """The number that is added where experts are chosen is in their weights, too."""
    _, chosen = ROUTES(form, scores, correction)
    worth = scores.sigmoid() + (0 if correction is None else correction)
    weights = worth.gather(-1, chosen)
    return form.scale * weights / weights.sum(-1, keepdim=True), chosen


def without_gates(decoder: Decoder) -> None:
    """The expert of all rows is not gated."""
    for block in decoder.weights.blocks:
        if block.mixture is not None:
            block.mixture.shared_gate = None


def without_factors(decoder: Decoder) -> None:
    """Experts' weights have no factors."""
    for block in decoder.weights.blocks:
        if block.mixture is not None:
            block.mixture.factors = None


GEMMA = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24,
         "layer_types": ["sliding_attention", "full_attention", "full_attention"]}  # fmt: skip
MUTANTS: dict[str, tuple[Case, Callable[..., Routes] | None, Callable[[Decoder], None] | None]] = {
    "an expert used twice": (Case("mixtral"), used_twice, None),
    "a correction that weighs": (Case("glm4_moe_lite"), weighed_by_what_chooses, None),
    "a shared expert without its gate": (Case("qwen2_moe"), None, without_gates),
    "experts without their factors": (Case("gemma4_text", GEMMA), None, without_factors),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, routes, change = MUTANTS[name]
    path, tokens = write(tmp_path, case), text(1)
    expected = Oracle(path).logits(tokens)
    sound = feed(load(path, case), tokens, range(10), BLOCK, [9])
    torch.testing.assert_close(sound, expected, rtol=1e-4, atol=1e-4)
    decoder = load(path, case)
    if routes is not None:
        monkeypatch.setattr(blocks, "routes", routes)
    if change is not None:
        change(decoder)
    assert (feed(decoder, tokens, range(10), BLOCK, [9]) - expected).abs().max() > 0.01
