"""The tensors of an adapter's file, which may come from anybody: looked at before it takes memory or time."""

import json
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, memory_ended, no_room_for

HEADER_BYTES, PART_BYTES = 1 << 20, 1 << 10
"""Bytes of a file that are no numbers: in all, and for each factor."""
WIDEST = 8
"""Bytes of the widest number."""


def check_size(path: Path, values: int, parts: int) -> None:
    """CheckpointError for a file that is larger than `values` numbers in `parts` factors can be."""
    _check_bytes(path, path.stat().st_size, values, parts)


def check_unpacked(path: Path, values: int, parts: int) -> None:
    """CheckpointError for a file of PyTorch's whose entries, which may be packed, are larger than that."""
    check_size(path, values, parts)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_bytes(path, sum(entry.file_size for entry in archive.infolist()), values, parts)


def _check_bytes(path: Path, size: int, values: int, parts: int) -> None:
    most = HEADER_BYTES + parts * PART_BYTES + WIDEST * values
    if size > most:
        raise CheckpointError(
            f"{path} has {size:,} bytes, but the largest adapter that this model takes has {most:,}; it is of another "
            "model, or damaged."
        )


def read_lora_tensors(path: Path, values: int, parts: int) -> dict[str, Tensor]:
    """All tensors of an adapter's file, by name; `values`, `parts`: numbers and factors of the largest that is served.
    CheckpointError for what is larger, damaged, or no plain tensor."""
    whole, pickled = path / "adapter_model.safetensors", path / "adapter_model.bin"
    try:
        if whole.is_file():
            from safetensors.torch import load_file

            check_size(whole, values, parts)
            with whole.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if size > HEADER_BYTES + parts * PART_BYTES or len(json.loads(file.read(size))) > 2 * parts + 1:
                    raise CheckpointError(
                        f"{whole} has more tensors than one of this model; it is of another model, or damaged."
                    )
            return dict(load_file(whole))
        if pickled.is_file():
            check_unpacked(pickled, values, parts)
            return plain(pickled, torch.load(pickled, map_location="cpu", weights_only=True), parts)
    except CheckpointError:
        raise
    except Exception as error:  # each library has errors of its own for a file that is cut or is none
        if memory_ended(error):
            raise no_room_for(f"The adapter {path}") from error
        raise CheckpointError(f"The adapter {path} cannot be read ({error}); its file is damaged.") from None
    raise CheckpointError(f"{path} has neither adapter_model.safetensors nor adapter_model.bin.")


def plain(path: Path, found: object, parts: int) -> dict[str, Tensor]:
    """Tensors by name that lie in the file as they are; others take more memory than it has."""
    tensors: dict[str, Tensor] = dict(found)  # type: ignore[call-overload]
    if len(tensors) > 2 * parts:
        raise CheckpointError(f"{path} has more tensors than one of this model; it is of another model, or damaged.")
    for name, it in tensors.items():
        fits = (
            isinstance(name, str) and isinstance(it, Tensor) and it.layout == torch.strided and it.device.type == "cpu"
        )
        if not fits or it.is_quantized or it.numel() * it.element_size() > it.untyped_storage().nbytes():
            raise CheckpointError(f"{path} has {str(name)[:100]}, which is no plain tensor; save the adapter again.")
    return tensors
