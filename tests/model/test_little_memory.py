"""Files that memory has no room for: each reader says so in a sentence, and calls no good file damaged."""

import errno
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from paceline import LLM
from paceline.core.errors import CapacityError, memory_ended
from paceline.draft import released
from paceline.engine import build
from paceline.engine.gpu import named_memory
from paceline.model.checkpoint import open_tensors
from paceline.model.gguf import tensors
from paceline.model.lora_files import read_lora_tensors
from paceline.model.spread import table

ENDS = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("unable to mmap 8000000080 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*args: Any, **names: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_every_reader_says_so(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_ended(error) and not memory_ended(ValueError("cut off"))
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "x.bin").write_bytes(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors, "safe_open", failing(error))
        with pytest.raises(CapacityError, match=r"model.safetensors does not fit"):
            open_tensors(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", failing(error))
        with pytest.raises(CapacityError, match=r"x.bin does not fit"):
            released.read(tmp_path / "x.bin")
    for name, library, reader in (("safetensors", safetensors.torch, "load_file"), ("bin", torch, "load")):
        adapter = tmp_path / name / f"adapter_model.{name}"
        adapter.parent.mkdir()
        safetensors.torch.save_file({"a": torch.zeros(2)}, adapter)
        with monkeypatch.context() as patch:
            patch.setattr(library, reader, failing(error))
            with pytest.raises(CapacityError, match=rf"adapter {adapter.parent} does not fit"):
                read_lora_tensors(adapter.parent, 100, 2)
    with monkeypatch.context() as patch:
        patch.setattr(table, "safe_open", failing(error))
        with pytest.raises(CapacityError, match=r"routes does not fit"):
            table.read_table(tmp_path / "routes")
    with monkeypatch.context() as patch:
        patch.setattr(build, "found", failing(error))
        with pytest.raises(CapacityError, match="ran out of memory while the engine was made"):
            LLM("demo")
    if isinstance(error, OSError):
        monkeypatch.setattr(mmap, "mmap", failing(error))
        with pytest.raises(CapacityError, match=r"x.bin does not fit"):
            tensors.mapped(tmp_path / "x.bin")


def test_other_errors_keep_their_words() -> None:
    with pytest.raises(ValueError, match="cut off"), named_memory("here", "do that"):
        raise ValueError("cut off")
