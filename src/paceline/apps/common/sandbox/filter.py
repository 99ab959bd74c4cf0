"""The seccomp filter: what is allowed, what is refused, and what the supervisor is notified of.

Enforcement never rests on reading a path: writes are kept out by mounts and ids. The filter tells the supervisor of
them so that they can be reported. Sockets, huge mappings and anonymous shared ones are refused here.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from .kernel import APP_NUMBERS, LIBC, MACHINE, checked

ALLOW, NOTIFY, KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
NEW_LISTENER, SET_MODE_FILTER = 8, 1
LD, AND, JEQ, JGT, JGE, JSET, RET = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06
NR, ARCH, ARGS = 0, 4, 16
CLONE_NEW = 0x7E020000 | 0x80
"""Every namespace flag of clone."""
HUGE_PAGES = 0x40000
"""Flag of a mapping whose memory no process is said to have."""
SHARED_ANONYMOUS = 0x21
"""Flags of a mapping whose memory stays while any page of it is mapped, and is no process's once it is unmapped."""
SETPIPE_SZ = 1031
"""Command of fcntl that lets a pipe hold more memory."""
SENDING = (7, 32)
"""Options of a socket that let it hold more memory."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
APP_COMMON = {"clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
              "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
              "memfd_secret": 447}  # fmt: skip
CALLS: dict[str, dict[str, int]] = {
    "x86_64": {
        "mmap": 9, "socket": 41, "clone": 56, "open": 2, "openat": 257, "creat": 85, "mkdir": 83, "mkdirat": 258,
        "unlink": 87, "unlinkat": 263, "rmdir": 84, "rename": 82, "renameat": 264, "renameat2": 316, "symlink": 88,
        "symlinkat": 266, "truncate": 76, "chmod": 90, "fchmodat": 268, "chown": 92, "fchownat": 260,
        "ptrace": 101, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249,
        "kexec_load": 246, "init_module": 175, "finit_module": 313, "delete_module": 176, "reboot": 169, "swapon": 167,
        "process_vm_readv": 310, "process_vm_writev": 311, "personality": 135, "memfd_create": 319, "shmget": 29,
        "msgget": 68, "fcntl": 72, "setsockopt": 54,
    },
    "aarch64": {
        "mmap": 222, "socket": 198, "clone": 220, "openat": 56, "mkdirat": 34, "unlinkat": 35, "renameat": 38,
        "renameat2": 276, "symlinkat": 36, "truncate": 45, "fchmodat": 53, "fchownat": 54,
        "ptrace": 117, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268,
        "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "keyctl": 219, "add_key": 217, "request_key": 218,
        "kexec_load": 104, "init_module": 105, "finit_module": 273, "delete_module": 106, "reboot": 142, "swapon": 224,
        "process_vm_readv": 270, "process_vm_writev": 271, "memfd_create": 279, "shmget": 194, "msgget": 186,
        "fcntl": 25, "setsockopt": 208,
    },
}  # fmt: skip
REFUSED = ("ptrace", "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "bpf", "perf_event_open",
           "userfaultfd", "keyctl", "add_key", "request_key", "kexec_load", "init_module", "finit_module",
           "delete_module", "reboot", "swapon", "process_vm_readv", "process_vm_writev", "open_tree", "move_mount",
           "fsopen", "fsconfig", "fsmount", "mount_setattr")  # fmt: skip
ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "shmget",
          "msgget")  # fmt: skip
"""Said not to exist, since a filter cannot look into them, or since they hold memory that is no process's and no file's
of the box; libraries then take the older way."""
PATHS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "creat": ((None, 0),), "mkdir": ((None, 0),), "mkdirat": ((0, 1),), "unlink": ((None, 0),), "unlinkat": ((0, 1),),
    "rmdir": ((None, 0),), "rename": ((None, 0), (None, 1)), "renameat": ((0, 1), (2, 3)),
    "renameat2": ((0, 1), (2, 3)), "symlink": ((None, 1),), "symlinkat": ((1, 2),), "truncate": ((None, 0),),
    "chmod": ((None, 0),), "fchmodat": ((0, 1),), "chown": ((None, 0),), "fchownat": ((0, 1),),
    "open": ((None, 0),), "openat": ((0, 1),),
}  # fmt: skip
"""Calls that change files: (argument of the directory, argument of the path) of each path."""
Line = tuple[int, int, int, int]


def numbers() -> dict[str, int]:
    """Calls of this machine by name."""
    return {**APP_COMMON, **CALLS[MACHINE]}


def refuse(code: int) -> int:
    return 0x00050000 | code


def program(watch: bool, largest: int, shared: bool = False) -> list[Line]:
    """The filter. `largest` is the most bytes that one mapping may have; without `watch` the supervisor is not
    notified; `shared`: the box's System V shared memory is bounded, so it may have some."""
    number, told = numbers(), NOTIFY if watch else refuse(errno.EACCES)
    lines: list[Line] = [(LD, 0, 0, ARCH), (JEQ, 1, 0, AUDIT[MACHINE]), (RET, 0, 0, KILL), (LD, 0, 0, NR)]
    if MACHINE == "x86_64":
        lines += [(JGE, 0, 1, 0x40000000), (RET, 0, 0, refuse(errno.ENOSYS))]
    for name in REFUSED:
        lines += block(number[name], [(RET, 0, 0, refuse(errno.EPERM))])
    for name in ABSENT:
        if shared and name == "shmget":
            continue
        lines += block(number[name], [(RET, 0, 0, refuse(errno.ENOSYS))])
    allow, tell = (RET, 0, 0, ALLOW), (RET, 0, 0, told)
    lines += block(number["clone"], [low(0), (JSET, 0, 1, CLONE_NEW), (RET, 0, 0, refuse(errno.EPERM)), allow])
    lines += block(number["fcntl"], [low(1), (JEQ, 0, 1, SETPIPE_SZ), (RET, 0, 0, refuse(errno.EPERM)), allow])
    more = [line for option in SENDING for line in ((JEQ, 0, 1, option), (RET, 0, 0, refuse(errno.EPERM)))]
    lines += block(number["setsockopt"], [low(2), *more, allow])
    lines += block(number["socket"], [low(0), (JEQ, 0, 1, 1), allow, tell])
    big = NOTIFY if watch else refuse(errno.ENOMEM)
    high, rest = largest >> 32, largest & 0xFFFFFFFF
    lines += block(
        number["mmap"],
        [
            low(3),
            (JSET, 0, 1, HUGE_PAGES),
            (RET, 0, 0, refuse(errno.ENOMEM)),
            (AND, 0, 0, SHARED_ANONYMOUS),
            (JEQ, 0, 1, SHARED_ANONYMOUS),
            (RET, 0, 0, refuse(errno.ENOMEM)),
            (LD, 0, 0, ARGS + 12),
            (JGT, 3, 0, high),
            (JEQ, 0, 3, high),
            low(1),
            (JGT, 0, 1, rest),
            (RET, 0, 0, big),
            allow,
        ],
    )
    if watch:
        for name in PATHS:
            if name in number:
                lines += block(number[name], writing(name))
    return [*lines, allow]


def writing(name: str) -> list[Line]:
    """Tell of a call that changes files; of open only where it writes."""
    tell, allow = (RET, 0, 0, NOTIFY), (RET, 0, 0, ALLOW)
    if name not in ("open", "openat"):
        return [tell]
    return [low(2 if name == "openat" else 1), (JSET, 0, 1, WRITING), tell, allow]


def low(argument: int) -> Line:
    return (LD, 0, 0, ARGS + 8 * argument)


def block(number: int, body: Sequence[Line]) -> list[Line]:
    """`body`, which must return, where the call is this one."""
    return [(JEQ, 0, len(body), number), *body]


def install(lines: Sequence[Line], listen: bool) -> int | None:
    """Filter this process and its children from now on; with `listen` the supervisor's descriptor."""
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    given = Program(len(lines), ctypes.cast(buffer, ctypes.c_void_p))
    flags = ctypes.c_ulong(NEW_LISTENER if listen else 0)
    call = ctypes.c_long(APP_NUMBERS[MACHINE]["seccomp"])
    made = LIBC.syscall(call, ctypes.c_ulong(SET_MODE_FILTER), flags, ctypes.byref(given))
    return checked(made, "seccomp") if listen else (checked(made, "seccomp"), None)[1]
