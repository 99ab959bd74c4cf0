"""Files that somebody else may have made: regular ones, of a bounded size, whose faults are one sentence."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from paceline.core.errors import InputError

MOST_BYTES = 1 << 20
"""Size limit of a settings file."""
MOST_LINE_BYTES = 64 << 20
"""Length limit of a line of a log."""


def open_regular(path: Path, what: str) -> IO[bytes]:
    """The file, opened without waiting: a pipe or a device is refused. Raises InputError."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read ({error.strerror}); check the path and its mode.") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InputError(f"{what} {path} is no regular file; give a file.")
    return os.fdopen(number, "rb")


def text_of(path: Path, what: str, most: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file of at most `most` bytes. Raises InputError."""
    with open_regular(path, what) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{what} {path} has more than {most} bytes; is it the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} cannot be read ({error}).") from None


def lines_of(path: Path, what: str, most: int = MOST_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file, each of at most `most` bytes. Raises InputError."""
    with open_regular(path, what) as file:
        number = 1
        while line := file.readline(most + 1):
            if len(line) > most:
                raise InputError(f"{what} {path}, line {number} has more than {most} bytes; is it the right file?")
            yield line
            number += 1
