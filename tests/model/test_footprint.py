"""Weights and cache as they were foretold from config and headers, against the loaded model, for every family."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.model.checkpoint import DTYPES, read_config
from paceline.model.load import form, load_model, measure
from paceline.model.native import NativeDecoder
from paceline.model.packed import Packed
from tests.tiny import FAMILIES, tiny_checkpoint


def held(part: Any) -> int:
    """Bytes of the tensors in an object of the decoder, each once."""
    seen: dict[int, int] = {}

    def visit(it: Any) -> None:
        if isinstance(it, torch.Tensor):
            seen[it.data_ptr()] = it.nbytes
        elif isinstance(it, list):
            for each in it:
                visit(each)
        elif isinstance(it, Packed):
            for tensor in (it.weight, it.bias, it.scale, it.sums):
                visit(tensor)
        elif hasattr(it, "__slots__") or hasattr(it, "__dict__"):
            for name in (*getattr(it, "__slots__", ()), *getattr(it, "__dict__", ())):
                if name != "spec":
                    visit(getattr(it, name, None))

    visit(part)
    return sum(seen.values())


@pytest.mark.parametrize(("quantize", "kv"), [(None, None), ("int4", "int8")])
@pytest.mark.parametrize("family", [*FAMILIES, "lfm2", "qwen3_5_text"])
def test_native_weights_are_counted_to_within_their_norms(
    family: str, quantize: str | None, kv: str | None, tmp_path: Path
) -> None:
    packing = form("bfloat16", None, "cpu")
    if not packing.native:
        pytest.skip("the native decoder is not available here")
    packing = form("bfloat16", quantize, "cpu", kv_dtype=kv)
    checkpoint = tiny_checkpoint(tmp_path, family, hidden=128)
    foretold = measure(checkpoint, read_config(checkpoint), packing)
    decoder = load_model(checkpoint, quantize=quantize, kv_dtype=kv)
    real = held(decoder.weights)
    assert real <= foretold.weights <= 1.1 * real
    assert isinstance(decoder, NativeDecoder)
    decoder.allocate(5, 12)
    assert foretold.kv(5, 12) == sum(it.nbytes for it in (decoder.keys, decoder.values, *decoder.scales))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pool_in_pytorch(dtype: str, tmp_path: Path) -> None:
    checkpoint, packing = tiny_checkpoint(tmp_path), form(dtype, None, "cpu", fast=False)
    foretold = measure(checkpoint, read_config(checkpoint), packing)
    decoder = load_model(checkpoint, dtype=dtype, fast=False)
    decoder.allocate(5, 12)
    assert foretold.kv(5, 12) == decoder.pools[0].slots.nbytes == 60 * decoder.kv_bytes_per_token
    assert isinstance(decoder.weights.embedding, torch.Tensor)
    whole = decoder.weights.embedding.numel() * DTYPES[dtype].itemsize
    assert foretold.weights >= decoder.weight_bytes + whole


def test_more_of_anything_takes_more(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        checkpoint = tiny_checkpoint(tmp_path / dtype)
        it = measure(checkpoint, read_config(checkpoint), form(dtype, None, "cpu"))
        base = it.scratch(8, 4, 100)
        assert it.scratch(9, 4, 100) > base and it.scratch(8, 4, 200) > base and it.scratch(8, 8, 100) >= base
