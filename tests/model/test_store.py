"""Packed weights on disk: the same model to the bit, whole files or none, and a bad one is packed again."""

import logging
import os
from pathlib import Path

import pytest
import torch

from paceline.core.errors import CheckpointError
from paceline.model import parts, store
from paceline.model.decoder import Decoder
from paceline.model.load import load_model
from paceline.model.native import NativeDecoder
from paceline.native.build import library
from tests.model.gguf.files import write_gguf
from tests.oracle.cases import BLOCK, BLOCKS, text
from tests.oracle.rows import feed
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX-512 BF16 or no compiler")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every model is worth a file, in a directory of the test's own."""
    library()
    monkeypatch.setattr(store, "MIN_STORED_BYTES", 0)
    monkeypatch.setattr(parts, "home", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "packed"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "model", "qwen2", vocab=96, hidden=64, with_tokenizer=False)


def logits(path: Path, **options: object) -> torch.Tensor:
    return fed(load_model(path, **options))  # type: ignore[arg-type]


def fed(decoder: Decoder) -> torch.Tensor:
    decoder.allocate(BLOCKS, BLOCK)
    return feed(decoder, text(1), range(10), BLOCK, [7, 8])


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "phi3"])
def test_the_same_bits(family: str, quantize: str | None, small: Path, tmp_path: Path) -> None:
    """Packed, read back, and without a cache; the checkpoint is not read the second time."""
    checkpoint = tiny_checkpoint(tmp_path / "model", family, vocab=96, hidden=64, with_tokenizer=False)
    plain = logits(checkpoint, quantize=quantize, cache=False)
    assert not small.exists()
    first = logits(checkpoint, quantize=quantize)
    [file] = small.iterdir()
    assert file.suffix == ".weights" and file.stat().st_mode & 0o077 == 0
    state, before = file.stat(), os.stat(checkpoint / "model.safetensors")
    with open(checkpoint / "model.safetensors", "r+b") as weights:  # other bytes, of the same age
        weights.seek(-64, os.SEEK_END)
        weights.write(bytes(64))
    os.utime(checkpoint / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    second = logits(checkpoint, quantize=quantize)
    assert torch.equal(plain, first) and torch.equal(first, second)
    assert file.stat().st_mtime_ns == state.st_mtime_ns
    assert not torch.equal(second, logits(checkpoint, quantize=quantize, cache=False))


@pytest.mark.parametrize("quantize", [None, "int4"])
def test_late_weights_are_the_same_bits_and_move(quantize: str | None, checkpoint: Path, small: Path) -> None:
    """From the map, on the way, and in memory of their own; what lies in the map is checked, too."""
    expected = logits(checkpoint, quantize=quantize)
    decoder = load_model(checkpoint, quantize=quantize, late=True)
    assert isinstance(decoder, NativeDecoder) and decoder.settling is not None
    places = {it.data_ptr() for it in weights_of(decoder)}
    assert torch.equal(fed(decoder), expected)
    decoder.settle()
    assert decoder.settling is None
    assert not places & {it.data_ptr() for it in weights_of(decoder)}
    assert {layer.down.weight for layer in decoder.layers} <= {it.data_ptr() for it in weights_of(decoder)}
    assert decoder.model.head.weight in {it.data_ptr() for it in weights_of(decoder)}
    assert torch.equal(fed(decoder), expected)
    [file] = small.iterdir()
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    assert torch.equal(fed(load_model(checkpoint, quantize=quantize, late=True)), expected)


def weights_of(decoder: NativeDecoder) -> list[torch.Tensor]:
    return [it.weight for group in decoder.matrices() for it in group]


def test_one_file_a_form(checkpoint: Path, small: Path) -> None:
    """bfloat16 and int8 have files of their own; a changed checkpoint's takes the old one's place."""
    for options in ({}, {"quantize": "int8"}, {}):
        logits(checkpoint, **options)
    logits(checkpoint, max_len=100)
    logits(checkpoint, vocabulary=(96, 90))
    assert len(list(small.iterdir())) == 2
    names = {file.name for file in small.iterdir()}
    os.utime(checkpoint / "model.safetensors")
    logits(checkpoint)
    assert len(list(small.iterdir())) == 2 and len(names & {file.name for file in small.iterdir()}) == 1


def test_gguf(checkpoint: Path, small: Path) -> None:
    plain = tiny_checkpoint(checkpoint.parent / "other", "llama", vocab=96, hidden=64, with_tokenizer=False)
    file = write_gguf(checkpoint / "model.gguf", plain)
    first, second = logits(file), logits(file)
    assert torch.equal(first, second) and len(list(small.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "head", "body", "layout", "shared", "part"])
def test_a_bad_file_is_packed_again(
    damage: str, checkpoint: Path, small: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(checkpoint)
    [file] = small.iterdir()
    raw = bytearray(file.read_bytes())
    if damage == "cut":
        raw = raw[: len(raw) // 2]
    elif damage == "empty":
        raw = bytearray()
    elif damage == "head":
        raw[-20] ^= 255
    elif damage == "body":
        raw[100] ^= 1
    elif damage == "part":
        raw = bytearray(bytes(raw).replace(b'"bytes": ', b'"bites": ', 1))
    elif damage == "layout":
        raw = bytearray(bytes(raw).replace(b'"layout": 3', b'"layout": 0'))
    file.write_bytes(raw)
    file.chmod(0o666 if damage == "shared" else 0o600)
    with caplog.at_level(logging.WARNING):
        again = logits(checkpoint)
    [said] = [record.getMessage() for record in caplog.records if "Packed weights" in record.getMessage()]
    assert "\n" not in said and "packed again" in said
    assert torch.equal(again, expected)
    [file] = small.iterdir()
    caplog.clear()
    assert torch.equal(logits(checkpoint), expected) and not caplog.records


def test_no_room(
    checkpoint: Path, small: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where there was none to begin with nor where the disk fills up; the model is served."""
    expected = logits(checkpoint, cache=False)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(store, "FREE_DISK_BYTES", 1 << 62)
        assert torch.equal(logits(checkpoint), expected) and not list(small.iterdir())
        assert "make room" in caplog.text
    caplog.clear()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "fsync", full)
        assert torch.equal(logits(checkpoint), expected) and not list(small.iterdir())
        assert "No space left" in caplog.text


def test_a_checkpoint_that_is_refused_leaves_nothing(checkpoint: Path, small: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    save_file(weights | {"adapter": torch.zeros(2)}, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="adapter"):
        load_model(checkpoint)
    assert not list(small.iterdir())


def test_a_directory_that_cannot_be_written(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(parts, "home", lambda: tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(checkpoint), logits(checkpoint, cache=False))
    assert "not kept" in caplog.text
