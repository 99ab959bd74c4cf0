"""Processes of this machine that compute one model together; this one is rank 0 and has the rows."""

import contextlib
import json
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from paceline.core.errors import LostError, RefusalError
from paceline.model.spread.exchange import SILENCE_S, Exchange

END_S = 5.0
"""How long a process may take to end by itself."""


class SpreadRanks:
    """The other processes: how they start, meet, and end. Not thread-safe, as a decoder is not."""

    option = ""
    """The option that asked for them."""
    chains = False
    """Can fine-tunes and chains of them be served?"""

    def __init__(self, count: int, about: Mapping[str, Any], what: str, device: str = "cpu") -> None:
        """Start `count` - 1 processes, which load meanwhile what `about` tells them; `what` is the word for what they
        hold."""
        self.count, self.what, self.device = count, what, device
        self.folder = tempfile.TemporaryDirectory(prefix="paceline-ranks-")
        self.meeting = Path(self.folder.name) / "meeting"
        told = {**about, "devices": count, "threads": torch.get_num_threads(), "meeting": str(self.meeting)}
        command = [sys.executable, "-m", "paceline.model.spread.worker"]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(1, count)
        ]
        self.close = weakref.finalize(self, end, self.processes, self.folder)
        for rank, process in enumerate(self.processes, 1):
            self._tell(process, json.dumps({**told, "rank": rank}).encode() + b"\n")
        self.exchange: Exchange | None = None
        self.broken = ""
        """Why it cannot go on."""

    def join(self) -> list[str]:
        """Wait until the others have loaded, and meet them. What each said."""
        said = []
        for rank, process in enumerate(self.processes, 1):
            assert process.stdout is not None
            word, _, rest = process.stdout.readline().decode().strip().partition(" ")
            if word == "error":
                self.close()
                raise RefusalError(f"Process {rank} of the {self.what} could not start: {rest}")
            if word != "ready":
                raise self.lost()
            said.append(rest)
        for process in self.processes:
            self._tell(process, b"\n")
        with self.guarded():
            self.exchange = Exchange(self.meeting, 0, self.count, self.device)
        return said

    def tell(self, message: bytes) -> None:
        """Send a message to all; LostError where they have ended before."""
        if self.exchange is None or self.broken:
            raise LostError(self.broken or f"The processes of the {self.what} have ended; start again.")
        for process in self.processes:
            self._tell(process, message)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Collective calls of all processes: where one of them fails, or this one is interrupted, none can go on."""
        try:
            yield
        except (RuntimeError, OSError, ValueError) as error:
            raise self.lost() from error
        except LostError:
            raise
        except BaseException:
            self.broken = f"A pass over the processes of the {self.what} was interrupted; start again."
            self.close()
            raise

    def lost(self) -> LostError:
        """The error that says which process is gone; the others are ended."""
        gone = ""
        for rank, process in enumerate(self.processes, 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(1.0 / len(self.processes))
                if not gone or code != 1:  # 1: it ended because of another
                    gone = f"Process {rank} of {self.count} of the {self.what} has ended (exit code {code})"
        self.broken = f"{gone or f'A process of the {self.what} was silent for {SILENCE_S:g} s'}; start again."
        self.close()
        return LostError(self.broken)

    def _tell(self, process: "subprocess.Popen[bytes]", message: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(message)
        process.stdin.flush()


def end(processes: "Iterable[subprocess.Popen[bytes]]", folder: "tempfile.TemporaryDirectory[str]") -> None:
    """End the processes, by force where they do not see that their input has ended."""
    for process in processes:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
    folder.cleanup()
