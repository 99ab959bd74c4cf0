"""The supervisor of one job, a process of its own: builds the box, starts the first process in it, watches, copies out.

Run by box.py with the path of a folder: `spec.json` and `in/` are read, `out/` and `report.json` are written. It
works for nobody but its caller: when the caller closes the control pipe, or dies, the job ends.
"""

import functools
import json
import os
import select
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import kernel
from .inside import first
from .watch import AppWatch

TICK_MS = 40
PAGE = os.sysconf("SC_PAGE_SIZE")
SOCKET_BYTES = 208 << 10
"""What waits in a socket at most, where the system says nothing else."""
DEEPEST_FOLDER = 64
"""Folders inside one another that are copied out."""
LONGEST_NAME_BYTES = 3 << 10
"""Length of a path in the box that is copied out: the system takes 4 KiB with what is before it."""
DEVICES = ("null", "full", "random", "urandom")
ZEROS = 1 << 40
"""Bytes of /dev/zero, which is a file of one hole: a shared mapping of the device is memory that no process has."""


def main(folder: str) -> None:
    base = Path(folder)
    spec = json.loads((base / "spec.json").read_text())
    try:
        report = Jail(base, spec).run()
    except OSError as error:
        report = {"error": str(error), "forbidden": error.errno in (1, 13, 22, 28, 38)}
    (base / "report.json").write_text(json.dumps(report))


class Jail:
    """One job. Memory in bytes, times in seconds of the monotonic clock."""

    def __init__(self, base: Path, spec: dict[str, Any]) -> None:
        self.base, self.spec, self.limits = base, spec, spec["limits"]
        self.root, self.disk = base / "root", base / "disk"
        self.watch: AppWatch | None = None
        self.stop: str | None = None
        self.ended: int | None = None
        self.error: str | None = None
        self.ready, self.done = False, False
        self.peak, self.full = 0, False
        self.paused: float | None = None
        self.deadline = self.looked = 0.0

    def run(self) -> dict[str, Any]:
        self.separate()
        self.build()
        mine, theirs = socket.socketpair()
        status, told = os.pipe()
        began = time.monotonic()
        self.deadline = began + self.limits["wall"]
        child = os.fork()
        if child == 0:
            mine.close()
            os.close(status)
            first(self.spec, str(self.root), told, theirs)
        theirs.close()
        os.close(told)
        if self.spec["talk"] is not None:
            os.close(self.spec["talk"])
        for number in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), number)
        self.supervise(child, status, mine)
        seconds = time.monotonic() - began
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.full = self.full or self.is_full()
        self.copy_out()
        attempts = self.watch.attempts if self.watch else []
        return {"ended": self.ended, "error": self.error, "stop": self.stop, "attempts": attempts, "seconds": seconds,
                "peak": self.peak, "full": self.full, "watched": self.watch is not None}  # fmt: skip

    def separate(self) -> None:
        """Namespaces of this process's own, and of its children's process ids."""
        uid, gid = os.getuid(), os.getgid()
        flags = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
        kernel.unshare(flags | (0 if self.spec["uid"] is not None else kernel.NEWUSER))
        if self.spec["uid"] is None:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        self.spec["shared"] = bounded(self.limits["shared"])
        kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)

    def build(self) -> None:
        """A root of nothing but what the job may see."""
        root, owner = self.root, self.spec["uid"]
        kernel.mount("tmpfs", str(root), "tmpfs", kernel.NOSUID | kernel.NODEV, "size=4m,mode=0755")
        kernel.mount("tmpfs", str(self.disk), "tmpfs", kernel.NOSUID | kernel.NODEV,
                     f"size={self.limits['disk']},nr_inodes={self.limits['inodes']},mode=0755")  # fmt: skip
        for name in ("box", "tmp", "shm"):
            (self.disk / name).mkdir()
        shutil.copytree(self.base / "in", self.disk / "box", dirs_exist_ok=True)
        if owner is not None:
            for path in (self.disk, *self.disk.rglob("*")):
                os.chown(path, owner, owner, follow_symlinks=False)
        self.devices()
        for name in ("box", "tmp"):
            (root / name).mkdir()
            kernel.mount(str(self.disk / name), str(root / name), None, kernel.BIND)
        (root / "proc").mkdir()
        for path in self.spec["read"]:
            self.show(Path(path))

    def devices(self) -> None:
        dev = self.root / "dev"
        (dev / "shm").mkdir(parents=True)
        kernel.mount(str(self.disk / "shm"), str(dev / "shm"), None, kernel.BIND)
        for name in DEVICES:
            (dev / name).touch()
            kernel.mount(f"/dev/{name}", str(dev / name), None, kernel.BIND)
        with (dev / "zero").open("wb") as zeros:
            zeros.truncate(ZEROS)
        (dev / "zero").chmod(0o444)
        for name, to in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            (dev / name).symlink_to(to)

    def show(self, path: Path) -> None:
        """A file or folder of the host, read-only, at its own place."""
        target = self.root / path.relative_to("/")
        if target.is_symlink() or (target.exists() and os.path.ismount(target)):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
            return
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        kernel.bind_read_only(str(path), str(target))

    def supervise(self, child: int, status: int, mine: socket.socket) -> None:
        """Until the command has ended or must: answer the filter, watch the limits, obey the caller."""
        poll = select.poll()
        control = self.spec["control"]
        for number in (status, control, mine.fileno()):
            poll.register(number, select.POLLIN)
        while not self.done and self.stop is None:
            for number, event in poll.poll(TICK_MS):
                if number == status:
                    self.hear(os.read(status, 1 << 16))
                elif number == control:
                    self.obey(os.read(control, 64))
                elif number == mine.fileno():
                    poll.unregister(number)
                    if told := socket.recv_fds(mine, 1, 1)[1]:
                        self.watch = AppWatch(told[0], tuple(self.spec["read"]))
                        poll.register(told[0], select.POLLIN)
                elif event & select.POLLIN and self.watch is not None:
                    self.watch.answer()
                else:
                    poll.unregister(number)
            self.check(child)

    def hear(self, said: bytes) -> None:
        """What the first process says: that it is ready, how the command ended, or what went wrong."""
        if not said:
            self.done = True
        for line in said.splitlines():
            if line == b"ready":
                self.ready = True
                continue
            word = json.loads(line)
            self.ended, self.error = word.get("ended", self.ended), word.get("error", self.error)
            self.done = True

    def obey(self, said: bytes) -> None:
        """p: the caller is thinking, so the wall clock stands; r: it runs again; o: too much output; end: the caller is
        gone."""
        now = time.monotonic()
        for letter in said.decode() or "e":
            if letter == "p" and self.paused is None:
                self.paused = now
            elif letter == "r" and self.paused is not None:
                self.deadline, self.paused = self.deadline + now - self.paused, None
            elif letter in "oe":
                self.stop = "output" if letter == "o" else "caller"

    def check(self, child: int) -> None:
        """Hold the limits that are on all processes together."""
        now = time.monotonic()
        if self.paused is None and now > self.deadline:
            self.stop = self.stop or "time"
        if not self.ready or self.done or now < self.looked + TICK_MS / 2000:
            return
        self.looked = now
        memory, tasks = usage(f"/proc/{child}/root/proc")
        memory += waiting()
        self.peak = max(self.peak, memory)
        if memory > self.limits["memory"]:
            self.stop = self.stop or "memory"
        elif tasks - 1 >= self.limits["processes"]:
            self.stop = self.stop or "processes"
        self.full = self.full or self.is_full()

    def is_full(self) -> bool:
        room = os.statvfs(self.disk)
        return room.f_bavail == 0 or room.f_ffree == 0

    def copy_out(self) -> None:
        """Regular files of /box, which all together are no larger than the disk was, holes counted; nobody else can
        change them any more. What goes beyond stops the job. A file with several names is copied once."""
        if not self.spec["collect"]:
            return
        left, copied = int(self.limits["disk"]), dict[int, Path]()
        for path, name, found in regular(self.disk / "box"):
            if name is None or (found.st_ino not in copied and found.st_size > left):
                self.stop = self.stop or "disk"
                continue
            to = self.base / "out" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if found.st_ino in copied:
                os.link(copied[found.st_ino], to)
                continue
            shutil.copyfile(path, to, follow_symlinks=False)
            to.chmod(0o755 if found.st_mode & 0o100 else 0o644)
            left, copied[found.st_ino] = left - found.st_size, to


def regular(box: Path) -> Iterator[tuple[Path, str | None, os.stat_result]]:
    """The regular files below a folder: path, name in it (None: too deep or too long to be copied), and what it is."""
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        with os.scandir(box / folder) as entries:
            for entry in entries:
                name, found = f"{folder}/{entry.name}".lstrip("/"), entry.stat(follow_symlinks=False)
                short = len(os.fsencode(name)) <= LONGEST_NAME_BYTES
                if stat.S_ISDIR(found.st_mode):
                    if depth < DEEPEST_FOLDER and short:
                        folders.append((name, depth + 1))
                    else:
                        yield box / name, None, found
                elif stat.S_ISREG(found.st_mode):
                    yield box / name, name if short else None, found


def waiting() -> int:
    """Bytes that the sockets of this network may hold, which no process is said to have. Two of them, and a line, are
    no job's."""
    try:
        lines = Path("/proc/self/net/unix").read_bytes().count(b"\n")
    except OSError:
        return 0
    return max(0, lines - 3) * socket_bytes()


@functools.cache
def socket_bytes() -> int:
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    except (OSError, ValueError):
        return SOCKET_BYTES


def usage(proc: str) -> tuple[int, int]:
    """Resident bytes and tasks of all processes listed there."""
    memory = tasks = 0
    try:
        names = os.listdir(proc)
    except OSError:
        return 0, 0
    for name in names:
        if name.isdigit():
            try:
                fields = Path(proc, name, "stat").read_text().rpartition(")")[2].split()
            except (OSError, UnicodeDecodeError):
                continue
            tasks, memory = tasks + int(fields[17]), memory + int(fields[21]) * PAGE
    return memory, tasks


def bounded(shared: int) -> bool:
    """Bound the System V shared memory of this process's IPC namespace, bytes in all; False where there is to be none,
    or where the system does not let it be bounded."""
    pages, most = Path("/proc/sys/kernel/shmall"), shared // os.sysconf("SC_PAGE_SIZE")
    if not most:
        return False
    try:
        pages.write_text(str(most))
        return int(pages.read_text()) == most
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    main(sys.argv[1])
