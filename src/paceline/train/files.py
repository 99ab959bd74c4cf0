"""Files of a training that a full disk or a kill leaves whole: written under another name, then put in their place."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from paceline.core.errors import InputError


@contextmanager
def writing(out: Path, part: Path | None = None) -> Iterator[None]:
    """A write to `out`. InputError where it fails, as on a full disk: what is there of `part`, a file or a directory,
    goes, and what was there before stays."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch.save and safetensors raise their own
        if part is not None:
            discard(part)
        there = next((place for place in (out, *out.absolute().parents) if place.exists()), Path("/"))
        said = "the write ended early" if isinstance(error, RuntimeError) else str(error).splitlines()[0]  # of torch
        raise InputError(
            f"{out} cannot be written ({said}); {shutil.disk_usage(there).free:,} bytes are "
            "free. Make room and give the same command again: the run goes on from what it has."
        ) from None


def discard(part: Path) -> None:
    """Remove a file or a directory that may be there."""
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)


def directory(path: Path) -> Path:
    """The directory, made where it is missing. Raises InputError."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def put(file: Path, text: str) -> None:
    """Write a file whole, or leave the one that is there. Raises InputError."""
    part = file.with_name(f"{file.name}.part")
    with writing(file.parent, part):
        part.write_text(text, encoding="utf-8")
        part.replace(file)


def whole_lines(file: Path) -> list[str]:
    """The lines of a file that is appended to; what was cut off behind the last of them is cut from the file, too."""
    if not file.is_file():
        return []
    data = file.read_bytes()
    size = data.rfind(b"\n") + 1
    if size < len(data):
        keep(file, size)
    return data[:size].decode("utf-8", "replace").split("\n")[:-1]


def keep(file: Path, size: int) -> None:
    """Cut a file to its first bytes."""
    with writing(file.parent), file.open("r+b") as handle:
        handle.truncate(size)
