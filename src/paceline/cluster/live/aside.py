"""What Ray's libraries write to stdout and stderr, between the lines of our log, and the Ctrl-C that they swallow."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
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


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """A SIGINT within it raises KeyboardInterrupt at its end at the latest, also where a library swallows that. Not
    where SIGINT is ignored, as in a script's background."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not handled or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = list[int]()

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if seen:
            raise KeyboardInterrupt


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
