"""What Ray's libraries write to stdout and stderr, between the lines of our log."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

RAW_LOG = "paceline-server.err"
"""File among Ray's logs that has it."""
OUTPUTS = (1, 2)


@dataclass(frozen=True, slots=True)
class Aside:
    """Stdout and stderr without what others write there."""

    stdout: TextIO
    stderr: TextIO

    def keep(self, directory: Path) -> None:
        """What comes, and what has come, goes to a file there."""
        with (directory / RAW_LOG).open("ab") as file:
            file.write(os.pread(2, os.fstat(2).st_size, 0))
            file.flush()
            for output in OUTPUTS:
                os.dup2(file.fileno(), output)


@contextmanager
def set_aside() -> Iterator[Aside]:
    """Until its end, what is written to stdout and stderr goes elsewhere."""
    _flush()
    kept = [os.dup(output) for output in OUTPUTS]
    with TemporaryFile("ab+") as early:
        for output in OUTPUTS:
            os.dup2(early.fileno(), output)
    try:
        yield Aside(*(os.fdopen(os.dup(each), "w", encoding="utf-8", errors="backslashreplace") for each in kept))
    finally:
        _flush()
        for output, each in zip(OUTPUTS, kept, strict=True):
            os.dup2(each, output)
            os.close(each)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
