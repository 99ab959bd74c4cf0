"""Packed weights on disk: what a model took seconds to minutes to pack is read back as it lay in memory.

    a file: the parts, each from a multiple of 64 on; the header (JSON: layout, digest of the weights, parts by name);
    its length; MAGIC

Written next to its place and renamed when whole; read through a map into the memory that passes read from, which has
huge pages where a map of a file has none; each part is checked by the sum of its words.
"""

import hashlib
import json
import logging
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from paceline.core.errors import CapacityError
from paceline.model import pages
from paceline.model.linear import Linear, Packing
from paceline.model.packed import Packed, restored, shown
from paceline.model.spec import ModelSpec
from paceline.native.store import home

log = logging.getLogger("paceline")
MAGIC, LAYOUT = b"PACELINE", 2
"""LAYOUT changes with whatever changes the bytes of a part or of this file."""
MIN_STORED_BYTES = 64 << 20
"""Bytes of weights from which on packing is worth a file."""
FREE_DISK_BYTES = 1 << 30
"""Bytes that stay free on the disk."""
STORE_LINE_BYTES = 64


class Straight:
    """Nothing is kept."""

    digest = ""
    """Digest of the weights (`fingerprint`), once all are taken."""

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A small tensor, or the embedding, by name."""
        return make()

    def linear(self, name: str, make: Callable[[], Linear]) -> Linear:
        """A packed layer by name."""
        return make()


def place(files: list[Path], spec: ModelSpec, packing: Packing, vocabulary: tuple[int, int] | None) -> Path:
    """Where the packed weights of this checkpoint, in this form, are kept: another name for any other content."""
    states = [(str(file.resolve()), *((s := file.stat()).st_size, s.st_mtime_ns)) for file in files]
    layers = [(len(layer.attention.rope.inverse), layer.feed) for layer in spec.layers]
    weights = replace(spec, max_len=0, layers=())  # neither context nor rotation is in them
    fitted = None if vocabulary is None or vocabulary[0] == spec.vocab else vocabulary
    key = hashlib.sha256(repr((LAYOUT, states, weights, layers, packing.describe(), fitted)).encode()).hexdigest()
    return home() / "packed" / f"{family(files, packing)}-{key[:16]}.weights"


def family(files: list[Path], packing: Packing) -> str:
    """The part of the name that all versions of one checkpoint in one form share: a new one takes the others' place."""
    first = files[0].resolve()
    of = hashlib.sha256(str(first).encode()).hexdigest()[:8]
    name = first.stem if first.suffix == ".gguf" else first.parent.name
    return f"{name[:60]}-{packing.name.replace(' ', '-')}-{of}"


class StoreWriter(Straight):
    """Keeps each part as it is made. A context: what is left when the block ends well is a whole file; else nothing."""

    def __init__(self, target: Path, total: int, strict: bool = False) -> None:
        """`total`: most bytes that it will take. `strict`: a disk that fills up is an error, not a word. OSError or
        CapacityError where it cannot be written."""
        self.target, self.parts, self.at, self.strict = target, dict[str, Any](), 0, strict
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(target.parent).free
        if free < total + FREE_DISK_BYTES:
            raise CapacityError(
                f"packed weights take up to {total / 1e9:.1f} GB in {target.parent}, where {free / 1e9:.1f} GB are "
                "free; make room, set PACELINE_CACHE to another directory, or give --no-weights-cache."
            )
        handle, self.name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
        self.file: BinaryIO | None = os.fdopen(handle, "wb")

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        made = make()
        self.add(name, {"it": made}, {})
        return made

    def linear(self, name: str, make: Callable[[], Linear]) -> Linear:
        made = make()
        if isinstance(made, Packed):
            self.add(name, *shown(made))
        return made

    def add(self, name: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, int]) -> None:
        """A disk that fills up ends the writing, not the loading."""
        self.parts[name] = {"numbers": dict(numbers), "tensors": {}}
        for key, tensor in tensors.items():
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            self.parts[name]["tensors"][key] = {
                "at": self.at, "bytes": len(flat), "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape), "sum": total(flat),
            }  # fmt: skip
            self.put(flat.numpy().data, -len(flat) % STORE_LINE_BYTES)

    def put(self, data: Any, padding: int) -> None:
        if self.file is None:
            return
        try:
            self.file.write(data)
            self.file.write(bytes(padding))
            self.at += len(data) + padding
        except OSError as error:
            self.drop(error)

    def drop(self, error: object = None) -> None:
        """Leave nothing behind."""
        if self.file is not None:
            self.file.close()
        self.file = None
        Path(self.name).unlink(missing_ok=True)
        log.warning(
            "Packed weights could not be kept in %s (%s); the next start packs again.", self.target.parent, error
        )

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.drop()
        if self.file is None:
            return
        header = json.dumps({"layout": LAYOUT, "digest": self.digest, "parts": self.parts}).encode()
        try:
            self.file.write(header + struct.pack("<Q", len(header)) + MAGIC)
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            os.replace(self.name, self.target)
        except OSError as failed:
            self.drop(failed)
            return
        prefix = self.target.name.rpartition("-")[0]
        for old in self.target.parent.glob(f"{prefix}-*.weights"):
            if old != self.target:
                old.unlink(missing_ok=True)


def total(flat: Tensor) -> int:
    """The sum of the bytes as 64-bit words, modulo 2^64."""
    words = len(flat) // 8 * 8
    aligned = flat[:words] if flat.data_ptr() % 8 == 0 else flat[:words].clone()
    return int(aligned.view(torch.int64).sum()) + int(flat[words:].sum())


class Damaged(Exception):
    """A file that is not what it should be."""


class Reading(Straight):
    """Gives back what was written. Damaged where a file is of another layout, cut off or changed. `late`: large packed
    layers lie in the map at first (settle.py)."""

    def __init__(self, path: Path, late: bool = False) -> None:
        self.late = late
        state = path.stat()
        if state.st_uid not in (os.getuid(), 0) or state.st_mode & 0o022:
            raise Damaged("others can write to it")
        if state.st_size < 16:
            raise Damaged("it is cut off")
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if self.map[-8:] != MAGIC:
            raise Damaged("it is cut off")
        (length,) = struct.unpack("<Q", self.map[-16:-8])
        self.end = state.st_size - 16 - length
        if self.end < 0:
            raise Damaged("its header is longer than it")
        try:
            header = json.loads(self.map[self.end : -16])
            self.parts, layout, self.digest = header["parts"], header["layout"], str(header["digest"])
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"its header does not parse ({error})") from None
        if layout != LAYOUT:
            raise Damaged(f"it has layout {layout}, not {LAYOUT}")

    def part(self, name: str, key: str, late: bool = False) -> Tensor:
        """Copied to memory of its own, unless it is `late`, and checked."""
        try:
            about = self.parts[name]["tensors"][key]
            at, size, shape = about["at"], about["bytes"], about["shape"]
            dtype = getattr(torch, about["dtype"])
            if not (0 <= at <= at + size <= self.end) or (size and at % STORE_LINE_BYTES):
                raise Damaged(f"{name} lies beyond its end")
            into = pages.take(0 if late else size)
            if size:
                there = torch.frombuffer(self.map, dtype=torch.uint8, count=size, offset=at)
                if late:
                    into = there
                else:
                    into.copy_(there)
                    pages.give_back(there)
            if total(into) != about["sum"]:
                raise Damaged(f"{name} has changed")
            return into.view(dtype).view(shape)
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise Damaged(f"{name} is not described ({error})") from None

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        return self.part(name, "it")

    def linear(self, name: str, make: Callable[[], Linear]) -> Linear:
        if name not in self.parts:
            raise Damaged(f"{name} is missing")
        tensors = {key: self.part(name, key, self.late and key == "weight") for key in self.parts[name]["tensors"]}
        return restored(tensors, self.parts[name]["numbers"])


def opened(path: Path, late: bool = False) -> Reading | None:
    """The file if there is a good one; a bad one is removed, with a word."""
    try:
        return Reading(path, late)
    except FileNotFoundError:
        return None
    except (Damaged, OSError) as error:
        discard(path, error)
        return None


def discard(path: Path, error: object) -> None:
    log.warning("Packed weights in %s are not used (%s); they are packed again.", path, error)
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def kept() -> Iterator[Path]:
    """Every file of packed weights."""
    yield from sorted((home() / "packed").glob("*.weights"))
