"""Tables, columns and keys of a database, and how a prompt shows them."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.numbers import TableError
from ..common.tables import read_table
from .database import Database, QueryError, Sqlite, SqlLimits, SqlServer, whole
from .keywords import KEYWORDS

SQL_SCHEMA_MOST = SqlLimits(seconds=10.0, rows=100_000)
SQL_VIEW_MOST = SqlLimits(seconds=2.0, rows=10_000)
SQL_SCHEMA_SHOWN = 40
"""Characters of a stored value in a prompt."""
SQL_ABOUT_SHOWN = 120
"""Characters of a column's description in a prompt."""


@dataclass(frozen=True, slots=True)
class Column:
    table: str
    name: str
    type: str
    key: bool = False
    refers: tuple[str, str] | None = None
    """(table, column) of a foreign key."""
    about: str = ""
    """Meaning of the column, in the user's words."""
    space: str = ""
    """The schema of a table that is not in the usual one; `table` begins with it then."""

    @property
    def full(self) -> str:
        return f"{self.table}.{self.name}"


@dataclass(frozen=True, slots=True)
class SqlSchema:
    columns: tuple[Column, ...]
    dialect: str = "sqlite"
    left_out: tuple[str, ...] = ()
    """Views that cannot be read, and why."""

    @property
    def tables(self) -> dict[str, list[Column]]:
        out: dict[str, list[Column]] = {}
        for column in self.columns:
            out.setdefault(column.table, []).append(column)
        return out

    def show(self, values: Mapping[str, Sequence[str]], keep: Collection[str] | None = None) -> str:
        """As CREATE TABLE statements with example values; of the columns in `keep` (full names) and all keys. Names
        and values are the database's: they are quoted, and hold no line of their own."""
        blocks = []
        for columns in self.tables.values():
            kept = [c for c in columns if keep is None or c.full in keep or c.key or c.refers]
            if keep is not None and not any(c.full in keep for c in columns):
                continue
            lines = [self._line(column, values.get(column.full, ())) for column in kept]
            blocks.append(f"CREATE TABLE {self.place(columns[0])} (\n" + "\n".join(lines) + "\n);")
        return "\n".join(blocks)

    def name(self, text: str) -> str:
        """An identifier in the database's dialect."""
        if self.dialect == "postgres" and text != text.lower():
            return '"' + flat(text).replace('"', '""') + '"'
        quoted = name(text)
        return "`" + flat(text).replace("`", "``") + "`" if self.dialect == "mysql" and quoted != text else quoted

    def place(self, column: Column) -> str:
        """The column's table, as a query names it."""
        if not column.space:
            return self.name(column.table)
        return f"{self.name(column.space)}.{self.name(column.table[len(column.space) + 1 :])}"

    def _line(self, column: Column, values: Sequence[str]) -> str:
        key = " PRIMARY KEY" if column.key else ""
        refers = ""
        if column.refers:
            to = next((self.place(c) for c in self.columns if c.table == column.refers[0]), self.name(column.refers[0]))
            refers = f" REFERENCES {to}({self.name(column.refers[1])})"
        bare = re.match(r"(?i)int|real|num|dec|float|double|bigint|small", column.type) is not None
        listed = ", ".join(flat(v)[:SQL_SCHEMA_SHOWN] if bare else literal(v) for v in values)
        said = [flat(column.about)[:SQL_ABOUT_SHOWN]] if column.about else []
        said += [f"e.g. {listed}"] if values else []
        shown = f"  -- {'; '.join(said)}" if said else ""
        return f"  {self.name(column.name)} {flat(column.type or 'TEXT')}{key}{refers},{shown}"


def name(text: str) -> str:
    """An identifier, quoted where it must be, on one line."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", text) is not None and text.lower() not in KEYWORDS
    return text if plain else '"' + flat(text).replace('"', '""') + '"'


def requoted(sql: str, schema: "SqlSchema") -> str:
    """The query with those tables and columns quoted whose bare names are words of SQL, as in `FROM order`."""
    names = {column.name for column in schema.columns}
    names |= {c.table[len(c.space) + 1 :] if c.space else c.table for c in schema.columns}
    for text in sorted(each for each in names if schema.name(each) != each and re.fullmatch(r"\w+", each)):
        before = r"((?:\b(?:from|join|select|distinct|on|and|where|by)\s+)|[.,(]\s*)"
        word = rf"{re.escape(text)}\b(?!\s+by\b)(?!\s*\()"
        made = schema.name(text).replace("\\", r"\\")
        sql = re.sub(rf"(?i){before}{word}", rf"\1{made}", sql)
        sql = re.sub(rf"(?i)(?<![\w\"`]){re.escape(text)}(?=\.)", made, sql)
    return sql


def literal(text: str) -> str:
    return "'" + flat(text)[:SQL_SCHEMA_SHOWN].replace("'", "''") + "'"


def flat(text: str) -> str:
    """Without control characters, so that no value starts a line or a comment ends one."""
    return "".join(c if c.isprintable() else " " for c in text)


def described(schema: SqlSchema, about: Mapping[str, str]) -> SqlSchema:
    """With descriptions of columns, by `table.column`, or by the column's name where one table has it. Raises
    QueryError for a column that there is not."""
    left = dict(about)
    columns = []
    for column in schema.columns:
        alone = sum(each.name == column.name for each in schema.columns) == 1
        text = left.pop(column.full, None) or (left.pop(column.name, None) if alone else None)
        columns.append(replace(column, about=text) if text else column)
    if left:
        raise QueryError("missing", f"There is no column {next(iter(left))} to describe; write it as table.column.")
    return SqlSchema(tuple(columns), schema.dialect, schema.left_out)


def read_descriptions(path: Path) -> dict[str, str]:
    """From a table with the column's name first and its description last; headings that begin with `table.column` are
    a row. Raises QueryError."""
    try:
        table = read_table(path)
    except (OSError, TableError) as error:
        raise QueryError("missing", f"{path} cannot be read as a table of descriptions: {error}") from error
    rows = (table.header, *table.rows) if "." in table.header[0] else table.rows
    return {row[0]: row[-1] for row in rows if row[0] and len(row) > 1 and row[-1]}


def read_schema(database: Database) -> SqlSchema:
    """Raises QueryError."""
    left_out: list[str] = []
    if isinstance(database, SqlServer):
        found = _server(database)
    elif isinstance(database, Sqlite):
        found, left_out = _sqlite(database)
    else:
        found = _duck(database)
    if not found:
        raise QueryError("missing", f"{database.path} holds no table that can be read.")
    return SqlSchema(tuple(found), database.dialect, tuple(left_out))


SQLITE_COLUMNS = (
    'SELECT m.name, c.name, c.type, c.pk, f."table", f."to" FROM sqlite_master m '
    'JOIN pragma_table_xinfo(m.name) c LEFT JOIN pragma_foreign_key_list(m.name) f ON f."from" = c.name '
    "WHERE m.name NOT LIKE 'sqlite_%' AND c.hidden <> 1 AND {which} ORDER BY m.rowid, c.cid"
)
"""Columns of tables or views; generated ones are among them, the hidden ones of virtual tables are not."""


def _sqlite(database: Sqlite) -> tuple[list[Column], list[str]]:
    """The columns, and what cannot be read: a view may name a table that is gone."""
    left_out: list[str] = []
    try:
        rows = database.own(SQLITE_COLUMNS.format(which="m.type IN ('table', 'view')"), SQL_SCHEMA_MOST)
    except QueryError:
        rows = database.own(SQLITE_COLUMNS.format(which="m.type = 'table'"), SQL_SCHEMA_MOST)
        for (view,) in database.own("SELECT name FROM sqlite_master WHERE type = 'view'", SQL_SCHEMA_MOST):
            quoted = str(view).replace("'", "''")
            try:
                rows += database.own(SQLITE_COLUMNS.format(which=f"m.name = '{quoted}'"), SQL_VIEW_MOST)
            except QueryError as error:
                if error.kind in ("timeout", "memory"):
                    left_out.append(f"The view {view} and those after it cannot be read ({error}); they are left out.")
                    break
                left_out.append(f"The view {view} cannot be read ({error}); it is left out.")
    keys = {row[0]: row[1] for row in rows if row[3]}
    return [
        Column(str(t), str(c), str(kind), bool(pk), (str(to), str(at or keys.get(to, c))) if to else None)
        for t, c, kind, pk, to, at in {(row[0], row[1]): row for row in rows}.values()
    ], left_out


def _duck(database: Database) -> list[Column]:
    rows = whole(database.run(
        "SELECT table_name, column_name, data_type, comment, schema_name FROM duckdb_columns() "
        "WHERE NOT internal ORDER BY schema_name <> 'main', schema_name, table_name, column_index", SQL_SCHEMA_MOST,
    ))  # fmt: skip
    keys = whole(database.run(
        "SELECT table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names, "
        "schema_name FROM duckdb_constraints()", SQL_SCHEMA_MOST,
    ))  # fmt: skip
    primary = {(inside(s, t), c) for t, kind, names, _, _, s in keys if kind == "PRIMARY KEY" for c in names}
    foreign = {
        (inside(s, t), c): (inside(s, to), at)
        for t, kind, own, to, ats, s in keys if kind == "FOREIGN KEY" for c, at in zip(own, ats)
    }  # fmt: skip
    return [
        Column(at, c, kind, (at, c) in primary, foreign.get((at, c)), about or "", "" if s == "main" else s)
        for t, c, kind, about, s in rows for at in [inside(s, t)]
    ]  # fmt: skip


def inside(space: str, table: str, usual: str = "main") -> str:
    """A table's name, after its schema's where that is not the usual one."""
    return table if space == usual else f"{space}.{table}"


SERVER_COLUMNS = {
    "postgres": "SELECT c.table_schema, c.table_name, c.column_name, c.data_type, "
    "col_description(format('%I.%I', c.table_schema, c.table_name)::regclass::oid, c.ordinal_position::int) "
    "FROM information_schema.columns c WHERE c.table_schema NOT IN ('information_schema', 'pg_catalog') "
    "ORDER BY c.table_schema <> 'public', c.table_schema, c.table_name, c.ordinal_position",
    "mysql": "SELECT table_schema, table_name, column_name, column_type, column_comment "
    "FROM information_schema.columns WHERE table_schema = database() ORDER BY table_name, ordinal_position",
}
SERVER_KEYS = {
    "postgres": "SELECT n.nspname, t.relname, a.attname, k.contype, fn.nspname, f.relname, fa.attname "
    "FROM pg_constraint k CROSS JOIN LATERAL unnest(k.conkey) WITH ORDINALITY u(num, at) "
    "JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace "
    "JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = u.num LEFT JOIN pg_class f ON f.oid = k.confrelid "
    "LEFT JOIN pg_namespace fn ON fn.oid = f.relnamespace "
    "LEFT JOIN pg_attribute fa ON fa.attrelid = f.oid AND fa.attnum = k.confkey[u.at] WHERE k.contype IN ('p', 'f')",
    "mysql": "SELECT table_schema, table_name, column_name, IF(constraint_name = 'PRIMARY', 'p', 'f'), "
    "referenced_table_schema, referenced_table_name, referenced_column_name FROM information_schema.key_column_usage "
    "WHERE table_schema = database() AND (constraint_name = 'PRIMARY' OR referenced_table_name IS NOT NULL)",
}


def _server(database: SqlServer) -> list[Column]:
    rows = database.own(SERVER_COLUMNS[database.dialect], SQL_SCHEMA_MOST)
    keys = database.own(SERVER_KEYS[database.dialect], SQL_SCHEMA_MOST)
    usual = "public" if database.dialect == "postgres" else database.name
    primary = {(inside(s, t, usual), c) for s, t, c, kind, *_ in keys if kind == "p"}
    foreign = {
        (inside(s, t, usual), c): (inside(to_s, to, usual), to_c)
        for s, t, c, kind, to_s, to, to_c in keys if kind == "f"
    }  # fmt: skip
    return [
        Column(at, c, kind, (at, c) in primary, foreign.get((at, c)), about or "", "" if s == usual else s)
        for s, t, c, kind, about in rows for at in [inside(s, t, usual)]
    ]  # fmt: skip
