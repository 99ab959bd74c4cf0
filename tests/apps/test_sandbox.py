"""The box: what must not happen does not, and is reported."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.apps.common import sandbox
from paceline.apps.common.sandbox import AppLimits, AppOutcome, Attempt, Job, SandboxError, run, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=f"no sandbox can be made here: {unavailable()}")

AS_NOBODY = """
import asyncio
from paceline.apps.common import sandbox
print(sandbox.unavailable())
for code in (
    "import os; assert os.getuid() == 65534 and not os.path.exists('/etc/shadow')", "open('/etc/passwd', 'a')",
    "import socket; socket.create_connection(('1.1.1.1', 80))", "bytearray(10**10)", "while True: pass",
    "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass",
):
    job = sandbox.Job(("python3", "-c", code), limits=sandbox.AppLimits(wall_s=2))
    made = asyncio.run(sandbox.run(job))
    print(made.status, made.limit, [attempt.kind for attempt in made.attempts])
"""


def boxed(code: str, **options: Any) -> AppOutcome:
    options.setdefault("limits", AppLimits(wall_s=5))
    return asyncio.run(run(Job((sys.executable, "-c", code), **options)))


def test_a_command_sees_its_files_and_little_else() -> None:
    code = "import os; print(open('in.txt').read(), os.getcwd(), sorted(os.listdir('.'))); open('d/out','w').write('x')"
    outcome = boxed(code, files={"in.txt": "hello", "d/e.bin": b"1"}, collect=True)
    assert (outcome.status, outcome.text) == ("ok", "hello /box ['d', 'in.txt']\n"), outcome.errors
    assert outcome.files == {"in.txt": b"hello", "d/e.bin": b"1", "d/out": b"x"}
    assert outcome.attempts == () and outcome.watched
    listed = boxed("import os; print(os.path.exists('/etc/shadow'), os.path.exists('/home'), os.getuid())").text.split()
    assert listed[:2] == ["False", "False"] and (os.getuid() != 0 or int(listed[2]) > 1000)


def test_a_fork_bomb_is_stopped() -> None:
    outcome = boxed("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert (outcome.status, outcome.limit) == ("stopped", "processes")


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)"])
def test_an_endless_loop_is_stopped(code: str) -> None:
    outcome = boxed(code, limits=AppLimits(wall_s=0.5))
    assert (outcome.status, outcome.limit) == ("stopped", "time")


def test_processor_seconds_are_limited() -> None:
    assert boxed("while True: pass", limits=AppLimits(wall_s=30, cpu_s=1)).limit == "cpu"


def test_children_that_stay_behind_end_with_the_command() -> None:
    code = (
        "import os, time\nif os.fork() == 0:\n os.setsid(); os.close(1); os.close(2); time.sleep(1000)\nprint('done')"
    )
    began = time.monotonic()
    assert boxed(code, limits=AppLimits(wall_s=60)).text == "done\n"
    assert time.monotonic() - began < 30


def test_ten_gigabytes_at_once_are_refused_and_reported() -> None:
    outcome = boxed("bytearray(10 << 30)")
    assert (outcome.status, outcome.limit) == ("stopped", "memory")
    assert outcome.attempts == (Attempt("memory", "10.0 GiB at once"),)


def test_ten_gigabytes_bit_by_bit_are_stopped() -> None:
    code = "held = []\nwhile len(held) < 10240: held.append(b'x' * (1 << 20))"
    outcome = boxed(code, limits=AppLimits(wall_s=20, memory_mb=128))
    assert (outcome.status, outcome.limit) == ("stopped", "memory") and outcome.peak_mb < 2048


def test_memory_of_several_processes_counts_together() -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (40 << 20); time.sleep(10)"
    assert boxed(code, limits=AppLimits(wall_s=20, memory_mb=128)).limit == "memory"


@pytest.mark.parametrize(
    "change", ["open('{0}/new', 'w')", "import os; os.remove('{0}/old')", "import os; os.rename('{0}/old', '/box/x')",
               "import os; os.chdir('{0}'); open('new', 'a')", "import os; os.mkdir('{0}/new')",
               "import os; os.chmod('{0}/old', 0)", "import os; os.symlink('/etc', '{0}/new')"],
)  # fmt: skip
def test_writing_outside_fails_and_is_reported(change: str, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    tmp_path.chmod(0o777)
    outcome = boxed(change.format(tmp_path), read=(tmp_path,))
    assert outcome.status == "failed", outcome
    assert [a.kind for a in outcome.attempts][:1] == ["write"] and str(tmp_path) in outcome.attempts[0].what
    assert [p.name for p in tmp_path.iterdir()] == ["old"] and (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_the_network_is_refused_and_reported(family: str) -> None:
    outcome = boxed(f"import socket; socket.socket(socket.{family}, socket.SOCK_STREAM)")
    assert outcome.status == "failed" and outcome.attempts == (Attempt("network", family),)


@pytest.mark.parametrize("what", ["unshare -U true", "unshare -m true", "mount -t tmpfs none /box", "chroot /box"])
def test_rights_cannot_be_won_back(what: str) -> None:
    outcome = asyncio.run(run(Job(tuple(what.split()))))
    assert outcome.status == "failed" and ("not permitted" in outcome.errors or "superuser" in outcome.errors), outcome


def test_disk_and_output_are_limited() -> None:
    limits = AppLimits(wall_s=20, disk_mb=2, output_kb=10)
    many = "import itertools\nfor i in itertools.count(): open(f'{i}', 'wb').write(b'x' * 100000)"
    assert boxed(many, limits=limits).limit == "disk"
    assert boxed("f = open('a', 'wb')\nwhile True: f.write(b'x' * 100000)", limits=limits).limit == "disk"
    outcome = boxed("while True: print('x' * 1000)", limits=limits)
    assert outcome.limit == "output" and len(outcome.stdout) == 10 << 10


def test_links_do_not_lead_out() -> None:
    outcome = boxed("import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); os.mkdir('d', 0)", collect=True)
    assert (outcome.status, outcome.files) == ("ok", {})


def test_an_unwatched_job_is_held_all_the_same() -> None:
    outcome = boxed("import socket; socket.socket()", watch=False)
    assert (outcome.status, outcome.watched, outcome.attempts) == ("failed", False, ()), outcome
    assert "Permission denied" in outcome.errors


def test_a_crash_is_a_signal() -> None:
    outcome = boxed("import os; os.abort()")
    assert (outcome.status, outcome.signal, outcome.limit) == ("crashed", 6, None)


def test_a_job_may_ask_its_caller_and_the_clock_stands_meanwhile() -> None:
    code = "f = open(3, 'r+b', buffering=0)\nfor w in b'a', b'b': f.write(w + b'\\n'); print(f.readline().decode())"

    async def talk(line: str) -> str:
        await asyncio.sleep(0.4)
        return line.upper()

    outcome = boxed(code, talk=talk, limits=AppLimits(wall_s=0.6))
    assert (outcome.status, outcome.text) == ("ok", "A\n\nB\n\n"), outcome
    silent = boxed("print(open('/proc/self/fd/3') if __import__('os').path.exists('/proc/self/fd/3') else None)")
    assert silent.text == "None\n"


def test_a_cancelled_job_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def cancel() -> None:
        job = asyncio.create_task(run(Job(("sleep", "1000"), limits=AppLimits(wall_s=1000))))
        await asyncio.sleep(0.3)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    began = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - began < 60 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job(("no-such-program",)), "no such program"),
        (Job(("true",), files={"../x": "y"}), "leads out"),
        (Job(("true",), read=(Path("/no/such/path"),)), "does not exist"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(job: Job, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        asyncio.run(run(job))


async def test_sparse_files_count_whole_and_links_once() -> None:
    made = "\n".join([
        "import os",
        "for i in range(4):",
        "    with open(f'f{i}', 'wb') as f: f.truncate(60 << 20)",
        "open('small', 'w').write('x')",
        "os.link('small', 'again')",
    ])  # fmt: skip
    outcome = await run(Job(("python3", "-c", made), limits=AppLimits(disk_mb=64, wall_s=20), collect=True))
    assert sum(map(len, outcome.files.values())) <= 64 << 20
    assert (outcome.status, outcome.limit) == ("stopped", "disk")
    assert outcome.files["small"] == outcome.files["again"] == b"x"


@pytest.mark.parametrize(("count", "length"), [(300, 1), (60, 250)])
async def test_folders_that_lie_deep_end_the_copy_and_nothing_else(count: int, length: int) -> None:
    """By their number, and by the length of the path, which the system cannot open."""
    made = (
        f"import os\nfor i in range({count}):\n    os.mkdir('d' * {length}); os.chdir('d' * {length})\nopen('f', 'w')"
    )
    outcome = await run(Job(("python3", "-c", made), limits=AppLimits(wall_s=20), collect=True))
    assert outcome.limit == "disk" and not outcome.files


@pytest.mark.parametrize(
    "call",
    [
        "os.memfd_create('x')",
        "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
        "shmget()",
        "mmap.mmap(-1, 1 << 20)",  # shared: it stays after madvise, and after all of it but a page is unmapped
        "mmap.mmap(-1, 1 << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)",
    ],
)
async def test_memory_that_no_process_and_no_file_holds_is_refused(call: str) -> None:
    made = "\n".join([
        "import ctypes, fcntl, mmap, os",
        "def shmget():",
        "    if ctypes.CDLL(None, use_errno=True).shmget(0, 1 << 20, 896) < 0: raise OSError(ctypes.get_errno(), '')",
        "try:",
        f"    {call}",
        "except OSError as error:",
        "    print(error.errno)",
    ])  # fmt: skip
    outcome = await run(Job(("python3", "-c", made)))
    assert outcome.text.strip() in ("1", "12", "38"), outcome.errors


async def test_zeros_are_read_from_a_file_that_holds_nothing() -> None:
    """Of the device a shared mapping is memory that no process has."""
    made = (
        "import os, stat; print(len(open('/dev/zero', 'rb').read(1 << 24)), stat.S_ISREG(os.stat('/dev/zero').st_mode))"
    )
    assert (await run(Job(("python3", "-c", made)))).text.split() == [str(1 << 24), "True"]


async def test_shared_memory_that_was_asked_for_is_bounded_in_all() -> None:
    made = "\n".join([
        "import ctypes, os",
        "library, held = ctypes.CDLL(None, use_errno=True), 0",
        "for i in range(100):",
        "    if not i % 10 and not os.fork(): continue",
        "    if library.shmget(0, 1 << 20, 896) < 0: break",
        "    held += 1",
        "print(held)",
    ])  # fmt: skip
    before = Path("/proc/sys/kernel/shmall").read_text()
    outcome = await run(Job(("python3", "-c", made), limits=AppLimits(shared_mb=8)))
    counts = [int(word) for word in outcome.text.split()]
    assert counts and 0 <= max(counts) <= 8, (outcome.text, outcome.errors)
    assert Path("/proc/sys/kernel/shmall").read_text() == before


async def test_what_waits_in_sockets_is_memory() -> None:
    made = "\n".join([
        "import os, socket, time",
        "for i in range(6):",
        "    if not os.fork(): break",
        "pairs = [socket.socketpair() for i in range(100)]",
        "try: pairs[0][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
        "except PermissionError: os.write(1, b'no more')",
        "for pair in pairs:",
        "    pair[0].setblocking(False)",
        "    try:",
        "        while True: pair[0].send(bytes(65536))",
        "    except BlockingIOError: pass",
        "time.sleep(20)",
    ])  # fmt: skip
    outcome = await run(Job(("python3", "-c", made), limits=AppLimits(memory_mb=160, wall_s=30)))
    assert (outcome.status, outcome.limit) == ("stopped", "memory") and "no more" in outcome.text


async def test_sockets_pipes_and_devices_do_not_come_back() -> None:
    made = "\n".join([
        "import os, socket, stat",
        "socket.socket(socket.AF_UNIX).bind('s'); os.mkfifo('f'); open('file', 'w').write('x')",
        "try: os.mknod('d', stat.S_IFCHR | 0o666, os.makedev(1, 5))",
        "except PermissionError: print('no device')",
    ])  # fmt: skip
    outcome = await run(Job(("python3", "-c", made), collect=True))
    assert outcome.status == "ok" and dict(outcome.files) == {"file": b"x"} and "no device" in outcome.text


def test_a_file_with_many_names_is_read_and_copied_once(tmp_path: Path) -> None:
    made = "open('a', 'wb').write(bytes(1 << 20)); import os; [os.link('a', f'b{i}') for i in range(40)]"
    outcome = boxed(made, collect=True)
    assert len(outcome.files) == 41 and len({id(content) for content in outcome.files.values()}) == 1
    assert len(repr(outcome)) < 1000  # asyncio looks at results by it: 40 MB of text for each look
    boxed(made, collect=True, keep=tmp_path)
    assert len({path.stat().st_ino for path in tmp_path.iterdir()}) == 1 and len([*tmp_path.iterdir()]) == 41


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="every other test here is one of this")
def test_an_ordinary_user_has_the_same_box() -> None:
    """The package alone, with the system's Python, as the user nobody."""
    python, change = shutil.which("python3", path="/usr/bin"), shutil.which("runuser")
    if python is None or change is None:
        pytest.skip("needs /usr/bin/python3 and runuser")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        package = shutil.copytree(sandbox.__path__[0], Path(folder) / "paceline/apps/common/sandbox")
        for path in (*package.iterdir(), package, *list(package.parents)[:3]):
            path.chmod(0o755)
        environ = {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
        told = subprocess.run(
            [change, "-u", "nobody", "--", python, "-c", AS_NOBODY],
            env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    if lines[0]:
        assert "namespace" in lines[0], "or it says why not"
        return
    assert lines[1:] == [
        "ok None []", "failed None ['write']", "failed None ['network']", "stopped memory ['memory']",
        "stopped time []", "stopped processes []",
    ]  # fmt: skip
