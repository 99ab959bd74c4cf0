"""The header of a GGUF file (versions 2 and 3, little-endian): metadata and where each tensor lies.

Reads by itself rather than through `gguf.GGUFReader`, which makes an array of every string of a vocabulary (seconds)
and believes the file's counts; every length here is checked against what is left of the file first.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from paceline.core.errors import CheckpointError, memory_ended, no_room_for

GGUF_MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY, BOOL = GGUFValueType.STRING, GGUFValueType.ARRAY, GGUFValueType.BOOL
NUMBER_TYPES = {
    GGUFValueType.UINT8: "<u1", GGUFValueType.INT8: "<i1", GGUFValueType.UINT16: "<u2", GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4", GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4", GGUFValueType.FLOAT64: "<f8", BOOL: "<u1",
}  # fmt: skip
"""numpy's name of each number's type."""
MAX_DIMS = 4
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `shape` as PyTorch counts, outermost first; `offset` and `bytes` in `file`."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    file: Path
    offset: int
    bytes: int


@dataclass(slots=True)
class Header:
    """What a file says before its weights. Arrays of numbers are numpy's, of strings lists."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)


LENGTH = struct.Struct("<Q")
"""Before each string."""


class Cursor:
    """A place in the file that never passes its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.end = path, data, 0, len(data)

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is not a sound GGUF file ({what} at byte {self.at}); download it again.")

    def take(self, size: int, what: str) -> int:
        """Where `size` bytes begin, which are passed."""
        if size > self.end - self.at:
            raise self.damaged(f"the file ends inside {what}")
        before, self.at = self.at, self.at + size
        return before

    def number(self, code: str, what: str) -> int:
        return int(struct.unpack_from("<" + code, self.data, self.take(struct.calcsize(code), what))[0])

    def string(self, what: str) -> str:
        size = self.number("Q", what)
        at = self.take(size, what)
        try:
            return self.data[at : at + size].decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8") from None

    def kind(self, what: str) -> GGUFValueType:
        value = self.number("I", what)
        try:
            return GGUFValueType(value)
        except ValueError:
            raise self.damaged(f"{what} has type {value}, which GGUF does not know") from None

    def value(self, key: str) -> Any:
        kind = self.kind(key)
        return self.array(key) if kind == ARRAY else self.scalar(kind, key)

    def scalar(self, kind: GGUFValueType, key: str) -> Any:
        if kind == STRING:
            return self.string(key)
        [value] = self.numbers(kind, 1, key).tolist()
        return bool(value) if kind == BOOL else value

    def numbers(self, kind: GGUFValueType, count: int, key: str) -> "np.ndarray[Any, Any]":
        code = np.dtype(NUMBER_TYPES[kind])
        at = self.take(count * code.itemsize, key)
        return np.frombuffer(self.data, code, count, at).copy()

    def array(self, key: str) -> Any:
        kind, count = self.kind(key), self.number("Q", key)
        if kind == ARRAY:
            raise self.damaged(f"{key} is an array of arrays")
        if kind != STRING:
            return self.numbers(kind, count, key)
        if 8 * count > self.end - self.at:  # before a list of that length is begun
            raise self.damaged(f"the file ends inside {key}")
        return self.strings(count, key)

    def strings(self, count: int, key: str) -> list[str]:
        """Read `count` strings, as `string` reads one: a vocabulary has 150,000."""
        data, at, end, length, raw = self.data, self.at, self.end, LENGTH.unpack_from, list[bytes]()
        for _ in range(count):
            begin = at + 8
            stop = begin + length(data, at)[0] if begin <= end else end + 1
            if stop > end:
                self.at = at
                raise self.damaged(f"the file ends inside {key}")
            raw.append(data[begin:stop])
            at = stop
        try:
            found = [each.decode("utf-8") for each in raw]
        except UnicodeDecodeError:
            raise self.damaged(f"{key} is not UTF-8") from None
        self.at = at
        return found


def read_header(path: Path) -> Header:
    """The header of one file. Raises CheckpointError for whatever is not one, by the place where it went wrong."""
    try:
        with path.open("rb") as file:
            if file.read(4) != GGUF_MAGIC:
                raise CheckpointError(f"{path} is not a GGUF file (it does not begin with GGUF); check the path.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse(Cursor(path, data))
    except OSError as error:
        if memory_ended(error):
            raise no_room_for(path) from error
        raise CheckpointError(f"{path} could not be read ({error.strerror}); check the path.") from None


def parse(at: Cursor) -> Header:
    at.take(4, "the magic")
    version = at.number("I", "the version")
    if version not in VERSIONS:
        swapped = struct.unpack(">I", struct.pack("<I", version))[0] in VERSIONS
        what = "is big-endian" if swapped else f"has version {version}"
        raise CheckpointError(f"{at.path} {what}, but little-endian GGUF of version 2 or 3 is read; convert it again.")
    tensors, pairs = at.number("Q", "the number of tensors"), at.number("Q", "the number of keys")
    header = Header(at.path)
    unique(at, header.metadata, pairs, 13, "key", at.value)
    alignment = header.metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise at.damaged(f"general.alignment is {alignment!r}, no power of two")
    unique(at, header.tensors, tensors, 28, "tensor", lambda name: entry(at, name))
    start = -(-at.at // alignment) * alignment
    for name, found in header.tensors.items():
        if found.offset % alignment or start + found.offset + found.bytes > at.end:
            raise at.damaged(f"tensor {name} lies beyond the end of the file or between its places")
        header.tensors[name] = TensorEntry(name, found.shape, found.kind, at.path, start + found.offset, found.bytes)
    return header


def unique(at: Cursor, into: dict[str, Any], count: int, least: int, what: str, read: Callable[[str], Any]) -> None:
    """`count` names, each with what `read` finds behind it; `least`: bytes that one takes at least."""
    if count * least > at.end - at.at:
        raise at.damaged(f"the file ends before its {count} {what}s do")
    for _ in range(count):
        name = at.string(f"the name of a {what}")
        if name in into:
            raise at.damaged(f"{what} {name!r} is there twice")
        into[name] = read(name)


def entry(at: Cursor, name: str) -> TensorEntry:
    """A tensor's line, with its offset as it stands there."""
    dims = at.number("I", name)
    if not 1 <= dims <= MAX_DIMS:
        raise at.damaged(f"tensor {name} has {dims} dimensions")
    shape = tuple(at.number("Q", name) for _ in range(dims))[::-1]
    number = at.number("I", name)
    try:
        kind = GGMLQuantizationType(number)
        block, size = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise CheckpointError(
            f"tensor {name} in {at.path} has type {number}, which is not known; quantise the model again, to Q4_K_M "
            "for instance."
        ) from None
    if not all(shape) or prod(shape) >= 1 << 63 or shape[-1] % block:
        raise at.damaged(f"tensor {name} has shape {list(shape)}, which {kind.name} cannot have")
    return TensorEntry(name, shape, kind, at.path, at.number("Q", name), prod(shape) // block * size)
