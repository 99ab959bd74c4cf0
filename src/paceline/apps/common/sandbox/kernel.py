"""The few system calls that Python has no function for. Each raises OSError."""

import ctypes
import os
import platform

LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = platform.machine()
APP_NUMBERS = {"x86_64": {"pivot_root": 155, "seccomp": 317}, "aarch64": {"pivot_root": 41, "seccomp": 277}}
MOUNT_SETATTR = 442

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, BIND, REC, PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
SET_PDEATHSIG, SET_NO_NEW_PRIVS = 1, 38


class MountAttr(ctypes.Structure):
    _fields_ = (("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
                ("userns_fd", ctypes.c_uint64))  # fmt: skip


def checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def unshare(flags: int) -> None:
    checked(LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    given = [None if text is None else text.encode() for text in (source, target, kind)]
    checked(LIBC.mount(*given, ctypes.c_ulong(flags), None if data is None else data.encode()), f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """The tree at `source`, with what is mounted below it, at `target`: no writing, no set-user-id, no devices."""
    mount(source, target, None, BIND | REC)
    attr = MountAttr(RDONLY | NOSUID | NODEV, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attr))
    done = LIBC.syscall(MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(attr), size)
    checked(done, f"mount_setattr {target}")


def pivot_root(to: str) -> None:
    """Make `to` the root and let go of the old one."""
    os.chdir(to)
    checked(LIBC.syscall(APP_NUMBERS[MACHINE]["pivot_root"], b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", DETACH), "umount2")
    os.chdir("/")


def prctl(option: int, value: int) -> None:
    checked(LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")
