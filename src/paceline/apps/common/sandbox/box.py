"""The caller's side of the sandbox: what a job is, what comes back, and how its supervisor is started."""

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from . import kernel

APP_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache",
          "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime",
          "/etc/java-17-openjdk", "/etc/ssl/openssl.cnf")  # fmt: skip
"""What every job may read, where it exists."""
PACKAGE_ROOT = Path(__file__).resolve().parents[4]
START = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from paceline.apps.common.sandbox.jail import main; main(sys.argv[1])"
)
APP_GRACE_S = 10.0
UNLIMITED = sys.maxsize
FIRST_UID = 1 << 20
Limit = Literal["time", "cpu", "memory", "processes", "disk", "output"]


class SandboxError(Exception):
    """The box cannot be made here, or the job's command not started; nothing was run."""


@dataclass(frozen=True, slots=True)
class AppLimits:
    """What a job may use. `memory_mb` is resident memory of all its processes together; `address_mb` address space of
    each (None: none set, as sanitizers need; default four times the memory, at least 1 GiB); `cpu_s` processor seconds
    of each; `processes` counts threads, too; `disk_mb` is for all its files;
    `shared_mb` is System V shared memory in all, none unless it is asked for."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_mb: int = 512
    address_mb: int | None = -1
    processes: int = 32
    disk_mb: int = 64
    output_kb: int = 1024
    shared_mb: int = 0

    def bytes(self) -> dict[str, float]:
        address = max(1024, 4 * self.memory_mb) if self.address_mb == -1 else self.address_mb
        return {
            "wall": self.wall_s,
            "cpu": self.cpu_s,
            "memory": self.memory_mb << 20,
            "address": UNLIMITED if address is None else address << 20,
            "processes": self.processes,
            "disk": self.disk_mb << 20,
            "inodes": 64 * self.disk_mb + 1024,
            "shared": self.shared_mb << 20,
        }


@dataclass(frozen=True, slots=True)
class Job:
    """A command and what it gets.

    `files`: name in its working directory /box: text, bytes, or a file or folder of the host that is copied.
    `read`: further files and folders of the host that it may read, at their own places; this Python's are always there.
    `talk`: answers lines that the job writes to descriptor 3, where it reads the answer; while it is asked, the wall
    clock stands. `collect`: bring back the files of /box, as `AppOutcome.files`; `keep`: copy them to this folder.
    `watch`: report attempts; without it they are refused all the same, and calls that change files cost less.
    """

    command: tuple[str, ...]
    files: Mapping[str, str | bytes | Path] = field(default_factory=dict)
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    read: tuple[Path, ...] = ()
    limits: AppLimits = AppLimits()
    talk: Callable[[str], Awaitable[str]] | None = None
    collect: bool = False
    keep: Path | None = None
    watch: bool = True


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that was tried and kept from happening. `kind`: "network", "write" (outside) or "memory"."""

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class AppOutcome:
    """How a job ended. `limit` is set exactly when `status` is "stopped"; `seconds` by the wall, the caller's thinking
    included; `peak_mb` resident, as sampled; `watched` is whether attempts could be seen."""

    status: Literal["ok", "failed", "crashed", "stopped"]
    exit_code: int | None
    signal: int | None
    limit: Limit | None
    attempts: tuple[Attempt, ...]
    stdout: bytes = field(repr=False)
    """Left out of repr, as stderr and files are: asyncio calls repr on what a task returns, which would copy them."""
    stderr: bytes = field(repr=False)
    seconds: float
    peak_mb: float
    watched: bool
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """stdout as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def errors(self) -> str:
        """stderr as text."""
        return self.stderr.decode("utf-8", "replace")


async def run(job: Job) -> AppOutcome:
    """Run a job to its end. Raises SandboxError where no box can be made, or there is no such command or file."""
    if sys.platform != "linux" or kernel.MACHINE not in kernel.APP_NUMBERS:
        raise SandboxError(f"The sandbox needs Linux on x86-64 or arm64, not {sys.platform} on {kernel.MACHINE}.")
    base = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="box-"))
    try:
        return await supervised(job, base)
    finally:
        await asyncio.to_thread(shutil.rmtree, base, ignore_errors=True)


async def supervised(job: Job, base: Path) -> AppOutcome:
    control_read, control = os.pipe()
    near, far = socket.socketpair() if job.talk else (None, None)
    await asyncio.to_thread(prepare, job, base, control_read, far)
    passed = [control_read, *([far.fileno()] if far else [])]
    with (base / "stdin").open("rb") as stdin:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", START, str(PACKAGE_ROOT), str(base),
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=passed, cwd="/", env={},
        )  # fmt: skip
    os.close(control_read)
    if far:
        far.close()
    talking = asyncio.create_task(converse(job, near, control)) if near else None
    try:
        async with asyncio.TaskGroup() as group:
            out = group.create_task(capped(process.stdout, job.limits.output_kb << 10, control))
            err = group.create_task(capped(process.stderr, job.limits.output_kb << 10, control))
            group.create_task(ended(process))
    finally:
        if talking is not None:
            talking.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await talking
        os.close(control)
        if near:
            near.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), APP_GRACE_S)
        if process.returncode is None:
            process.kill()
    return await asyncio.to_thread(outcome, job, base, out.result(), err.result())


async def ended(process: asyncio.subprocess.Process) -> None:
    await process.wait()


def prepare(job: Job, base: Path, control: int, far: socket.socket | None) -> None:
    """The folder that the supervisor reads."""
    for name in ("in", "out", "root", "disk"):
        (base / name).mkdir()
    for name, content in job.files.items():
        path = base / "in" / name
        if not path.resolve().is_relative_to((base / "in").resolve()):
            raise SandboxError(f"The file name {name!r} leads out of the box; give one below it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            if content.is_dir():
                shutil.copytree(content, path, dirs_exist_ok=True)
            else:
                shutil.copy(content, path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    (base / "stdin").write_bytes(job.stdin)
    missing = [str(path) for path in job.read if not path.exists()]
    if missing:
        raise SandboxError(f"{missing[0]} is to be read in the box, but does not exist.")
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    python |= {os.path.realpath(p) for p in python}  # an environment may be a link
    read = [*(p for p in APP_SYSTEM if os.path.lexists(p)), *python, *(str(p.absolute()) for p in job.read)]
    spec = {
        "command": list(job.command),
        "env": dict(job.env),
        "read": [p for p in dict.fromkeys(read) if not any(p != q and Path(p).is_relative_to(q) for q in read)],
        "limits": job.limits.bytes(),
        "uid": FIRST_UID + secrets.randbelow(1 << 29) if os.geteuid() == 0 else None,
        "control": control,
        "talk": None if far is None else far.fileno(),
        "collect": job.collect or job.keep is not None,
        "watch": job.watch,
    }
    (base / "spec.json").write_text(json.dumps(spec))


async def capped(stream: asyncio.StreamReader | None, most: int, control: int) -> bytes:
    """All output up to `most` bytes; the job is stopped where there is more."""
    assert stream is not None
    kept = bytearray()
    while piece := await stream.read(1 << 16):
        kept += piece[: most - len(kept)]
        if len(kept) >= most:
            with contextlib.suppress(OSError):
                os.write(control, b"o")
            while await stream.read(1 << 16):
                pass
    return bytes(kept)


async def converse(job: Job, near: socket.socket, control: int) -> None:
    """Answer the job's lines, one after the other."""
    assert job.talk is not None
    reader, writer = await asyncio.open_connection(sock=near, limit=1 << 22)
    try:
        while line := await reader.readline():
            os.write(control, b"p")
            try:
                reply = await job.talk(line.decode("utf-8", "replace").rstrip("\n"))
            finally:
                os.write(control, b"r")
            writer.write(reply.replace("\n", " ").encode() + b"\n")
            await writer.drain()
    except ValueError:  # a line without an end
        os.write(control, b"o")
    finally:
        writer.close()


def outcome(job: Job, base: Path, out: bytes, err: bytes) -> AppOutcome:
    """What the supervisor reported, as the caller sees it. Raises SandboxError."""
    try:
        report: dict[str, Any] = json.loads((base / "report.json").read_text())
    except (OSError, ValueError) as error:
        raise SandboxError(f"The sandbox's supervisor died: {err.decode('utf-8', 'replace')[-500:]}") from error
    if report.get("forbidden"):
        raise SandboxError(
            f"This machine lets this user make no sandbox ({report['error']}); run as root, or allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)."
        )
    if report["error"]:
        raise SandboxError(report["error"])
    attempts = tuple(Attempt(*pair) for pair in report["attempts"])
    ended = report["ended"]
    code = os.waitstatus_to_exitcode(ended) if ended is not None else None
    limit = named_limit(report, code, attempts)
    status: Literal["ok", "failed", "crashed", "stopped"] = (
        "stopped" if limit else "ok" if code == 0 else "crashed" if code is not None and code < 0 else "failed"
    )
    return AppOutcome(
        status,
        code if code is not None and code >= 0 else None,
        -code if code is not None and code < 0 else None,
        limit,
        attempts,
        out,
        err,
        report["seconds"],
        report["peak"] / 2**20,
        report["watched"],
        files(job, base),
    )


def named_limit(report: dict[str, Any], code: int | None, attempts: tuple[Attempt, ...]) -> Limit | None:
    """The limit that ended the job: the supervisor's, the kernel's signal, or one that the job met and failed of."""
    if report["stop"] is not None:
        stop: Limit = report["stop"]
        return stop
    if code == -signal.SIGXCPU:
        return "cpu"
    if code == -signal.SIGXFSZ or (code != 0 and report["full"]):
        return "disk"
    return "memory" if code != 0 and any(a.kind == "memory" for a in attempts) else None


def files(job: Job, base: Path) -> dict[str, bytes]:
    """Contents by path below `out`. A file with several names is read, or copied, once."""
    out, copies, contents = base / "out", dict[int, str](), dict[int, bytes]()

    def copy(source: str, target: str) -> None:
        number = os.stat(source, follow_symlinks=False).st_ino
        if number in copies:
            Path(target).unlink(missing_ok=True)
            os.link(copies[number], target)
        else:
            shutil.copy2(source, target)
            copies[number] = target

    if job.keep is not None:
        shutil.copytree(out, job.keep, dirs_exist_ok=True, copy_function=copy)
        return {}
    found = {}
    for path in sorted(out.rglob("*")):
        if path.is_file():
            number = path.stat().st_ino
            if number not in contents:
                contents[number] = path.read_bytes()
            found[str(path.relative_to(out))] = contents[number]
    return found


@functools.cache
def unavailable() -> str:
    """Why no box can be made here; empty where it can. Tried once."""
    try:
        asyncio.run(run(Job(("true",))))
    except SandboxError as error:
        return str(error)
    return ""
