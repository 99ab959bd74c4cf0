"""Packed weights on disk: what a model took seconds to minutes to pack is read back as it lay in memory.

    a file: the parts, each from a multiple of 64 on; the header (JSON: layout, digest of the weights, parts by name);
    its length; MAGIC

Large matrices lie in files of their own (parts.py), which models share. Written next to its place and renamed when
whole; read through a map into the memory that passes read from, which has huge pages where a map of a file has none;
each part is checked by the sum of its words.
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
from paceline.model import pages, parts
from paceline.model.linear import Linear, Packing
from paceline.model.packed import Packed, restored, shown
from paceline.model.parts import Damaged, Prepared, PreparedTable, checked_map, shared
from paceline.model.spec import Layer, ModelSpec, Recurrent

log = logging.getLogger("paceline")
MAGIC, LAYOUT = b"PACELINE", 3
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
    sections: tuple[str, ...] = ()
    """`Weights.sections`, once all are taken."""

    def tensor(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A small tensor by name."""
        return make()

    def table(self, name: str, prepare: Callable[[], PreparedTable]) -> Tensor:
        """The embedding."""
        found: Tensor = shared(*prepare())
        return found

    def linear(self, name: str, prepare: Callable[[], Prepared]) -> Linear:
        """A packed layer by name."""
        found: Linear = shared(*prepare())
        return found


def kind_of(layer: Layer) -> Recurrent | int | None:
    """What its mixer's matrices are like: how many numbers it turns, or what keeps a state."""
    return layer.recurs if layer.attends is None else len(layer.attends.rope.inverse)


def place(files: list[Path], spec: ModelSpec, packing: Packing, vocabulary: tuple[int, int] | None) -> Path:
    """Where the packed weights of this checkpoint, in this form, are kept: another name for any other content."""
    states = [(str(file.resolve()), *((s := file.stat()).st_size, s.st_mtime_ns)) for file in files]
    layers = [(kind_of(layer), layer.feed) for layer in spec.layers]
    weights = replace(spec, max_len=0, layers=())  # neither context nor rotation is in them
    fitted = None if vocabulary is None or vocabulary[0] == spec.vocab else vocabulary
    key = hashlib.sha256(repr((LAYOUT, states, weights, layers, packing.describe(), fitted)).encode()).hexdigest()
    return parts.home() / "packed" / f"{family(files, packing)}-{key[:16]}.weights"


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
        self.apart = parts.PartsWriter()
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
        self.add(name, "", {"it": made}, {})
        return made

    def table(self, name: str, prepare: Callable[[], PreparedTable]) -> Tensor:
        key, make = prepare()
        made: Tensor = shared(key, make)
        self.add(name, key, {"it": made}, {})
        return made

    def linear(self, name: str, prepare: Callable[[], Prepared]) -> Linear:
        key, make = prepare()
        made: Linear = shared(key, make)
        if isinstance(made, Packed):
            self.add(name, key, *shown(made))
        return made

    def add(self, name: str, key: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, int]) -> None:
        """A disk that fills up ends the writing, not the loading."""
        if self.file is None:
            return
        about: dict[str, Any] = {"numbers": dict(numbers), "key": key, "tensors": {}}
        self.parts[name] = about
        apart = bool(key) and sum(tensor.nbytes for tensor in tensors.values()) >= parts.MIN_PART_BYTES
        try:
            at, file, kept = (0, *self.apart.open(key)) if apart else (self.at, self.file, False)
            about["apart"] = apart
            for part, tensor in tensors.items():
                flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
                padding = -len(flat) % STORE_LINE_BYTES
                about["tensors"][part] = {
                    "at": at, "bytes": len(flat), "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape), "sum": total(flat),
                }  # fmt: skip
                if not kept:
                    file.write(flat.numpy().data)
                    file.write(bytes(padding))
                at += len(flat) + padding
            if not apart:
                self.at = at
            elif not kept:
                self.apart.close(key, file)
        except OSError as error:
            self.drop(error)

    def drop(self, error: object = None) -> None:
        """Leave nothing behind."""
        if self.file is not None:
            self.file.close()
        self.file = None
        Path(self.name).unlink(missing_ok=True)
        self.apart.drop()
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
        known = {"layout": LAYOUT, "digest": self.digest, "sections": self.sections, "parts": self.parts}
        header = json.dumps(known).encode()
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
        sweep()


def total(flat: Tensor) -> int:
    """The sum of the bytes as 64-bit words, modulo 2^64."""
    words = len(flat) // 8 * 8
    aligned = flat[:words] if flat.data_ptr() % 8 == 0 else flat[:words].clone()
    return int(aligned.view(torch.int64).sum()) + int(flat[words:].sum())


class Reading(Straight):
    """Gives back what was written. Damaged where a file is of another layout, cut off or changed. `late`: large packed
    layers lie in the map at first (settle.py)."""

    def __init__(self, path: Path, late: bool = False) -> None:
        self.late = late
        self.map = checked_map(path)
        header, self.end = header_of(self.map)
        try:
            self.parts, layout, self.digest = header["parts"], header["layout"], str(header["digest"])
            self.sections = tuple(map(str, header.get("sections", ())))
        except (KeyError, TypeError) as error:
            raise Damaged(f"its header does not parse ({error})") from None
        if layout != LAYOUT:
            raise Damaged(f"it has layout {layout}, not {LAYOUT}")

    def where(self, about: Mapping[str, Any]) -> tuple[mmap.mmap, int]:
        """The map in which a part lies, and how far it may go."""
        if not about.get("apart"):
            return self.map, self.end
        found = checked_map(parts.place(about["key"]))
        return found, len(found)

    def part(self, name: str, key: str, there_in: tuple[mmap.mmap, int], late: bool = False) -> Tensor:
        """Copied to memory of its own, unless it is `late`, and checked."""
        try:
            about = self.parts[name]["tensors"][key]
            at, size, shape = about["at"], about["bytes"], about["shape"]
            dtype, (whole, end) = getattr(torch, about["dtype"]), there_in
            if not (0 <= at <= at + size <= end) or (size and at % STORE_LINE_BYTES):
                raise Damaged(f"{name} lies beyond its end")
            into = pages.take(0 if late else size)
            if size:
                there = torch.frombuffer(whole, dtype=torch.uint8, count=size, offset=at)
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
        return self.part(name, "it", (self.map, self.end))

    def about(self, name: str) -> Mapping[str, Any]:
        found = self.parts.get(name) if isinstance(self.parts, dict) else None
        if not isinstance(found, dict) or not isinstance(found.get("key"), str):
            raise Damaged(f"{name} is missing")
        return found

    def table(self, name: str, prepare: Callable[[], PreparedTable]) -> Tensor:
        about = self.about(name)

        def read() -> Tensor:
            try:
                return self.part(name, "it", self.where(about))
            except (Damaged, OSError) as error:
                if about.get("apart"):
                    parts.place(about["key"]).unlink(missing_ok=True)
                raise Damaged(f"{name} cannot be read ({error})") from None

        found: Tensor = shared(about["key"], read)
        return found

    def linear(self, name: str, prepare: Callable[[], Prepared]) -> Linear:
        """A linear layer by name. One whose weights are packed later is shared with nobody."""
        about = self.about(name)

        def read() -> Linear:
            try:
                where, keys = self.where(about), list(about["tensors"])
                tensors = {key: self.part(name, key, where, self.late and key == "weight") for key in keys}
                return restored(tensors, about["numbers"])
            except (Damaged, KeyError, TypeError, AttributeError, OSError) as error:
                if about.get("apart"):
                    parts.place(about["key"]).unlink(missing_ok=True)  # else the next file would name it again
                raise Damaged(f"{name} cannot be read ({error})") from None

        if self.late:
            return read()
        found: Linear = shared(about["key"], read)
        return found


def opened(path: Path, late: bool = False) -> Reading | None:
    """The file, if there is an undamaged one; a damaged one is removed, with a line in the log."""
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
    yield from sorted((parts.home() / "packed").glob("*.weights"))


def header_of(whole: mmap.mmap) -> tuple[Any, int]:
    """Index of a file's parts, and where they end."""
    if len(whole) < 16 or whole[-8:] != MAGIC:
        raise Damaged("it is cut off")
    (length,) = struct.unpack("<Q", whole[-16:-8])
    end = len(whole) - 16 - length
    if end < 0:
        raise Damaged("its header is longer than it")
    try:
        return json.loads(whole[end:-16]), end
    except ValueError as error:
        raise Damaged(f"its header does not parse ({error})") from None


def parts_of(file: Path) -> dict[str, int]:
    """{key: bytes} of the large matrices of a file of packed weights; none of one that is damaged."""
    try:
        header, _ = header_of(checked_map(file))
        apart = [it for it in header["parts"].values() if it.get("apart")]
        return {it["key"]: sum(t["bytes"] for t in it["tensors"].values()) for it in apart}
    except (Damaged, OSError, KeyError, TypeError, AttributeError):
        return {}


def remove(file: Path) -> int:
    """Remove a file of packed weights, and the matrices that no other names; how many bytes that frees."""
    mine, freed = parts_of(file), file.stat().st_size
    file.unlink()
    others = {key for other in kept() for key in parts_of(other)}
    for key in mine.keys() - others:
        parts.place(key).unlink(missing_ok=True)
        freed += mine[key]
    return freed


def sweep(at_once: bool = False) -> None:
    """Remove the matrices that no file names any more; `at_once`: also those that somebody may be writing a file for
    now."""
    parts.sweep({key for file in kept() for key in parts_of(file)}, at_once)
