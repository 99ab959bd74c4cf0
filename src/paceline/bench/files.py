"""What every report needs: files, and where and with what it was made. Nothing here imports torch."""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def cpu_name() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def host() -> dict[str, Any]:
    """The machine, as far as it is known without torch."""
    import psutil

    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def versions() -> Mapping[str, str]:
    """Versions of Python and of the libraries that affect the figures."""
    from importlib.metadata import version

    return {"python": platform.python_version(), **{n: version(n) for n in ("paceline", "torch", "transformers")}}


def save_json(path: Path, document: Mapping[str, Any]) -> None:
    """Raises InputError when the file cannot be written."""
    save(path, json.dumps(document, indent=2, allow_nan=False, default=str) + "\n")


def save(path: Path, text: str) -> None:
    """Raises InputError when the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); give another file.") from None
