"""The supervisor's half of the filter: answer each call that it tells of, and note what was tried."""

import errno
import fcntl
import os
import posixpath
import struct
from dataclasses import dataclass, field

from .filter import PATHS, numbers

RECEIVE, SEND = 0xC0502100, 0xC0182101
CONTINUE = 1
NOTICE = struct.Struct("=QIIiIQ6Q")
ANSWER = struct.Struct("=QqiI")
APP_FAMILIES = {2: "AF_INET", 10: "AF_INET6", 17: "AF_PACKET", 40: "AF_VSOCK"}
MINE = ("/box", "/tmp", "/dev", "/proc/self", "/proc/thread-self")
APP_MOST = 50
APP_LONGEST = 4096


@dataclass(slots=True)
class AppWatch:
    """Notes of what one job tried, each once, at most APP_MOST. `fd` is the filter's descriptor; `shown` are paths of
    the host, which are outside wherever they lie."""

    fd: int
    shown: tuple[str, ...] = ()
    attempts: list[tuple[str, str]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=lambda: {number: name for name, number in numbers().items()})

    def answer(self) -> None:
        """Take one notice and answer it; a process that died meanwhile needs none."""
        try:
            raw = fcntl.ioctl(self.fd, RECEIVE, bytes(NOTICE.size))
            ident, pid, _, number, _, _, *args = NOTICE.unpack(raw)
            error, flags = self.judge(self.names.get(number, ""), pid, args)
            fcntl.ioctl(self.fd, SEND, ANSWER.pack(ident, 0, -error, flags))
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.EINTR, errno.EINVAL):
                raise

    def judge(self, name: str, pid: int, args: list[int]) -> tuple[int, int]:
        """The error that the call gets, or that it goes on."""
        if name == "socket":
            family = args[0] & 0xFFFFFFFF
            if family in APP_FAMILIES:
                self.note("network", APP_FAMILIES[family])
            return errno.EACCES, 0
        if name == "mmap":
            self.note("memory", f"{args[1] / 2**30:.1f} GiB at once")
            return errno.ENOMEM, 0
        for directory, path in PATHS.get(name, ()):
            self.write(pid, None if directory is None else args[directory], args[path])
        return 0, CONTINUE

    def write(self, pid: int, directory: int | None, address: int) -> None:
        where = place(pid, directory, address)
        if not below(where, MINE) or below(where, self.shown):
            self.note("write", where)

    def note(self, kind: str, what: str) -> None:
        if (kind, what) not in self.attempts and len(self.attempts) < APP_MOST:
            self.attempts.append((kind, what))


def below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def place(pid: int, directory: int | None, address: int) -> str:
    """The path that a process gave, made absolute; "?" where it cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            text = b""
            while b"\0" not in text and len(text) < APP_LONGEST:
                text += memory.read(min(APP_LONGEST, 4096 - (address + len(text)) % 4096)) or b"\0"
        path = os.fsdecode(text.split(b"\0")[0])
        if path.startswith("/"):
            return posixpath.normpath(path)
        here = directory is None or directory & 0xFFFFFFFF == 0xFFFFFF9C
        base = os.readlink(f"/proc/{pid}/cwd" if here else f"/proc/{pid}/fd/{directory}")
        return posixpath.normpath(posixpath.join(base, path))
    except (OSError, OverflowError, ValueError):
        return "?"
