"""Files that somebody else may have made: regular ones, of a bounded size, whose faults are one sentence."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from paceline.core.errors import InputError

MOST_BYTES = 1 << 20
"""Size limit of a settings file."""
MOST_LINE_BYTES = 64 << 20
"""Length limit of a line of a log."""

MOST_SMALL_FILE_BYTES = 256 << 20
"""Size limit of a text file of a model's directory: the largest tokenizers have 35 MB."""
MOST_FOLDER_FILES = 20_000
SMALL_FILE_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".py")


def check_folder(folder: Path) -> None:
    """Raise InputError where a directory of somebody else's making holds what a reader would wait for, or never come
    to the end of: pipes, devices, sockets, and text files that are too large for any memory."""
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_FOLDER_FILES:
                    raise InputError(f"{folder} holds more than {MOST_FOLDER_FILES} files; is it the right directory?")
                try:
                    state = entry.stat()
                except OSError:  # a link to nothing, or in a circle: who reads it will say so
                    continue
                if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
                    raise InputError(f"{entry.path} is no regular file; remove it, or put a file there.")
                if entry.name.endswith(SMALL_FILE_SUFFIXES) and state.st_size > MOST_SMALL_FILE_BYTES:
                    raise InputError(
                        f"{entry.path} has {state.st_size} bytes, but no such file of a model has more than "
                        f"{MOST_SMALL_FILE_BYTES}; move it elsewhere if it is none, or download it again."
                    )
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}); check the path and its mode.") from None


def open_regular(path: Path, what: str) -> IO[bytes]:
    """The file, opened without waiting: a pipe or a device is refused. Raises InputError."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise not_readable(path, what, error) from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InputError(f"{what} {path} is no regular file; give a file.")
    return os.fdopen(number, "rb")


def not_readable(path: Path, what: str, error: OSError) -> InputError:
    """What to say of a file that the system does not let be read."""
    return InputError(f"{what} {path} cannot be read ({error.strerror}); check the path and its mode.")


def open_log(path: Path) -> IO[bytes]:
    """A file for `write_whole`: a new one, or a device such as a terminal. A pipe, whose reader could stop the writer,
    is refused, unless it is this process's own output (/dev/stderr); a socket always is. Raises OSError."""
    wanted = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        number = os.open(path, wanted, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise OSError(error.errno, "it is a pipe or a socket") from None
        raise
    if stat.S_ISFIFO(os.fstat(number).st_mode) and not _own_output(number):
        os.close(number)
        raise OSError(errno.ENXIO, "it is a pipe or a socket")
    if hasattr(os, "O_NONBLOCK"):  # opened by a path of its own, so no other file becomes blocking with it
        os.set_blocking(number, True)
    return os.fdopen(number, "wb", buffering=0)


def _own_output(number: int) -> bool:
    """Is a file the one that this process's standard output or its errors go to?"""
    for own in (1, 2):
        try:
            if os.path.samestat(os.fstat(number), os.fstat(own)):
                return True
        except OSError:  # closed
            continue
    return False


def write_whole(file: IO[bytes], data: bytes) -> None:
    """Write all of it to an unbuffered file, which may take a part at a time. Raises OSError."""
    left = memoryview(data)
    while left:
        taken: int | None = file.write(left)
        if not taken:
            raise BlockingIOError(errno.EAGAIN, "it takes no more")
        left = left[taken:]


def text_of(path: Path, what: str, most: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file of at most `most` bytes, without a byte order mark. Raises InputError."""
    try:
        with open_regular(path, what) as file:
            data: bytes | None = file.read(most + 1)
    except OSError as error:
        raise not_readable(path, what, error) from None
    if data is None:  # a queue of the system's, such as /proc/kmsg, which calls itself a regular file
        raise InputError(f"{what} {path} is no regular file; give a file.")
    if len(data) > most:
        raise InputError(f"{what} {path} has more than {most} bytes; is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} cannot be read ({error}).") from None


def json_of(path: Path, what: str, most: int = MOST_SMALL_FILE_BYTES) -> Any:
    """What a JSON file of at most `most` bytes holds. Raises InputError."""
    text = text_of(path, what, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} {path} is not JSON ({error}).") from None


def lines_of(path: Path, what: str, most: int = MOST_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file, each of at most `most` bytes. Raises InputError."""
    with open_regular(path, what) as file:
        number = 1
        while line := next_line(file, path, what, most):
            if len(line) > most:
                raise InputError(f"{what} {path}, line {number} has more than {most} bytes; is it the right file?")
            yield line
            number += 1


def next_line(file: IO[bytes], path: Path, what: str, most: int) -> bytes:
    """The next line, or as much of it as says that it is too long. Raises InputError."""
    try:
        return file.readline(most + 1)
    except OSError as error:
        raise not_readable(path, what, error) from None
