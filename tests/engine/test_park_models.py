"""Parked bytes and K/V on disk among models that are nearly alike: each change of the model is another model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError
from paceline.core.operations import Park, Resume
from paceline.engine import block_files
from tests.tiny import tiny_checkpoint

PROMPT = list(range(20, 60))
WISH = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, drafter="none").resolve({})


def tuned(path: Path, copy: Path) -> Path:
    """A fine-tune of the same size: one matrix with its rows in another order."""
    shutil.copytree(path, copy)
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in weights if "up_proj" in name)
    weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def test_nearly_alike_is_another_model(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_files, "DISK_FREE_BYTES", 0)
    turned = tiny_checkpoint(
        tmp_path / "rope", seed=1, rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    kv = f"{tmp_path / 'kv'}:10M"

    def load(path: Path, draft: Path | None = None, **options: Any) -> LLM:
        return LLM(path, draft, **{"dtype": "float32", "memory": "60M", "block_size": 4, "check": True, **options})

    with load(pair[0], pair[1], kv_disk=kv) as one:
        [want] = one.generate([PROMPT], WISH, progress=False)
        [request] = one.engine.submit(PROMPT, WISH)
        while len(request.output) < 5:
            one.engine.step()
        packed = one.engine.apply(Park(request.id))
    for path, options in (
        (tuned(pair[0], tmp_path / "tuned"), {}),
        (turned, {}),
        (pair[0], {"dtype": "bfloat16"}),
    ):
        with load(path, **options) as alone:
            [innocent] = alone.generate([PROMPT], WISH, progress=False)
        with load(path, kv_disk=kv, **options) as other:
            with pytest.raises(InputError, match="another model"):
                other.engine.apply(Resume(packed))
            [again] = other.generate([PROMPT], WISH, progress=False)
        assert again.token_ids == innocent.token_ids and again.stats.cached == 0
    with load(pair[0], kv_disk=kv) as same:
        [again] = same.engine.apply(Resume(packed))
        while same.engine.busy:
            same.engine.step()
        assert again.output == want.token_ids
        [found] = same.generate([PROMPT], WISH, progress=False)
        assert found.token_ids == want.token_ids and found.stats.cached == 36
