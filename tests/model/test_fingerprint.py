"""The identity of a model: equal for equal weights, dtypes and positions, and for nothing else."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from paceline.model import parts, store
from paceline.model.load import load_model
from tests.tiny import tiny_checkpoint


def identity(path: Path, **options: Any) -> str:
    return load_model(path, **{"dtype": "float32", **options}).identity


def test_each_difference_shows(tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "a", seed=1)
    tuned = tiny_checkpoint(tmp_path / "b", seed=1)
    weights = load_file(tuned / "model.safetensors")
    name = next(name for name in weights if "norm" in name)
    weights[name][0] += 0.5
    save_file(weights, tuned / "model.safetensors", metadata={"format": "pt"})
    swapped = tiny_checkpoint(tmp_path / "c", seed=1)
    weights = load_file(swapped / "model.safetensors")
    name = next(name for name in weights if "down" in name)
    weights[name] = weights[name].flip(0).contiguous()  # the same numbers, and so the same sum
    save_file(weights, swapped / "model.safetensors", metadata={"format": "pt"})
    turned = tiny_checkpoint(
        tmp_path / "d", seed=1, rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    shorter = tiny_checkpoint(tmp_path / "e", seed=1, sliding_window=9, model_type="mistral")
    names = [identity(path) for path in (base, tuned, swapped, turned, shorter)]
    names += [identity(base, dtype="bfloat16"), identity(base, dtype="float16")]
    assert len(set(names)) == len(names) and all(len(it) == 32 for it in names)
    assert identity(base) == names[0] == identity(tiny_checkpoint(tmp_path / "again", seed=1))
    assert identity(base, max_len=100) == names[0]


def test_it_is_kept_beside_packed_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from packed weights hashes nothing, and finds the same identity."""
    from paceline.model.fingerprint import Fingerprint

    base = tiny_checkpoint(tmp_path / "a", seed=1)
    monkeypatch.setattr(store, "MIN_STORED_BYTES", 0)
    monkeypatch.setattr(store, "FREE_DISK_BYTES", 0)
    monkeypatch.setattr(parts, "home", lambda: tmp_path / "cache")
    model = load_model(base, dtype="bfloat16")
    if not model.packing.native:
        pytest.skip("packed weights are the native decoder's")
    assert list((tmp_path / "cache" / "packed").glob("*.weights"))
    monkeypatch.setattr(Fingerprint, "add", lambda *args: pytest.fail("something was hashed"))
    assert load_model(base, dtype="bfloat16").identity == model.identity
    monkeypatch.undo()
    assert load_model(base, dtype="bfloat16", cache=False).identity == model.identity
    assert load_model(base, dtype="bfloat16", cache=False, kv_dtype="int8").identity != model.identity
