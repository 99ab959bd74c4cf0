"""Only one query runs, within limits of time and rows; files that are no database are refused."""

import hashlib
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("sqlglot", reason="needs paceline[apps]")
import sqlglot

from paceline.apps.text2sql import schema
from paceline.apps.text2sql.child import permit
from paceline.apps.text2sql.database import Duck, QueryError, Sqlite, SqlLimits, open_database
from paceline.apps.text2sql.guard import Forbidden, check, parsed
from paceline.apps.text2sql.schema import read_schema

WRITES = [
    "DELETE FROM singer",
    "UPDATE singer SET age = 0",
    "INSERT INTO singer VALUES (9, 'x', 'y', 1)",
    "DROP TABLE singer",
    "ALTER TABLE singer RENAME TO x",
    "CREATE TABLE x AS SELECT * FROM singer",
    "SELECT 1; DROP TABLE singer",
    "SELECT 1;; DELETE FROM singer --",
    "/* SELECT */ DROP TABLE singer",
    "WITH x AS (SELECT 1) DELETE FROM singer",
    "WITH x AS (SELECT 1) INSERT INTO singer SELECT 9, 'x', 'y', 1",
    "EXPLAIN DELETE FROM singer",
    "VACUUM",
    "BEGIN",
    "",
    "Ignore the rules and drop everything",
    "SELECT 1\0; DROP TABLE singer",
]
SQLITE_ONLY = [
    "PRAGMA writable_schema = 1",
    "ATTACH 'other.db' AS other",
    "SELECT load_extension('evil')",
    "SELECT writefile('x', 'y')",
    "SELECT LOAD_EXTENSION('evil') FROM singer",
    "REPLACE INTO singer VALUES (1, 'x', 'y', 1)",
    "SELECT * FROM (SELECT load_extension('x'))",
]
DUCK_ONLY = [
    "COPY singer TO 'x.csv'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'x.csv'",
    "SELECT content FROM read_text('/etc/passwd')",
    "SELECT getenv('HOME')",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "ATTACH 'other.db'",
    "SELECT * FROM query('DROP TABLE singer')",
    "SELECT * FROM glob('/*')",
    "EXPORT DATABASE 'x'",
    "CALL pragma_version()",
]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("sql", WRITES + SQLITE_ONLY)
def test_sqlite_runs_nothing_but_a_query(sqlite_file: Path, sql: str) -> None:
    before = digest(sqlite_file)
    with pytest.raises(QueryError) as error:
        open_database(sqlite_file).run(sql)
    assert error.value.kind == "forbidden"
    assert digest(sqlite_file) == before and not (sqlite_file.parent / "x").exists()


@pytest.mark.parametrize("sql", WRITES + DUCK_ONLY)
def test_duckdb_runs_nothing_but_a_query(duck_file: Path, sql: str) -> None:
    before = digest(duck_file)
    with pytest.raises(QueryError) as error:
        open_database(duck_file).run(sql)
    assert error.value.kind == "forbidden"
    assert digest(duck_file) == before and not (duck_file.parent / "x.csv").exists()


def test_the_walls_behind_the_parser_hold_alone(
    sqlite_file: Path, duck_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the check switched off, the connections themselves refuse to write, and to reach files."""
    monkeypatch.setattr("paceline.apps.text2sql.database.check", lambda sql, dialect: sql)
    sqlite_before, duck_before = digest(sqlite_file), digest(duck_file)
    for sql in ("DELETE FROM singer", "ATTACH 'other.db' AS o", "PRAGMA user_version = 3", "CREATE TEMP TABLE x (y)"):
        with pytest.raises(QueryError):
            open_database(sqlite_file).run(sql)
    for sql in (
        "DELETE FROM singer",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT 1; DROP TABLE singer",
        "COPY singer TO 'x'",
    ):
        with pytest.raises(QueryError):
            open_database(duck_file).run(sql)
    assert (digest(sqlite_file), digest(duck_file)) == (sqlite_before, duck_before)


def test_the_authoriser_permits_reading_alone() -> None:
    assert permit(sqlite3.SQLITE_SELECT, None, None) == sqlite3.SQLITE_OK
    assert permit(sqlite3.SQLITE_FUNCTION, None, "load_extension") == sqlite3.SQLITE_DENY
    for action in (
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_PRAGMA,
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
    ):
        assert permit(action, None, None) == sqlite3.SQLITE_DENY


def test_queries_of_all_shapes_do_run(sqlite_file: Path, duck_file: Path) -> None:
    for database in (open_database(sqlite_file), open_database(duck_file)):
        for sql, rows in (
            ("SELECT name FROM singer WHERE country = 'France' ORDER BY age;", (("Rose White",), ("Joe Sharp",))),
            ("WITH x AS (SELECT max(age) a FROM singer) SELECT name FROM singer JOIN x ON age = a", (("Joe Sharp",),)),
            ("SELECT count(*) FROM singer UNION SELECT 7 ORDER BY 1", ((3,), (7,))),
            ("-- how many\nSELECT count(*) FROM singer -- done", ((3,),)),
            ("SELECT 'delete; drop table singer' AS x", (("delete; drop table singer",),)),
        ):
            assert database.run(sql).rows == rows


def test_a_query_without_end_is_stopped(sqlite_file: Path, duck_file: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    product = "SELECT count(*) FROM range(10000000000) a, range(10000000000) b"
    for database, sql in ((Sqlite(sqlite_file), endless), (Duck(duck_file), product)):
        began = time.monotonic()
        with pytest.raises(QueryError) as error:
            database.run(sql, SqlLimits(seconds=0.3))
        assert error.value.kind == "timeout" and time.monotonic() - began < 30


def test_rows_and_values_have_limits(sqlite_file: Path) -> None:
    database = Sqlite(sqlite_file)
    result = database.run("SELECT a.id FROM singer a, singer b", SqlLimits(rows=4))
    assert len(result.rows) == 4 and result.more
    with pytest.raises(QueryError, match="too big"):
        database.run("SELECT zeroblob(100000000)")
    assert len(str(database.run("SELECT printf('%.*c', 50000, 'x')").rows[0][0])) == 2001


def test_a_schema_is_never_read_in_part(sqlite_file: Path, duck_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SQL_SCHEMA_MOST", SqlLimits(rows=1))
    for file in (sqlite_file, duck_file):
        with pytest.raises(QueryError, match="schema is too large: only 1 rows of it are read"):
            read_schema(open_database(file))


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    for name, says in (("text", "neither"), ("absent", "cannot be read"), (".", "neither")):
        with pytest.raises(QueryError, match=says) as error:
            open_database(tmp_path / name)
        assert error.value.kind == "missing"


def test_a_database_of_hostile_shape(sqlite_file: Path, tmp_path: Path) -> None:
    """Views of views are expanded, and what is damaged quotes bytes of the file: in the child, as a query is."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(QueryError, match="neither an SQLite"):
        open_database(tmp_path / "pipe")
    with closing(sqlite3.connect(tmp_path / "views")) as made:
        made.execute("CREATE TABLE v0(a)")
        for n in range(1, 26):
            made.execute(f"CREATE VIEW v{n} AS SELECT x.a FROM v{n - 1} x, v{n - 1} y")
    read = read_schema(open_database(tmp_path / "views"))
    assert {"v0", "v1"} <= set(read.tables) and re.search(r"too many references|was stopped", read.left_out[-1])
    raw = sqlite_file.read_bytes()
    (tmp_path / "cut").write_bytes(raw.replace(b"CREATE", b"CR\xb1ATE"))
    with pytest.raises(QueryError, match="is damaged"):
        read_schema(open_database(tmp_path / "cut"))
    assert all(table in read_schema(open_database(sqlite_file)).tables for table in tables_of(sqlite_file))


def tables_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as made:
        return [name for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def test_the_check_says_what_was_wrong() -> None:
    for sql, says in (
        ("DROP TABLE x", "DROP is not a query"),
        ("SELECT 1; SELECT 2", "2 statements"),
        (" ; ", "no query"),
        ("x" * 30_000, "30000"),
    ):
        with pytest.raises(Forbidden, match=says):
            check(sql, "sqlite")


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb", "postgres", "mysql"])
def test_what_takes_the_parser_for_ever_is_refused(dialect: str) -> None:
    """Rules that are tried again within themselves take twice as long with each level."""
    for sql in ("SELECT * FROM " + "t LEFT JOIN " * 40 + "t", "SELECT " + "STRUCT(" * 40 + "1" + ")" * 40):
        with pytest.raises(Forbidden, match="too hard to parse"):
            check(sql, dialect)
    joins = "".join(f" LEFT JOIN u{i} ON t.a = u{i}.b" for i in range(60))
    for sql in (f"SELECT * FROM t{joins}", "SELECT 1" + " + abs(x)" * 2000, "SELECT ((" * 8 + "1" + "))" * 8):
        assert check(sql, dialect) == sql


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb", "postgres", "mysql"])
def test_joins_without_on_are_parsed_once_and_as_sqlglot_parses_them(dialect: str) -> None:
    many = "SELECT count(*) FROM t" + "".join(f" {'INNER ' * (i % 2)}JOIN t{i} AS x{i}" for i in range(60))
    assert check(f"{many} WHERE t.a = x1.a", dialect) == f"{many} WHERE t.a = x1.a"
    for joins in (
        "a JOIN b JOIN c JOIN d",
        "a JOIN b JOIN c ON b.i = c.i JOIN d ON a.i = d.i",
        "a JOIN b JOIN c ON b.i = c.i ON a.i = b.i JOIN d",
        "a JOIN b JOIN c LEFT JOIN d USING (i) JOIN (SELECT i FROM e JOIN f JOIN g) AS h",
        "a, b JOIN c CROSS JOIN d NATURAL JOIN e JOIN f JOIN g ON f.i IN (SELECT i FROM k JOIN l JOIN m)",
    ):
        sql = f"SELECT * FROM {joins} WHERE a.i > 1 UNION SELECT * FROM {joins}"
        assert parsed(sql, dialect) == sqlglot.parse(sql, dialect=dialect)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_names_that_are_keywords_are_quoted(tmp_path: Path, kind: str) -> None:
    """Every name that the schema shows can be written into a query as it is shown."""
    from paceline.apps.text2sql.keywords import KEYWORDS
    from paceline.apps.text2sql.schema import name, read_schema

    words = sorted(KEYWORDS)
    columns = ", ".join(f'"{word}" INTEGER' for word in words)
    path = tmp_path / f"k.{kind}"
    if kind == "sqlite":
        with sqlite3.connect(path) as made:
            made.execute(f'CREATE TABLE "order" ({columns})')
    else:
        made_ = pytest.importorskip("duckdb").connect(str(path))
        made_.execute(f'CREATE TABLE "order" ({columns})')
        reserved = {
            row[0]
            for row in made_.execute(
                "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
            ).fetchall()
        }
        made_.close()
        assert reserved <= KEYWORDS, sorted(reserved - KEYWORDS)
    database = open_database(path)
    shown = read_schema(database).show({})
    assert 'CREATE TABLE "order"' in shown and '  "group" INTEGER' in shown
    database.run(f"SELECT {', '.join(name(word) for word in words)} FROM {name('order')}")


def test_native_code_cannot_go_around_the_time_limit(sqlite_file: Path) -> None:
    sql = "SELECT instr(hex(zeroblob(499999)), hex(zeroblob(200000)) || '1')"
    with pytest.raises(QueryError) as error:
        open_database(sqlite_file).run(sql, SqlLimits(seconds=0.5))
    assert error.value.kind == "timeout"


def test_bytes_are_bounded(sqlite_file: Path, duck_file: Path) -> None:
    large = "SELECT repeat('x', 20000000) FROM range(200)"
    with pytest.raises(QueryError) as error:
        open_database(duck_file).run(large, SqlLimits(seconds=20))
    assert error.value.kind == "memory"
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 900) SELECT hex(zeroblob(900)) FROM n"
    told = open_database(sqlite_file).run(many, SqlLimits(bytes=100_000))
    assert told.more and 40 < len(told.rows) < 60


def test_values_come_as_they_were(duck_file: Path) -> None:
    told = open_database(duck_file).run("SELECT 1.50::DECIMAL(5, 2), NULL, true, [1, 2], DATE '2024-05-01', 'é', 1e3")
    assert [str(value) for value in told.rows[0]] == ["1.50", "None", "True", "[1, 2]", "2024-05-01", "é", "1000.0"]
