"""Servers and routers as they are started by their commands."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Started:
    """A command that serves at `url`."""

    def __init__(self, *args: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "paceline", *args, "--log-level", "error"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert self.child.stdout is not None
        found = re.search(r"at (\S+)/v1", self.child.stdout.readline())
        if found is None:
            raise RuntimeError(f"paceline {args[0]} did not start")
        self.url = found[1]

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    @property
    def resident_mb(self) -> float:
        """Memory of the process alone, in MB of 2**20 bytes; 0 once it has died."""
        try:
            fields = Path(f"/proc/{self.child.pid}/statm").read_text().split()
        except OSError:
            return 0.0
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()


@contextmanager
def started(*commands: tuple[str, ...]) -> Iterator[list[Started]]:
    made: list[Started] = []
    try:
        for command in commands:
            made.append(Started(*command))
        yield made
    finally:
        for each in made:
            each.close()
