"""The first process of the box and the command itself: a fresh root, an id without rights, limits, the filter, exec."""

import json
import os
import resource
import signal
import socket
import sys
from typing import Any, NoReturn

from . import filter, kernel

TALK_FD = 3
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {"PATH": PATH, "HOME": "/box", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


def first(spec: dict[str, Any], root: str, status: int, listener: socket.socket) -> NoReturn:
    """The box's process 1: it starts the command, reaps, tells how the command ended, and takes the rest with it."""
    try:
        kernel.mount("proc", f"{root}/proc", "proc", kernel.NOSUID | kernel.NODEV)
        kernel.unshare(kernel.NEWNS)
        kernel.pivot_root(root)
        kernel.mount("none", "/", None, 32 | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kernel.NODEV)
        become(spec["uid"])
        kernel.prctl(kernel.SET_PDEATHSIG, signal.SIGKILL)
        os.write(status, b"ready\n")
        child = os.fork()
        if child == 0:
            second(spec, status, listener)
        listener.close()
        os.write(status, json.dumps({"ended": reap(child)}).encode() + b"\n")
    except BaseException as error:
        os.write(status, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
    os._exit(0)


def reap(child: int) -> int:
    """Wait for the command; its wait status. Processes that it left behind are reaped as they end."""
    while True:
        pid, ended = os.wait()
        if pid == child:
            return ended


def become(uid: int | None) -> None:
    """Give up every right. None: the caller's own id in a user namespace, whose rights end with exec."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)


def second(spec: dict[str, Any], status: int, listener: socket.socket) -> NoReturn:
    try:
        os.setsid()
        os.chdir("/box")
        os.umask(0o022)
        limit(spec["limits"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        command = spec["command"]
        found = search(command[0], {**ENV, **spec["env"]}["PATH"])
        if spec["talk"] is not None:
            os.dup2(spec["talk"], TALK_FD)
        lines = filter.program(spec["watch"], spec["limits"]["address"], spec["shared"])
        told = filter.install(lines, spec["watch"])
        socket.send_fds(listener, [b"f"], [told] if told is not None else [])
        keep_open(status, spec["talk"] is not None)
        os.execve(found, command, {**ENV, **spec["env"]})
    except BaseException as error:
        text = f"{spec['command'][0]} cannot be run: {error}"
        os.write(status, json.dumps({"error": text}).encode() + b"\n")
    os._exit(127)


def keep_open(status: int, talk: bool) -> None:
    """Let the command have its three streams, and its line to the caller; all else closes with exec."""
    if talk:
        os.set_inheritable(TALK_FD, True)
    for text in os.listdir("/proc/self/fd"):
        number = int(text)
        if number > (TALK_FD if talk else 2):
            try:
                os.set_inheritable(number, False)
            except OSError:
                continue


def search(name: str, path: str) -> str:
    if "/" in name:
        return name
    for folder in path.split(":"):
        if os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    raise FileNotFoundError(f"there is no such program in {path}")


def limit(limits: dict[str, int]) -> None:
    """Set the process's own limits; bytes, seconds and counts."""
    cpu = limits["cpu"]
    for name, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, limits["disk"], limits["disk"]),
        (resource.RLIMIT_NPROC, limits["processes"] + 3, limits["processes"] + 3),
        (resource.RLIMIT_NOFILE, 256, 256),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_STACK, 64 << 20, 64 << 20),
        (resource.RLIMIT_MEMLOCK, 64 << 10, 64 << 10),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        resource.setrlimit(name, (soft, hard))
    if limits["address"] < sys.maxsize:
        resource.setrlimit(resource.RLIMIT_AS, (limits["address"], limits["address"]))
