"""Files of adapters that would take more memory or time than any adapter of a model may: refused before they do."""

import json
import os
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.lora_files import HEADER_BYTES, read_lora_tensors

VALUES, PARTS = 64, 2
GOOD = {"a": torch.zeros(4, 8), "b": torch.zeros(8, 4)}


def test_one_that_fits_is_read(tmp_path: Path) -> None:
    save_file(GOOD, tmp_path / "adapter_model.safetensors")
    assert read_lora_tensors(tmp_path, VALUES, PARTS).keys() == GOOD.keys()
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save(GOOD, tmp_path / "adapter_model.bin")
    assert read_lora_tensors(tmp_path, VALUES, PARTS).keys() == GOOD.keys()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({**GOOD, "a": torch.zeros(1).expand(4, 10**9)}, "no plain tensor"),
        ({**GOOD, "a": torch.zeros(4, 8, device="meta")}, "no plain tensor"),
        ({**GOOD, "a": torch.eye(4).to_sparse()}, "no plain tensor"),
        ({1: torch.zeros(1)}, "no plain tensor"),
        ({"a": 1}, "no plain tensor"),
        ([1, 2], "cannot be read"),
        ({**GOOD, **{f"c{i}": torch.zeros(1) for i in range(2 * PARTS)}}, "more tensors"),
        ({"a": torch.zeros(1 << 19)}, "bytes, but the largest"),
    ],
    ids=["stretched", "meta", "sparse", "number", "no tensor", "list", "many", "large"],
)
def test_pickled(tmp_path: Path, made: object, words: str) -> None:
    torch.save(made, tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=words):
        read_lora_tensors(tmp_path, VALUES, PARTS)


def test_packed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "adapter_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(4 * HEADER_BYTES))
    with pytest.raises(CheckpointError, match="bytes, but the largest"):
        read_lora_tensors(tmp_path, VALUES, PARTS)


def written(path: Path, header: dict[str, object], size: int) -> None:
    """A file of holes behind a header."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + size)


def test_holes(tmp_path: Path) -> None:
    size = 8 * HEADER_BYTES
    written(
        tmp_path / "adapter_model.safetensors",
        {"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}},
        size,
    )
    with pytest.raises(CheckpointError, match="bytes, but the largest"):
        read_lora_tensors(tmp_path, VALUES, PARTS)


def test_names(tmp_path: Path) -> None:
    empty: dict[str, Tensor] = {str(i): torch.zeros(0) for i in range(9)}
    save_file(empty, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="more tensors"):
        read_lora_tensors(tmp_path, VALUES, PARTS)
