"""Storage dtypes, sharding and slow twins: the same model by another road."""

from pathlib import Path

import pytest
import torch

from paceline.model.load import load_model
from paceline.model.rope import rope, without_scales
from tests.oracle.cases import BLOCK, CASES, Case, Oracle, load, text, write
from tests.oracle.rows import Chunk, feed, lay_out

FAMILIES = ["llama-biases", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half(tmp_path: Path, name: str, dtype: str) -> None:
    """No further from float32 than transformers' own half precision is, plus its rounding once more."""
    path = write(tmp_path, CASES[name])
    tokens, half = text(1), getattr(torch, dtype)
    exact = Oracle(path).logits(tokens)
    theirs = (Oracle(path, half).logits(tokens) - exact).abs()
    for fast in (True, False):
        ours = (feed(load(path, CASES[name], dtype, fast), tokens, range(10), BLOCK, [5, 6, 30]) - exact).abs()
        assert ours.mean() < 1.5 * theirs.mean() and ours.max() < 3 * theirs.max()


@pytest.mark.parametrize("name", FAMILIES)
def test_slow_twin(tmp_path: Path, name: str) -> None:
    """The whole decoder of plain parts against the fast one, trees included."""
    path = write(tmp_path, CASES[name])
    tokens = text(2, 20)
    rows = lay_out([Chunk([4, 9, 2, 7, 1, 8], 0, tokens[:15], tokens[15:], [-1, 0, 0, 1, -1])], BLOCK)
    fast, slow = (load(path, CASES[name], fast=fast).forward(rows).logits for fast in (True, False))
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


def test_float64(tmp_path: Path) -> None:
    path, tokens = write(tmp_path, CASES["llama"]), text(3)
    logits = feed(load(path, CASES["llama"], "float64"), tokens, range(10), BLOCK, [7, 8])
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits.float(), Oracle(path).logits(tokens), rtol=1e-4, atol=1e-4)


def test_half_cache_holds_what_a_draft_row_used(tmp_path: Path) -> None:
    """In bfloat16 a token's logits do not depend on whether its parents were candidates or cached."""
    path, tokens = write(tmp_path, CASES["llama"]), text(4, 12)
    decoder = load(path, CASES["llama"], "bfloat16")
    given = feed(decoder, tokens, range(3), BLOCK, list(range(1, 12)))
    feed(decoder, tokens[:8], range(3), BLOCK, [])
    tree = lay_out([Chunk(range(3), 8, tokens[8:9], tokens[9:], [-1, 0, 1])], BLOCK)
    torch.testing.assert_close(decoder.forward(tree).logits, given[8:], rtol=1e-4, atol=1e-4)


def test_sharded(tmp_path: Path) -> None:
    tokens = text(5)
    logits = []
    for name, shard in ("single", "5GB"), ("sharded", "20KB"):
        path = write(tmp_path / name, Case("gemma2"), shard=shard)
        logits.append(feed(load(path, Case("gemma2")), tokens, range(10), BLOCK, []))
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert torch.equal(*logits)


def test_long_factors_with_their_own_scale() -> None:
    """Phi-3.5-MoE's: by the length that is served."""
    params = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0],
              "short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": 48}  # fmt: skip
    short, long = (rope(without_scales(params, length), 4, 96, length) for length in (48, 49))
    assert (short.scale, long.scale) == (1.2, 1.3)
    assert long.inverse == pytest.approx((1 / 3, 1 / 400)) and short.inverse == pytest.approx((1.0, 1 / 200))


def test_longrope_is_fixed_at_load(tmp_path: Path) -> None:
    """A short text reads by the long factors when the engine may serve long ones: one rotation for all keys."""
    path = write(tmp_path, CASES["phi3-longrope-short"])
    tokens = text(6, 20)
    long, short = load_model(path, dtype="float32"), load_model(path, dtype="float32", max_len=48)
    assert (long.max_len, short.max_len) == (512, 48)
    for decoder in (long, short):
        decoder.allocate(16, BLOCK)
    logits = [feed(decoder, tokens, range(5), BLOCK, []) for decoder in (long, short)]
    torch.testing.assert_close(logits[1], Oracle(path).logits(tokens), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(*logits, rtol=0.01, atol=0.01)
