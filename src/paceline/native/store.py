"""The cache directory: what is kept from one start to the next. Only what this user (or root) wrote is read, and nobody
else may be able to write there: a loaded library runs, regardless of its author."""

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

log = logging.getLogger("paceline")


def home() -> Path:
    """Where things are kept: $PACELINE_CACHE, else the user's cache directory; one of this process's own where that
    cannot be trusted, which is warned about."""
    base = os.environ.get("PACELINE_CACHE")
    return usable(Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline")


@cache
def usable(wanted: Path) -> Path:
    try:
        wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = distrust(wanted)
    except OSError as error:
        reason = f"it cannot be made ({error.strerror})"
    if reason is None:
        return wanted
    log.warning(
        "The cache directory %s is not used, because %s; set PACELINE_CACHE to one of your own.", wanted, reason
    )
    own = tempfile.TemporaryDirectory(prefix="paceline-")
    _own.append(own)
    return Path(own.name)


_own: "list[tempfile.TemporaryDirectory[str]]" = []
"""Goes when the process ends."""


def distrust(path: Path) -> str | None:
    """Why what lies at `path` is not to be used; None: it may be."""
    if not hasattr(os, "geteuid"):
        return None
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    alone = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX  # what is there stays its owner's
    return "everybody may write to it" if found.st_mode & stat.S_IWOTH and not alone else None


def trusted(path: Path) -> bool:
    """Is there such a file, and may it be used? One that may not is warned about."""
    if not path.is_file():
        return False
    reason = distrust(path)
    if reason is not None:
        log.warning("%s is not used, because %s; it is created again.", path, reason)
    return reason is None


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
