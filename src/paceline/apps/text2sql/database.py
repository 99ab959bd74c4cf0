"""SQLite and DuckDB files, opened read-only; queries with limits of time, rows and bytes.

Four walls: the parser's check (`guard`), the connection's mode, the engine's own permission to read and nothing else
(an authoriser, or the statement's type and a locked configuration), and a child process with limits for each query.
"""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from .child import connect
from .guard import Forbidden, check

Kind = Literal["forbidden", "error", "timeout", "missing", "memory"]
PROGRAM = Path(__file__).with_name("child.py")
SPARE_S = 5.0
"""Seconds beyond a query's own, for the child to start and to be read."""
ENDED_BY_TIME = (-14, -24)
"""Exit codes of a child whose time is over (SIGALRM), by its processor's clock too (SIGXCPU)."""


class QueryError(Exception):
    """A query without a result. `kind`: it was forbidden, the database refused it, or it met a limit."""

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
    bytes: int = 16 << 20
    """Size limit of the whole table, as JSON."""
    memory_mb: int = 512


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


@dataclass(frozen=True, slots=True)
class Sqlite:
    path: Path
    dialect: str = "sqlite"

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        return _run(self, sql, limits)

    def own(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement of the application's own, never a model's: the authoriser would refuse pragmas."""
        try:
            with closing(connect(str(self.path))) as connection:
                return connection.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise QueryError("error", str(error)[:300]) from error


@dataclass(frozen=True, slots=True)
class Duck:
    path: Path
    dialect: str = "duckdb"

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        return _run(self, sql, limits)


def _run(database: Database, sql: str, limits: SqlLimits) -> SqlResult:
    """A query in a child, which is killed when its time is over, whatever native code it is in."""
    memory = limits.memory_mb << 20
    job = {
        "dialect": database.dialect, "path": str(database.path.absolute()), "sql": _checked(sql, database.dialect),
        "rows": limits.rows, "bytes": limits.bytes, "seconds": limits.seconds, "memory": memory,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            said, _ = child.communicate(json.dumps(job).encode(), limits.seconds + SPARE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise _late(limits) from None
        finally:
            child.kill()
    if child.returncode in ENDED_BY_TIME:
        raise _late(limits)
    try:
        made = _Said.model_validate_json(said)
    except ValidationError:
        raise _large(limits) from None  # it died: of its memory limit, as native code does
    if made.kind == "memory":
        raise _large(limits)
    if made.kind is not None:
        raise QueryError(made.kind, made.error)
    if made.seconds > limits.seconds:
        raise _late(limits)
    rows = tuple(tuple(map(_value, row)) for row in made.rows)
    return SqlResult(tuple(made.columns), rows, made.more, made.seconds)


class _Said(BaseModel):
    """What a child may say."""

    model_config = ConfigDict(extra="forbid", strict=True)
    columns: list[str] = []
    rows: list[list[Any]] = []
    more: bool = False
    seconds: float = 0.0
    kind: Kind | None = None
    error: str = ""


def _value(told: Any) -> Any:
    if isinstance(told, dict):
        return Decimal(told["decimal"]) if "decimal" in told else told["text"]
    return [*map(_value, told)] if isinstance(told, list) else told


def _checked(sql: str, dialect: str) -> str:
    try:
        return check(sql, dialect)
    except Forbidden as error:
        raise QueryError("forbidden", str(error)) from error


def _late(limits: SqlLimits) -> QueryError:
    return QueryError("timeout", f"The query was stopped after {limits.seconds:g} s.")


def _large(limits: SqlLimits) -> QueryError:
    return QueryError("memory", f"The query was stopped: it needs more memory than {limits.memory_mb} MB.")
