"""Rows of a joined text in the native decoder: the same bits in any pass, and close to the slow twin."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.joined import Layout, end_of, joined, stretch_at
from paceline.core.rows import RowsBuilder
from paceline.model.load import load_model
from paceline.native.build import Unit, library
from tests.model.test_native import checkpoints, native
from tests.oracle.cases import text

__all__ = ["checkpoints"]
pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2, or no compiler")
SIZE = 16
SHORT = joined(20, [(50, ()), (90, joined(30, [(44, ()), (39, ())])), (25, ())])
LONG = joined(600, [(1900, ()), (700, ()), (650, ())])
"""The second branch of the first nests; of the second a span of 1,024 keys is hidden in part, the next as a whole."""


def walk(decoder: Any, tokens: Sequence[int], layout: Layout, cut: int) -> Tensor:
    """Logits of all rows, in passes of at most `cut` rows of one stretch, over pages in disorder."""
    pages = -(-len(tokens) // SIZE)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(3)).tolist()
    decoder.allocate(pages, SIZE)
    place, outs = 0, []
    while place < len(tokens):
        end = min(place + cut, end_of(layout, place, len(tokens)))
        builder, stretch = RowsBuilder(), stretch_at(layout, place)
        slots = [table[p // SIZE] * SIZE + p % SIZE for p in range(place, end)]
        want = [*range(end - place)]
        builder.add(list(tokens[place:end]), slots, table, place, want=want, shift=stretch.shift, hidden=stretch.hidden)
        outs.append(decoder.forward(builder.build()).logits)
        place = end
    return torch.cat(outs)


@pytest.mark.parametrize("kv", [None, "int8"])
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
def test_a_row_has_the_same_bits_in_any_pass(checkpoints: dict[str, Path], unit: Unit, kv: str | None) -> None:
    decoder, tokens = native(checkpoints["llama-biases"], unit, kv=kv), text(3, SHORT[-1].start + 9)
    whole = walk(decoder, tokens, SHORT, 999)
    assert torch.equal(whole, walk(decoder, tokens, SHORT, 1)) and torch.equal(whole, walk(decoder, tokens, SHORT, 7))


@pytest.mark.parametrize("layout", [SHORT, LONG], ids=["nested", "long"])
@pytest.mark.parametrize("unit", Unit, ids=attrgetter("name"))
@pytest.mark.parametrize("form", ["llama-biases", pytest.param("qwen3", marks=pytest.mark.full)])
def test_slow_twin(checkpoints: dict[str, Path], form: str, unit: Unit, layout: Layout) -> None:
    """No further from float32 than the PyTorch decoder in bfloat16 is; and far from a text that sees everything."""
    tokens = text(5, layout[-1].start + 30)

    def logits(decoder: Any, layout: Layout = layout) -> Tensor:
        return walk(decoder, tokens, layout, 999)[-200:]

    exact = logits(load_model(checkpoints[form], dtype="float32"))
    twin = (logits(load_model(checkpoints[form], fast=False)) - exact).abs()
    decoder = native(checkpoints[form], unit)
    ours = (logits(decoder) - exact).abs()
    assert ours.mean() < 1.2 * twin.mean() and ours.max() < 3 * twin.max()
    assert (logits(decoder, ()) - exact).abs().mean() > 5 * twin.mean()
