"""A small database of each kind."""

import sqlite3
from pathlib import Path

import pytest

ROWS = [(1, "Joe Sharp", "France", 52), (2, "Timbaland", "Netherlands", 32), (3, "Rose White", "France", 41)]
TABLES = (
    "CREATE TABLE singer (id INTEGER PRIMARY KEY, name VARCHAR, country VARCHAR, age INTEGER)",
    "CREATE TABLE concert (id INTEGER PRIMARY KEY, singer INTEGER REFERENCES singer(id), year INTEGER)",
)


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    path = tmp_path / "music.sqlite"
    connection = sqlite3.connect(path)
    for table in TABLES:
        connection.execute(table)
    connection.executemany("INSERT INTO singer VALUES (?, ?, ?, ?)", ROWS)
    connection.execute("INSERT INTO concert VALUES (1, 1, 2014)")
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def duck_file(tmp_path: Path) -> Path:
    duckdb = pytest.importorskip("duckdb", reason="needs paceline[apps]")
    path = tmp_path / "music.duckdb"
    connection = duckdb.connect(str(path))
    for table in TABLES:
        connection.execute(table)
    connection.executemany("INSERT INTO singer VALUES (?, ?, ?, ?)", ROWS)
    connection.execute("INSERT INTO concert VALUES (1, 1, 2014)")
    connection.close()
    return path
