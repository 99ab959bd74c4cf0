"""Running a program in the sandbox: what truths are made of, and what an unsure predictor falls back on."""

import sys
from collections.abc import Mapping
from pathlib import Path

from ..common.sandbox import AppLimits, Job
from .toolchains import rust

SURGE_LIMITS = AppLimits(wall_s=60, cpu_s=40, memory_mb=1536, address_mb=None, processes=96, disk_mb=128)
"""Compilers and virtual machines need address space and threads; the programs themselves need little."""


def job(files: Mapping[str, str], command: str, limits: AppLimits = SURGE_LIMITS) -> Job:
    """A shell line over files, in the box, both streams together. `{python}` in it is this Python and its packages."""
    line = command.replace("{python}", sys.executable)
    read: tuple[Path, ...] = ()
    if "rustc " in line:
        compiler, read = rust()
        line = line.replace("rustc ", f"{compiler} ", 1)
    return Job(("sh", "-c", f"({line}) 2>&1"), dict(files), read=read, limits=limits, watch=False)
