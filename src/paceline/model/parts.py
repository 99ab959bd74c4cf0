"""Matrices that several models have are one: in memory while anybody holds them, on disk as one file.

A matrix has a key: the digest of the tensors that it was packed of, of the shape of its model and of the packing
(`Loader.key`). Packed matrices that are equal have equal keys, so a fine-tune takes the room of what differs.
"""

import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

from torch import Tensor

from paceline.model.linear import Linear
from paceline.native.store import home as home  # tests put another in its place

MIN_PART_BYTES = 256 << 10
"""Bytes of a packed matrix from which on it has a file of its own."""
PART_GRACE_S = 3600.0
"""How long a matrix that no model names is kept: the model may be about to be written."""
PART_KEY = re.compile(r"[0-9a-f]{64}")
_shared: "WeakValueDictionary[str, Any]" = WeakValueDictionary()


class Damaged(Exception):
    """A file that is not what it should be."""


class Prepared(NamedTuple):
    """A matrix that is not packed yet."""

    key: str
    make: Callable[[], Linear]


class PreparedTable(NamedTuple):
    """An embedding."""

    key: str
    make: Callable[[], Tensor]


def shared(key: str, make: Callable[[], Any]) -> Any:
    """What has this key in this process: what somebody holds, else what `make` gives."""
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = make()
    return found


def place(key: str) -> Path:
    """File of a matrix. Damaged for a key that is none."""
    if not PART_KEY.fullmatch(key):
        raise Damaged(f"{key[:70]!r} is no key")
    return home() / "parts" / key


def checked_map(path: Path) -> mmap.mmap:
    """A file that nobody else can have changed, mapped. Damaged, or OSError."""
    state = path.stat()
    if state.st_uid not in (os.getuid(), 0) or state.st_mode & 0o022:
        raise Damaged("others can write to it")
    if not state.st_size:
        raise Damaged("it is cut off")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


class PartsWriter:
    """Writes matrices that are not there yet, each whole or not at all."""

    def __init__(self) -> None:
        self.name = ""
        """Name of the file that is being written."""

    def open(self, key: str) -> tuple[BinaryIO, bool]:
        """A file to write to, and whether the matrix is there already."""
        target = place(key)
        with suppress(OSError):
            os.utime(target)
            return open(os.devnull, "wb"), True
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, self.name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
        return os.fdopen(handle, "wb"), False

    def close(self, key: str, file: BinaryIO) -> None:
        """Close a file of which all is written, and give it its name."""
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(self.name, place(key))
        self.name = ""

    def drop(self) -> None:
        """Leave no half of a matrix behind."""
        if self.name:
            Path(self.name).unlink(missing_ok=True)
        self.name = ""


def sweep(named: set[str], at_once: bool = False) -> None:
    """Remove the files of matrices that are not named, and have not been for some time."""
    now = time.time()
    for file in (home() / "parts").glob("*"):
        with suppress(OSError):
            if file.name not in named and (at_once or now - file.stat().st_mtime > PART_GRACE_S):
                file.unlink()
