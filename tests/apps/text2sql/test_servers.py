"""Postgres and MySQL: addresses, names in their dialects, and a Postgres server where one can be started."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("sqlglot", reason="the extra apps is not installed")

from paceline.apps.text2sql.database import QueryError, SqlLimits, SqlServer, open_database
from paceline.apps.text2sql.guard import Forbidden, check
from paceline.apps.text2sql.retrieve import build
from paceline.apps.text2sql.schema import Column, SqlSchema, read_schema, requoted

STARTS_S = 60.0


def test_an_address_is_read() -> None:
    pytest.importorskip("pg8000", reason="the extra databases is not installed")
    found = open_database("postgresql://ann:p%40ss@db.example:6543/shop?sslmode=require")
    assert isinstance(found, SqlServer) and (found.dialect, found.host, found.port) == ("postgres", "db.example", 6543)
    assert (found.user, found.password, found.name, found.encrypted) == ("ann", "p@ss", "shop", True)
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("oracle://x/y", "postgres://USER"),
        ("postgres://host", "names no server and database"),
        ("mssql://u:p@host/name", "export its tables as CSV"),
        ("mysql://host:no/x", "cannot be read"),
        ("postgres://host/x?options=-c", "options"),
    ],
)
def test_other_addresses_are_refused(url: str, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        open_database(url)


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_read_file('/etc/passwd')", "SELECT lo_import('/x')", "SELECT load_file('/x')", "SELECT sleep(9)",
        "SELECT * FROM t INTO OUTFILE '/x'", "SELECT * FROM t FOR UPDATE", "COPY t TO '/x'", 
        "SELECT set_config('a', 'b', 0)",
        "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "SELECT 1; DROP TABLE t", "SELECT dblink_exec('x')",
    ],
)  # fmt: skip
def test_what_reaches_beyond_a_servers_tables_is_refused(sql: str, dialect: str) -> None:
    with pytest.raises(Forbidden):
        check(sql, dialect)


def test_names_in_each_dialect() -> None:
    columns = (Column("sales.order", "Total", "int", space="sales"), Column("item", "group", "text"))
    shown = SqlSchema(columns, "postgres").show({})
    assert 'CREATE TABLE sales."order"' in shown and '"Total" int' in shown and '"group" text' in shown
    assert "`group` text" in SqlSchema(columns, "mysql").show({}) and "Total int" in SqlSchema(columns).show({})


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("SELECT group, sum(order.n) FROM order GROUP BY group ORDER BY n",
         'SELECT "group", sum("order".n) FROM "order" GROUP BY "group" ORDER BY n'),
        ("SELECT o.group FROM t JOIN order AS o", 'SELECT o."group" FROM t JOIN "order" AS o'),
        ('SELECT "group" FROM "order" ORDER BY n', 'SELECT "group" FROM "order" ORDER BY n'),
    ],
)  # fmt: skip
def test_bare_names_that_are_words_of_sql(sql: str, made: str) -> None:
    schema = SqlSchema((Column("order", "group", "text"), Column("order", "n", "int")))
    assert requoted(sql, schema) == made


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("pg8000", reason="the extra databases is not installed")
    tools = [shutil.which(name) for name in ("initdb", "pg_ctl")]
    if None in tools or os.geteuid() == 0:
        pytest.skip("PostgreSQL is not installed, or this user is root, which it refuses")
    folder = tmp_path_factory.mktemp("pg")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run(["initdb", "-D", folder / "data", "-U", "tester", "-A", "trust"], check=True, capture_output=True)
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    control = ["pg_ctl", "-D", str(folder / "data"), "-w", "-t", str(int(STARTS_S))]
    subprocess.run([*control, "-o", options, "-l", str(folder / "log"), "start"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"postgres://tester@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.full
def test_a_postgres_server(postgres: str) -> None:
    import pg8000.dbapi

    address = postgres.rpartition(":")[2].partition("/")
    with pg8000.dbapi.connect("tester", "127.0.0.1", "postgres", int(address[0])) as connection:
        cursor = connection.cursor()
        cursor.execute('CREATE SCHEMA s; CREATE TABLE s."order" (id int PRIMARY KEY, total numeric)')
        cursor.execute('INSERT INTO s."order" SELECT i, i / 2.0 FROM generate_series(1, 500) i')
        connection.commit()
    database = open_database(postgres)
    schema = read_schema(database)
    assert 'CREATE TABLE s."order"' in schema.show(build(database, schema).examples(()))
    found = database.run('SELECT * FROM s."order" ORDER BY id DESC', SqlLimits(rows=70))
    assert found.rows[69][0] == 431 and found.more and found.columns == ("id", "total")
    with pytest.raises(QueryError, match="stopped after"):
        database.run("SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b", SqlLimits(1.0))
    with pytest.raises(QueryError, match="does not exist"):
        database.run("SELECT nope FROM s.order_", SqlLimits(5.0))
