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
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

CELL = 1_000_000
"""Bytes of a value, at most."""
CUT = 2_000
"""Characters of a value in a result; the rest is dropped, with a mark."""
SQL_CONNECT_S = 10.0
"""Seconds for a server to answer."""
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


def sqlite(path: str, sql: str, own: bool) -> Callable[[], Any]:
    """The query, ready to begin. `own`: it is the application's, which may ask what the database is made of."""
    connection = connect(path)
    if not own:
        connection.set_authorizer(permit)
    return lambda: connection.execute(sql)


def duck(path: str, sql: str, memory: int) -> Callable[[], Any]:
    """The query, ready to begin."""
    import duckdb

    walls: dict[str, Any] = {
        "enable_external_access": "false", "autoinstall_known_extensions": "false", "threads": "1",
        "autoload_known_extensions": "false", "memory_limit": f"{memory >> 21}MiB", "lock_configuration": "true",
    }  # fmt: skip
    connection = duckdb.connect(path, read_only=True, config=walls)

    def begin() -> Any:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise PermissionError("DuckDB reads this as something other than one query; write one SELECT.")
        return connection.execute(statements[0])

    return begin


def postgres(job: dict[str, Any]) -> Callable[[], Any]:
    """The query, ready to begin, in a transaction that only reads; its rows come through a cursor of the server's, so
    that no more of them are held than are wanted."""
    import pg8000.native

    told = job["server"]
    connection = pg8000.native.Connection(
        told["user"], told["host"], told["name"], told["port"] or 5432, told["password"], timeout=SQL_CONNECT_S,
        ssl_context=encrypted(told["encrypted"]),
    )  # fmt: skip
    connection.execute_unnamed(f"SET statement_timeout = {int(1000 * job['seconds']) + 1}")
    connection.execute_unnamed("BEGIN TRANSACTION READ ONLY")

    def begin() -> Any:
        connection.execute_unnamed(f"DECLARE paceline NO SCROLL CURSOR FOR {job['sql']}")
        return Fetching(connection, min(AT_ONCE, job["rows"] + 1))

    return begin


class Fetching:
    """Rows of a cursor that a Postgres server holds."""

    def __init__(self, connection: Any, count: int) -> None:
        self.connection = connection
        context = connection.execute_unnamed(f"FETCH {count} FROM paceline")
        self.description, self.first = [(each["name"],) for each in context.columns], list(context.rows)

    def fetchmany(self, count: int) -> list[Any]:
        if self.first:
            rows, self.first = self.first[:count], self.first[count:]
            return rows
        return list(self.connection.execute_unnamed(f"FETCH {count} FROM paceline").rows)


def mysql(job: dict[str, Any]) -> Callable[[], Any]:
    """The query, ready to begin, in a transaction that only reads; rows are not held before they are wanted."""
    import pymysql
    import pymysql.cursors

    told = job["server"]
    connection = pymysql.connect(
        user=told["user"], password=told["password"] or "", host=told["host"], port=told["port"] or 3306,
        database=told["name"], connect_timeout=int(SQL_CONNECT_S), local_infile=False, charset="utf8mb4",
        ssl=encrypted(told["encrypted"]), cursorclass=pymysql.cursors.SSCursor,
    )  # fmt: skip
    cursor = connection.cursor()
    limit = int(1000 * job["seconds"]) + 1
    maria = "mariadb" in str(connection.server_version).lower()
    cursor.execute(f"SET SESSION max_statement_time = {limit / 1000}" if maria else
                   f"SET SESSION max_execution_time = {limit}")  # fmt: skip
    cursor.execute("SET SESSION TRANSACTION READ ONLY")
    cursor.execute("START TRANSACTION READ ONLY")

    def begin() -> Any:
        cursor.execute(job["sql"])
        return cursor

    return begin


def encrypted(wanted: bool) -> Any:
    import ssl

    return ssl.create_default_context() if wanted else None


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


def said_by(error: Exception) -> str:
    """A server's sentence, without what the driver puts around it."""
    if isinstance(error, UnicodeDecodeError):
        return "The database is damaged, or is not text where it must be."
    first = error.args[0] if error.args else ""
    if isinstance(first, dict) and "M" in first:
        return str(first["M"])
    return str(error.args[1]) if len(error.args) > 1 and isinstance(first, int) else str(error)


def main() -> None:
    job = json.load(sys.stdin)
    memory, seconds = job["memory"], job["seconds"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2, int(seconds) + 3))
    try:
        if job["server"] is not None:
            sys.path.append(job["server"]["driver"])
            begin = postgres(job) if job["dialect"] == "postgres" else mysql(job)
        elif job["dialect"] == "sqlite":
            begin = sqlite(job["path"], job["sql"], job["own"])
        else:
            begin = duck(job["path"], job["sql"], memory)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles it: it ends the process in whatever code it is
        began = time.monotonic()
        cursor = begin()
        rows, more = fetched(cursor, job["rows"], job["bytes"])
        names = [each[0] for each in cursor.description or ()]
        said = {"columns": names, "rows": rows, "more": more, "seconds": time.monotonic() - began}
    except MemoryError:
        said = {"kind": "memory"}
    except PermissionError as error:
        said = {"kind": "forbidden", "error": str(error)}
    except Exception as error:
        text = said_by(error).strip().splitlines() or [type(error).__name__]
        kind = "forbidden" if "not authorized" in str(error) or "prohibited" in str(error) else "error"
        kind = "memory" if "memory" in type(error).__name__.lower() else kind
        said = {"kind": kind, "error": text[0][:300]}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
