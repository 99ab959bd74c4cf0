"""The cache directory: what is kept from one start to the next. Only what this user (or root) wrote is read, and nobody
else may be able to write there: a loaded library runs, regardless of its author."""

import hashlib
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
        real = wanted.resolve()  # a link on the way to it may lead elsewhere later
        reason = distrust(real) or exposed(real)
    except OSError as error:
        reason = f"it cannot be made ({error.strerror})"
    if reason is None:
        return real
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
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return None  # what is there stays its owner's, and each file's owner is looked at
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    return "its group may write to it" if found.st_mode & stat.S_IWGRP and not alone(found.st_gid) else None


def exposed(path: Path) -> str | None:
    """Why others could put something else in the place of this directory; None: they could not."""
    for above in path.resolve().parents if hasattr(os, "geteuid") else ():
        found = above.stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{above} belongs to another user"
        if found.st_mode & stat.S_ISVTX:
            continue  # what is there stays its owner's
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {above}"
        if found.st_mode & stat.S_IWGRP and not alone(found.st_gid):
            return f"the group of {above} may write to it"
    return None


def alone(group: int) -> bool:
    """Is this group root's or this user's own, without other members? Many systems give each user such a group, and let
    it write to what the user makes."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return group == 0
    own = found.gr_gid == user.pw_gid and found.gr_name == user.pw_name
    return (group == 0 or own) and not {*found.gr_mem} - {user.pw_name, "root"}


def trusted(path: Path) -> bool:
    """Is there such a file, and may it be used? One that may not is warned about."""
    if not path.is_file():
        return False
    reason = distrust(path)
    if reason is not None:
        log.warning("%s is not used, because %s; it is created again.", path, reason)
    return reason is None


def seal(path: Path) -> None:
    """Write a file's digest next to it. Raises OSError."""
    write(_beside(path), digest(path.read_bytes()))


def sealed(path: Path) -> bool:
    """Is such a file there, may it be used, and is it what `seal` saw? One that is not is warned about."""
    try:
        if not trusted(path) or not trusted(_beside(path)):
            return False
        if _beside(path).read_text(encoding="utf-8") == digest(path.read_bytes()):
            return True
    except (OSError, UnicodeDecodeError):
        pass
    log.warning("%s is not used, because it is not what was kept; it is created again.", path)
    return False


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


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
