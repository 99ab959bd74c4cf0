"""SQLite and DuckDB files, Postgres and MySQL servers, opened read-only; queries with limits of time, rows and bytes.

Four walls: the parser's check (`guard`), the connection's mode, the engine's own permission to read and nothing else
(an authoriser, or the statement's type and a locked configuration), and a child process with limits for each query.
"""

import getpass
import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from ..common.address import masked, without_secret
from .guard import Forbidden, check

Kind = Literal["forbidden", "error", "timeout", "missing", "memory"]
PROGRAM = Path(__file__).with_name("child.py")
START_S = 30.0
"""Seconds for the child to start and to open the database, on a machine that is busy with other work; the query's own
begin then."""
SPARE_S = 5.0
"""Seconds for the child's answer to be read."""
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


def open_database(given: Path | str) -> Database:
    """A server by its address, a file by its first bytes. QueryError("missing") for what is neither."""
    if isinstance(given, str) and "://" in given:
        return server(given)
    path = Path(given)
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            head = os.read(number, 16) if stat.S_ISREG(os.fstat(number).st_mode) else b""
        finally:
            os.close(number)
    except OSError as error:
        raise QueryError("missing", f"{without_secret(path)} cannot be read: {error.strerror}.") from error
    if head.startswith(b"SQLite format 3\0"):
        return Sqlite(path)
    if head[8:12] == b"DUCK":
        return Duck(path)
    raise QueryError(
        "missing",
        f"{without_secret(path)} is neither an SQLite nor a DuckDB file; give one of them, or a table in .csv, .tsv, "
        ".parquet or .json.",
    )


@dataclass(frozen=True, slots=True)
class Sqlite:
    path: Path
    dialect: str = "sqlite"

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        return _run(self, sql, limits)

    def own(self, sql: str, limits: SqlLimits) -> tuple[tuple[Any, ...], ...]:
        """Rows of a statement of the application's own, never a model's: the authoriser would refuse pragmas."""
        return whole(_run(self, sql, limits, True))


@dataclass(frozen=True, slots=True)
class Duck:
    path: Path
    dialect: str = "duckdb"

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        return _run(self, sql, limits)


SQL_SERVERS = {"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
SQL_ENCODED = "in a name and a password write / as %2F, ? as %3F, # as %23 and @ as %40"
SQL_DRIVERS = {"postgres": "pg8000", "mysql": "pymysql"}


@dataclass(frozen=True, slots=True)
class SqlServer:
    """A Postgres or MySQL database, by its address."""

    dialect: str
    host: str
    port: int | None
    name: str
    user: str
    password: str | None = field(repr=False)
    encrypted: bool
    driver: str
    """The folder of the driver's package."""

    @property
    def path(self) -> Path:
        return Path(self.name)

    def run(self, sql: str, limits: SqlLimits = SqlLimits()) -> SqlResult:
        return _run(self, sql, limits)

    def own(self, sql: str, limits: SqlLimits) -> tuple[tuple[Any, ...], ...]:
        """Rows of a statement of the application's own, which may use functions that a model's may not."""
        return whole(_run(self, sql, limits, True))


def whole(found: SqlResult) -> tuple[tuple[Any, ...], ...]:
    """Its rows. Raises QueryError where they are not all there."""
    if found.more:
        raise QueryError("error", f"The schema is too large: only {len(found.rows)} rows of it are read.")
    return found.rows


def server(url: str) -> SqlServer:
    """postgres://USER:PASSWORD@HOST:PORT/NAME or mysql://...; `?sslmode=require` encrypts. Raises QueryError."""
    shown = without_secret(url)
    form = "write it as postgres://USER:PASSWORD@HOST:PORT/NAME, or mysql://..."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may quote the password
        raise QueryError("missing", f"The database's address {shown} cannot be read; {form}; {SQL_ENCODED}.") from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" or parts.fragment:
        raise QueryError("missing", f"The database's address {shown} is ambiguous: {SQL_ENCODED}.")
    dialect = SQL_SERVERS.get(parts.scheme.lower().partition("+")[0])
    if dialect is None:
        raise QueryError(
            "missing",
            f"{parts.scheme}:// is no database that can be asked here; {form}, or export its tables as CSV or Parquet "
            "files and give each with --db.",
        )
    if not parts.hostname or not parts.path.strip("/"):
        raise QueryError("missing", f"The database's address names no server and database; {form}.")
    query = parse_qs(parts.query)
    if unknown := set(query) - {"sslmode", "ssl"}:
        raise QueryError("missing", f"The database's address has {min(unknown)}, which is not known; leave it out.")
    mode = [*query.get("sslmode", ()), *query.get("ssl", ()), "disable"][0]
    spec = find_spec(SQL_DRIVERS[dialect])
    if spec is None or spec.origin is None:
        package = SQL_DRIVERS[dialect]
        raise QueryError("missing", f"{dialect} needs the package {package}: pip install 'paceline[databases]'.")
    user = unquote(parts.username) if parts.username else getpass.getuser()
    password = unquote(parts.password) if parts.password is not None else os.environ.get("PGPASSWORD")
    name = unquote(parts.path.strip("/"))
    plain = mode in ("disable", "allow", "prefer", "false", "0")
    return SqlServer(dialect, parts.hostname, port, name, user, password, not plain, str(Path(spec.origin).parents[1]))


def _run(database: Database, sql: str, limits: SqlLimits, own: bool = False) -> SqlResult:
    """A query in a child, which is killed when its time is over, whatever native code it is in."""
    memory = limits.memory_mb << 20
    job = {
        "dialect": database.dialect, "path": str(database.path.absolute()),
        "sql": sql if own else _checked(sql, database.dialect),
        "server": asdict(database) if isinstance(database, SqlServer) else None,
        "own": own, "rows": limits.rows, "bytes": limits.bytes, "seconds": limits.seconds, "memory": memory,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            said, _ = child.communicate(json.dumps(job).encode(), START_S + limits.seconds + SPARE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            message = f"The database was not opened within {START_S:g} s, this machine is too busy; try again."
            raise QueryError("timeout", message) from None
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
        raise QueryError(made.kind, masked(made.error, database.password if isinstance(database, SqlServer) else None))
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
