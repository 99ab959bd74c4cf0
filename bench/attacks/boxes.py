"""G1-G6: what code in the sandbox, a query of the text-to-SQL application and a strange page may use and say."""

import asyncio
import resource
import sqlite3
import tempfile
import time
from pathlib import Path

from paceline.apps.common.sandbox import AppLimits, AppOutcome, Job, SandboxError
from paceline.apps.common.sandbox import run as boxed

SPARSE = "\n".join(["for i in range(4):", "    with open(f'f{i}', 'wb') as f: f.truncate(60 << 20)"])
MEMFD = "import os\nfd = os.memfd_create('x')\nfor _ in range(1500): os.write(fd, b'x' * (1 << 20))"
MAPPED = "\n".join([
    "import mmap", "made = []",
    "try:", "    for _ in range(12):", "        made.append(mmap.mmap(-1, 100 << 20))",
    "        for at in range(0, 100 << 20, 4096): made[-1][at] = 1", "        made[-1].madvise(mmap.MADV_DONTNEED)",
    "except OSError: pass", "print(len(made), 'of 100 MB')",
])  # fmt: skip
VIEWS = ["CREATE TABLE v0(a)", *(f"CREATE VIEW v{n} AS SELECT x.a FROM v{n - 1} x, v{n - 1} y" for n in range(1, 26))]
"""Views that double with each level."""
SHARED = "import ctypes\nprint(ctypes.CDLL(None).shmget(0, 1 << 30, 896))"
LINKS = "\n".join([
    "import os", "open('a', 'wb').write(b'x' * (20 << 20))", "for i in range(100): os.link('a', f'b{i}')",
    "os.symlink('/etc/passwd', 'c')", "os.link('/etc/passwd', 'd')",
])  # fmt: skip
SOCKETS = "\n".join([
    "import os, socket, stat", "made = []",
    "def fill():", "    pair = socket.socketpair()", "    made.append(pair)", "    pair[0].setblocking(False)",
    "    while True: pair[0].send(b'x' * 65536)",
    "for what in (lambda: socket.socket(socket.AF_UNIX).bind('s'), lambda: os.mkfifo('f'),",
    "             lambda: os.mknod('d', stat.S_IFCHR | 0o666, os.makedev(1, 5)),",
    "             lambda: socket.create_connection(('1.1.1.1', 80), 2), *[fill] * 400):",
    "    try: what()", "    except OSError: pass",
    "print(len(made), 'pairs', sorted(os.listdir()))",
])  # fmt: skip
LINE = (
    "import os\nos.write(os.open('events.jsonl', os.O_WRONLY | os.O_APPEND | os.O_CREAT), b'{\"event\": \"line\"}\\n[')"
)
SLOW = "SELECT instr(hex(zeroblob(499999)), hex(zeroblob(200000))||'1')"
LARGE = "SELECT repeat('x', 20000000) FROM range(200)"


def outcome(source: str, limits: AppLimits) -> AppOutcome:
    return asyncio.run(boxed(Job(("python3", "-c", source), limits=limits, collect=True)))


def box() -> bool:
    """False where more came out of a box than its limits allow."""
    made = outcome(SPARSE, AppLimits(disk_mb=64, wall_s=20))
    size = sum(map(len, made.files.values())) / 2**20
    print(f"G1 four sparse files of 60 MB under 64: {made.status} ({made.limit}), {size:.0f} MB came back")
    good = size <= 64
    for name, source in (("memfd", MEMFD), ("shared anonymous", MAPPED), ("System V", SHARED)):
        made = outcome(source, AppLimits(memory_mb=256, wall_s=20))
        print(f"G2 {name} memory under 256 MB: {made.status}, peak {made.peak_mb:.0f} MB, {made.text.strip()[:40]}")
        good &= made.text.strip() in ("", "0 of 100 MB", "-1")

    for name, source in (("links", LINKS), ("sockets", SOCKETS)):
        made = outcome(source, AppLimits(disk_mb=64, memory_mb=256, wall_s=20))
        contents = {id(content): len(content) for content in made.files.values()}  # a content may have many names
        size, told = sum(contents.values()) / 2**20, made.text.strip().splitlines()[-1:]
        print(f"{name}: {made.status} ({made.limit}), {len(made.files)} files of {size:.0f} MB came back, {told}")
        good &= size <= 64 and not any(b"root:" in each for each in made.files.values())
    return good


def fragment() -> None:
    from paceline.apps.selfpico.fragment import PicoRunner
    from paceline.apps.selfpico.predict import Nothing

    made = asyncio.run(PicoRunner(Nothing()).run("f", LINE))
    print(f"G5 a line of its own in the report: ran {len(made.ran)} lines, problem: {made.problem[:70]!r}")


def query(kind: str, sql: str, seconds: float) -> bool:
    from paceline.apps.text2sql.database import QueryError, SqlLimits, open_database

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        if kind == "sqlite":
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE t (x)")
            connection.close()
        else:
            import duckdb

            duckdb.connect(str(path)).close()
        began = time.monotonic()
        try:
            open_database(path).run(sql, SqlLimits(seconds=seconds))
            said = "answered"
        except QueryError as error:
            said = error.kind
        grown = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        took = time.monotonic() - began
        print(f"{kind} {sql[:60]}: {said} after {took:.1f} s; the largest child had {grown:.0f} MB")
        return said != "answered" and took < seconds + 2


def views() -> bool:
    """False where a database's own views hold up who reads its schema."""
    from paceline.apps.text2sql.database import QueryError, open_database
    from paceline.apps.text2sql.schema import read_schema

    with tempfile.TemporaryDirectory() as folder:
        path, began = Path(folder) / "data", time.monotonic()
        with sqlite3.connect(path) as connection:
            for sql in VIEWS:
                connection.execute(sql)
        connection.close()
        try:
            read_schema(open_database(path))
            said = "answered"
        except QueryError as error:
            said = error.kind
    took = time.monotonic() - began
    print(f"sqlite views of views: {said} after {took:.1f} s")
    return took < 15


def run() -> bool:
    """Prints what each may do; False where one did more than it may, or no box can be made here."""
    try:
        good = box()
        fragment()
    except SandboxError as error:
        print(f"boxes: {error}")
        return False
    good &= views()
    good &= query("sqlite", SLOW, 3.0) and query("duckdb", LARGE, 10.0)
    for sql in ("ATTACH '/tmp/x.db' AS x", "PRAGMA writable_schema = 1", "SELECT load_extension('x')"):
        good &= query("sqlite", sql, 3.0)
    for sql in ("ATTACH '/tmp/x.duckdb' AS x", "COPY (SELECT 1) TO '/tmp/x.csv'", "INSTALL httpfs", "LOAD httpfs",
                "SELECT * FROM read_text('/etc/passwd')", "SET enable_external_access = true"):  # fmt: skip
        good &= query("duckdb", sql, 3.0)
    return good
