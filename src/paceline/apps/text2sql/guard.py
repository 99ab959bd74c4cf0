"""What may run: one statement that is a query and nothing else. The database's own limits stand behind this check."""

from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

SQL_LONGEST = 20_000
"""Characters of a query."""
STEPS_OF_TOKEN, SPARE_STEPS = 4, 20_000
"""Steps of the parser for each token of a query, and more for all. It tries one rule after another from one place, and
in each of them again, so that what is nested 20 times may take it hours; honest queries take 2 a token."""
WRITES = (
    exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter, exp.TruncateTable, exp.Command,
    exp.Pragma, exp.Attach, exp.Detach, exp.Copy, exp.Set, exp.Use, exp.Transaction, exp.Commit, exp.Rollback, exp.Into,
    exp.Lock,
)  # fmt: skip
REACHES = frozenset({
    "load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "getenv", "query", "query_table", "glob",
    "read_csv", "read_csv_auto", "read_parquet", "parquet_scan", "read_json", "read_json_auto", "read_ndjson",
    "read_text", "read_blob", "sniff_csv", "sqlite_scan", "postgres_scan", "mysql_scan", "iceberg_scan", "delta_scan",
    "st_read", "dblink", "shell", "system", "load_file", "sys_exec", "sys_eval", "get_lock", "release_lock", "sleep",
    "benchmark", "set_config", "query_to_xml", "query_to_xmlschema", "query_to_xml_and_xmlschema", "database_to_xml",
    "schema_to_xml", "table_to_xml", "cursor_to_xml", "nextval", "setval", "current_setting", "txid_current",
})  # fmt: skip
"""Functions that reach beyond the database: files, the environment, other databases, text run as a query."""


class Forbidden(Exception):
    """Error for a statement that will not be run; its text says why, in one sentence."""


def check(sql: str, dialect: str) -> str:
    """The statement without what surrounds it, if it is one query. Raises Forbidden."""
    text = sql.strip().rstrip(";").strip()
    if not text:
        raise Forbidden("There is no query; write one SELECT statement.")
    if len(text) > SQL_LONGEST:
        raise Forbidden(f"The query has {len(text)} characters and {SQL_LONGEST} are allowed; write a shorter one.")
    if "\0" in text:
        raise Forbidden("The query holds a NUL character; leave it out.")
    try:
        found = [each for each in parsed(text, dialect) if each is not None]
    except (SqlglotError, RecursionError, ValueError) as error:
        raise Forbidden(f"The query cannot be parsed: {_first(error)}.") from error
    if len(found) != 1:
        raise Forbidden(f"There are {len(found)} statements and one SELECT is allowed; write one.")
    _only_reads(found[0])
    return text


def parsed(text: str, dialect: str) -> list[exp.Expr | None]:
    """The statements of a text. Raises Forbidden for one that takes the parser too many steps."""
    read = Dialect.get_or_raise(dialect)
    tokens = read.tokenize(text)
    left = STEPS_OF_TOKEN * len(tokens) + SPARE_STEPS
    joins: dict[int, tuple[exp.Join, int]] = {}

    class CountingParser(read.parser_class):  # type: ignore[misc, name-defined]
        def _advance(self, *args: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Forbidden("The query is too hard to parse; nest less in it, and give each JOIN its ON.")
            super()._advance(*args)

        def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
            """The parser first looks for an ON behind the joins that follow one without ON, and then reads those joins
            a second time: each is kept by the place where it begins. Only joins without a side may lack their ON."""
            if args or any(kwargs.values()):
                return super()._parse_join(*args, **kwargs)  # type: ignore[no-any-return]
            begins = self._index
            if begins in joins:
                self._retreat(joins[begins][1])
                return joins[begins][0]
            join: exp.Join | None = super()._parse_join(**kwargs)
            if join is not None and not join.side:
                joins[begins] = join, self._index
            return join

    return list(CountingParser(dialect=read).parse(tokens, text))


def _only_reads(root: exp.Expr) -> None:
    if not isinstance(root, exp.Query):
        raise Forbidden(f"{root.key.upper()} is not a query; only SELECT is allowed.")
    for node in root.walk():
        if isinstance(node, WRITES):
            raise Forbidden(f"{node.key.upper()} is not allowed inside a query; only SELECT is.")
        if isinstance(node, exp.Func) and (_name(node) in REACHES or _name(node).startswith(REACHING)):
            raise Forbidden(f"Function {_name(node)} reaches beyond the database; leave it out.")
        if isinstance(node, exp.Table) and (
            any(c in node.name for c in "/\\*") or node.name.lower().endswith(SQL_FILES)
        ):
            raise Forbidden(f"Table {node.name!r} looks like a file; name a table of the database.")


REACHING = ("pg_", "lo_", "dblink", "inet_server", "currtid")
"""Beginnings of names of functions that reach a server's files, sessions and settings."""
SQL_FILES = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson", ".txt", ".db", ".sqlite", ".duckdb")


def _name(node: exp.Func) -> str:
    return (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()


def _first(error: Exception) -> str:
    return (str(error).splitlines() or ["unknown"])[0].rstrip(".")[:200]
