"""SQLite and DuckDB files, opened read-only; queries with limits of time, rows and bytes.

Four walls: the parser's check (`guard`), the connection's mode, the engine's own permission to read and nothing else
(an authoriser, or the statement's type and a locked configuration), and the limits.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote

from .guard import Forbidden, check

Kind = Literal["forbidden", "error", "timeout", "missing"]
CELL = 1_000_000
"""Bytes of a value, at most."""
CUT = 2_000
"""Characters of a value in a result; the rest is dropped, with a mark."""


class QueryError(Exception):
    """A query without a result. `kind`: it was forbidden, the database refused it, or it took too long."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class SqlResult:
    """A table. `more`: there were more rows than were allowed."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """Limits of one query."""

    seconds: float = 5.0
    rows: int = 1000


class Database(Protocol):
    @property
    def dialect(self) -> str: ...

    @property
    def path(self) -> Path: ...

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        """A query's table, on a connection of its own, so that threads may share this. Raises QueryError."""
        ...


def open_database(path: Path) -> Database:
    """By the file's first bytes. QueryError("missing") for what is neither."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise QueryError("missing", f"{path} cannot be read: {error.strerror}.") from error
    if head.startswith(b"SQLite format 3\0"):
        return Sqlite(path)
    if head[8:12] == b"DUCK":
        return Duck(path)
    raise QueryError("missing", f"{path} is neither an SQLite nor a DuckDB file; give one of them.")


READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
SQL_STEPS = 10_000
"""Virtual machine steps between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Sqlite:
    path: Path
    dialect: str = "sqlite"

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        sql = _checked(sql, self.dialect)
        end = time.monotonic() + limits.seconds
        with self._connect() as connection:
            connection.set_progress_handler(lambda: time.monotonic() > end, SQL_STEPS)
            connection.set_authorizer(_permit)
            began = time.monotonic()
            try:
                cursor = connection.execute(sql)
                rows = cursor.fetchmany(limits.rows + 1)
            except sqlite3.Error as error:
                if time.monotonic() > end:
                    raise _late(limits) from error
                raise _wrong(error) from error
            return _result([each[0] for each in cursor.description or ()], rows, limits, began)

    def own(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement of the application's own, never a model's: the authoriser would refuse pragmas."""
        with self._connect() as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.Error as error:
                raise _wrong(error) from error

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise _wrong(error) from error
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield connection
        finally:
            connection.close()


def _permit(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    if action in READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and function not in ("load_extension", "readfile", "writefile", "edit"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


@dataclass(frozen=True, slots=True)
class Duck:
    path: Path
    dialect: str = "duckdb"

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        import duckdb

        sql = _checked(sql, self.dialect)
        walls = {
            "enable_external_access": "false", "autoinstall_known_extensions": "false", "memory_limit": "1GB",
            "autoload_known_extensions": "false", "threads": "1", "lock_configuration": "true",
        }  # fmt: skip
        try:
            connection = duckdb.connect(str(self.path), read_only=True, config=dict(walls))
        except duckdb.Error as error:
            raise _wrong(error) from error
        timer = threading.Timer(limits.seconds, connection.interrupt)
        timer.daemon = True
        began = time.monotonic()
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise QueryError("forbidden", "DuckDB reads this as something other than one query; write one SELECT.")
            timer.start()
            cursor = connection.execute(statements[0])
            rows = cursor.fetchmany(limits.rows + 1)
            names = [each[0] for each in cursor.description or ()]
        except duckdb.Error as error:
            if time.monotonic() - began >= limits.seconds:
                raise _late(limits) from error
            raise _wrong(error) from error
        finally:
            timer.cancel()
            connection.close()
        return _result(names, rows, limits, began)


def _checked(sql: str, dialect: str) -> str:
    try:
        return check(sql, dialect)
    except Forbidden as error:
        raise QueryError("forbidden", str(error)) from error


def _late(limits: SqlLimits) -> QueryError:
    return QueryError("timeout", f"The query was stopped after {limits.seconds:g} s.")


def _wrong(error: Exception) -> QueryError:
    text = str(error).strip().splitlines()
    kind: Kind = "forbidden" if "not authorized" in str(error) or "prohibited" in str(error) else "error"
    return QueryError(kind, (text[0] if text else type(error).__name__)[:300])


def _result(names: Sequence[str], rows: Sequence[tuple[Any, ...]], limits: SqlLimits, began: float) -> SqlResult:
    kept = tuple(tuple(map(_cell, row)) for row in rows[: limits.rows])
    return SqlResult(tuple(names), kept, len(rows) > limits.rows, time.monotonic() - began)


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and len(value) > CUT:
        return value[:CUT] + "…"
    return value
