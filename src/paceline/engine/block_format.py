"""The file of one block: written, read and distrusted.

magic and version (8) | length of the header (8) | header, JSON | the groups' bytes | CRC-32
"""

import errno
import json
import mmap
import os
import stat
import struct
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

BLOCK_FILE_MAGIC = b"PACEKV\x00\x01"
"""The last byte is the format's version."""
BlockParts = Mapping[str, tuple[str, bytes]]
"""{group: (form, bytes)} of a block."""
StoredPart = tuple[str, str, bytes]
"""(group, form, bytes). A group may come in several forms: those of engines with other drafts."""
POPULATE_READ = 23 if sys.platform == "linux" else None
"""MADV_POPULATE_READ of Linux 5.14: fetch all pages of a mapping now, and report a failure."""


class DamagedBlockFile(Exception):
    """A file is not what it should be."""


def distrust(state: os.stat_result, kind: Callable[[int], bool] = stat.S_ISREG) -> str | None:
    """Why what has this state is not to be used; None: it may be."""
    if not kind(state.st_mode):
        return "it is of another kind, or a link"
    if state.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    return "others can write to it" if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def distrust_parent(state: os.stat_result) -> str | None:
    """Reason not to use a directory whose parent has this state; None if it may be used."""
    if state.st_mode & stat.S_ISVTX:  # nobody may rename what is another's
        return None
    return distrust(state, stat.S_ISDIR)


def packed(name: bytes, parts: Sequence[StoredPart]) -> bytes:
    """A block as a file."""
    body = b"".join([head(name, parts), *(data for *_, data in parts)])
    return body + struct.pack("<I", zlib.crc32(body))


def head(name: bytes, parts: Sequence[StoredPart]) -> bytes:
    """What the file of a block begins with."""
    groups = [[group, form, len(data)] for group, form, data in parts]
    header = json.dumps({"name": name.hex(), "groups": groups}).encode()
    return BLOCK_FILE_MAGIC + struct.pack("<Q", len(header)) + header


def packed_size(name: bytes, parts: BlockParts) -> int:
    """Bytes of the file of a block that has these parts alone."""
    mine = [(group, form, data) for group, (form, data) in parts.items()]
    return len(head(name, mine)) + sum(len(data) for *_, data in mine) + 4


def parsed(data: bytes | memoryview, size: int) -> tuple[str, list[tuple[str, str, int]], int]:
    """(name, groups, where their bytes begin) of a file of this number of bytes that begins so, or DamagedBlockFile."""
    if size < 20 or data[:8] != BLOCK_FILE_MAGIC:
        raise DamagedBlockFile("it is cut off, or of another version")
    (length,) = struct.unpack("<Q", data[8:16])
    if length > min(size, len(data)) - 16:
        raise DamagedBlockFile("its header is longer than it")
    try:
        header = json.loads(bytes(data[16 : 16 + length]))
        groups = [(str(group), str(form), int(count)) for group, form, count in header["groups"]]
        name = str(header["name"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise DamagedBlockFile("its header does not parse") from None
    if any(count < 0 for *_, count in groups) or 16 + length + sum(count for *_, count in groups) + 4 != size:
        raise DamagedBlockFile("its lengths do not add up")
    return name, groups, 16 + length


@contextmanager
def trusted(path: Path) -> Iterator[tuple[int, int]]:
    """(open handle, size in bytes) of a file. DamagedBlockFile if it may not be used; OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(handle)
        if reason := distrust(state):
            raise DamagedBlockFile(reason)
        yield handle, state.st_size
    finally:
        os.close(handle)


def mapped(path: Path) -> memoryview:
    """The bytes of a file, mapped into memory. Its pages are fetched here, so that a disk that does not give them is an
    OSError and no signal; a system that cannot do so reads the file. DamagedBlockFile where it may not be used."""
    with trusted(path) as (handle, size):
        if POPULATE_READ is None or not size:
            return memoryview(taken(handle, size))
        try:
            whole = mmap.mmap(handle, size, access=mmap.ACCESS_READ)
        except ValueError:  # it became shorter
            raise DamagedBlockFile("it is cut off") from None
        try:
            whole.madvise(POPULATE_READ)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return memoryview(taken(handle, size))
        return memoryview(whole)


def content(path: Path, most: int) -> tuple[bytes, int]:
    """(first `most` bytes of a file, its size). DamagedBlockFile if it may not be used; OSError."""
    with trusted(path) as (handle, size):
        return taken(handle, min(most, size)), size


def taken(handle: int, size: int) -> bytes:
    """Read this number of bytes from the start of a file; fewer if it is shorter."""
    parts, left, at = list[bytes](), size, 0
    while left and (part := os.pread(handle, left, at)):
        parts.append(part)
        left, at = left - len(part), at + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_file(
    path: Path, name: bytes, forms: Mapping[str, str], optional: Collection[str] = ()
) -> dict[str, bytes] | None:
    """Bytes of these groups in these forms; None if one that is not `optional` is missing. DamagedBlockFile, or
    OSError."""
    out = {group: data for group, _, data in stored(path, name, lambda group, form: forms.get(group) == form)}
    return out if forms.keys() - out.keys() <= {*optional} else None


def stored(path: Path, name: bytes, wanted: Callable[[str, str], bool] = lambda group, form: True) -> list[StoredPart]:
    """Parts of a block's file that are `wanted` (group, form). DamagedBlockFile, or OSError."""
    data = mapped(path)
    whose, groups, at = parsed(data, len(data))
    if whose != name.hex():
        raise DamagedBlockFile("it is another block's")
    out, check = list[StoredPart](), zlib.crc32(data[:at])
    for group, form, count in groups:
        part = data[at : at + count]
        if wanted(group, form):
            out.append((group, form, bytes(part)))
            check = zlib.crc32(out[-1][2], check)  # of the copy: somebody may write to the file
        else:
            check = zlib.crc32(part, check)
        at += count
    if struct.unpack("<I", data[-4:])[0] != check:
        raise DamagedBlockFile("its checksum differs")
    return out


def read_header(path: Path) -> set[tuple[str, str]]:
    """(group, form) of all parts of a file; nothing where it cannot be used."""
    try:
        return {(group, form) for group, form, _ in parsed(*content(path, 1 << 16))[1]}
    except (DamagedBlockFile, OSError, ValueError):
        return set()
