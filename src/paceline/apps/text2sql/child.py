"""One query in a process of its own, which the parent may kill: a job as JSON on stdin, its table as JSON on stdout.

Run as a file by database.py; it imports nothing of Paceline. Memory and processor time are the process's own limits,
so native code cannot go around them; the connection is read-only, and its own walls are as in database.py.
"""

import json
import resource
import signal
import sqlite3
import sys
import time
from typing import Any
from urllib.parse import quote

CELL = 1_000_000
"""Bytes of a value, at most."""
CUT = 2_000
"""Characters of a value in a result; the rest is dropped, with a mark."""
AT_ONCE = 64
"""Rows that are fetched at once."""
READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})


def permit(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    """SQLite's authoriser: reading alone."""
    if action in READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and function not in ("load_extension", "readfile", "writefile", "edit"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def connect(path: str) -> sqlite3.Connection:
    """A read-only connection to an SQLite file, with limits."""
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    return connection


def sqlite(path: str, sql: str) -> Any:
    connection = connect(path)
    connection.set_authorizer(permit)
    return connection.execute(sql)


def duck(path: str, sql: str, memory: int) -> Any:
    import duckdb

    walls: dict[str, Any] = {
        "enable_external_access": "false", "autoinstall_known_extensions": "false", "threads": "1",
        "autoload_known_extensions": "false", "memory_limit": f"{memory >> 21}MiB", "lock_configuration": "true",
    }  # fmt: skip
    connection = duckdb.connect(path, read_only=True, config=walls)
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise PermissionError("DuckDB reads this as something other than one query; write one SELECT.")
    return connection.execute(statements[0])


def fetched(cursor: Any, rows: int, most: int) -> tuple[list[list[Any]], bool]:
    """At most `rows` rows of a table, of `most` bytes together, and whether there are more."""
    out: list[list[Any]] = []
    left = most
    while len(out) <= rows and (part := cursor.fetchmany(min(AT_ONCE, rows + 1 - len(out)))):
        for row in part:
            made = [cell(value) for value in row]
            left -= sum(len(json.dumps(value)) for value in made)
            if left < 0:
                return out, True
            out.append(made)
    return out[:rows], len(out) > rows


def cell(value: Any) -> Any:
    """A value as JSON has it; what JSON has not as text, exact decimals with a mark."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str):
        return value[:CUT] + "…" if len(value) > CUT else value
    if isinstance(value, list | tuple):
        return [cell(each) for each in value[:CUT]]
    if type(value).__name__ == "Decimal":
        return {"decimal": str(value)}
    return {"text": str(value)[:CUT]}


def main() -> None:
    job = json.load(sys.stdin)
    memory, seconds = job["memory"], job["seconds"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2, int(seconds) + 3))
    signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles it: it ends the process in whatever code it is
    began = time.monotonic()
    try:
        if job["dialect"] == "sqlite":
            cursor = sqlite(job["path"], job["sql"])
        else:
            cursor = duck(job["path"], job["sql"], memory)
        rows, more = fetched(cursor, job["rows"], job["bytes"])
        names = [each[0] for each in cursor.description or ()]
        said = {"columns": names, "rows": rows, "more": more, "seconds": time.monotonic() - began}
    except MemoryError:
        said = {"kind": "memory"}
    except PermissionError as error:
        said = {"kind": "forbidden", "error": str(error)}
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        kind = "forbidden" if "not authorized" in str(error) or "prohibited" in str(error) else "error"
        kind = "memory" if "memory" in type(error).__name__.lower() else kind
        said = {"kind": kind, "error": text[0][:300]}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
