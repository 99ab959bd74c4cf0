"""Files of tables as a database, descriptions, charts, and questions that continue others."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.apps.text2sql.chart import chart
from paceline.apps.text2sql.command import app
from paceline.apps.text2sql.database import QueryError, SqlResult, open_database
from paceline.apps.text2sql.schema import described, read_descriptions, read_schema
from paceline.apps.text2sql.tables import imported
from tests.apps.scripted import scripted

duckdb = pytest.importorskip("duckdb", reason="needs paceline[apps]")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "Orders 2024.csv").write_text(
        "id;city;total\n1;K\u00f6ln;3.5\n2;Ulm;4.5\n3;K\u00f6ln;1\n", encoding="cp1252"
    )
    (folder / "people.jsonl").write_text('{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Bob"}\n')
    duckdb.sql("SELECT range AS id, range * 2 AS twice FROM range(3)").write_parquet(str(folder / "n.parquet"))
    return sorted(folder.iterdir())


def test_files_become_tables_of_one_database(files: list[Path], tmp_path: Path) -> None:
    database = open_database(imported(files, tmp_path)[0])
    assert set(read_schema(database).tables) == {"orders_2024", "people", "n"}
    found = database.run("SELECT city, sum(total) FROM orders_2024 GROUP BY city ORDER BY city")
    assert found.rows == (("K\u00f6ln", 4.5), ("Ulm", 4.5))
    assert database.run("SELECT max(twice) FROM n").rows == ((4,),)
    with pytest.raises(QueryError, match="reaches beyond"):
        database.run(f"SELECT * FROM read_csv('{files[0]}')")


def test_decimal_commas_and_names_that_are_patterns(tmp_path: Path) -> None:
    """`a[1].csv`, as browsers call a second download, is a pattern for DuckDB that `a1.csv` fits."""
    (tmp_path / "a[1].csv").write_text("city;total\nUlm;1,5\nBonn;2,25\n")
    (tmp_path / "a1.csv").write_text("city;total\nKiel;7\n")
    database = open_database(imported([tmp_path / "a[1].csv"], tmp_path)[0])
    assert database.run("SELECT sum(total) FROM a_1").rows == ((3.75,),)


def test_numbers_and_times_as_people_write_them(tmp_path: Path) -> None:
    rows = "02.01.2024;1.234,50 \u20ac;Jan 2024\n31.01.2024;;Feb 2024\nSumme;1.234,50 \u20ac;\n"
    (tmp_path / "a.csv").write_bytes(f"Bericht\n\nTag;Umsatz;Monat\n{rows}".encode("cp1252"))
    made, notes = imported([tmp_path / "a.csv"], tmp_path)
    database = open_database(made)
    assert [column.type for column in read_schema(database).columns] == ["DATE", "DOUBLE", "DATE"]
    assert database.run("SELECT sum(Umsatz), count(*) FROM a WHERE year(Monat) = 2024").rows == ((1234.5, 2),)
    assert "Windows-1252" in notes[0] and "'Bericht'" in notes[2] and "'Summe'" in notes[3]


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "x.parquet"
    bad.write_text("no")
    with pytest.raises(QueryError, match=r"x\.parquet cannot be read as a table"):
        imported([bad], tmp_path)
    (tmp_path / "b").mkdir()
    twins = [tmp_path / "a.csv", tmp_path / "b" / "a.csv"]
    for each in twins:
        each.write_text("n\n1\n")
    with pytest.raises(QueryError, match="would both be the table a"):
        imported(twins, tmp_path)


def test_a_second_question_continues_the_first(files: list[Path], tmp_path: Path) -> None:
    asked: list[str] = []

    def script(body: dict[str, Any]) -> str:
        asked.append(body["messages"][-1]["content"])
        where = " WHERE city = 'Ulm'" if "only Ulm" in asked[-1] else ""
        return f"```sql\nSELECT city, total FROM orders_2024{where}\n```"

    (tmp_path / "about.csv").write_text("column,meaning\norders_2024.total,euros with tax\n")
    tables = [part for path in files for part in ("--db", str(path))]
    with scripted(script) as (url, _):
        done = CliRunner().invoke(
            app,
            [
                *("Totals by city?", "--then", "only Ulm", *tables, "--single", "--json", "--url", url),
                *("--out", str(tmp_path / "out"), "--describe", str(tmp_path / "about.csv")),
            ],
        )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == [["Ulm", 4.5]]
    assert "corrects or continues: 'Totals by city?'" in asked[1] and "FROM orders_2024" in asked[1]
    assert "euros with tax" in asked[0]
    assert (tmp_path / "out" / "result.csv").read_text() == "city,total\nUlm,4.5\n"


def test_descriptions_of_columns_that_are_not_there_are_refused(sqlite_file: Path) -> None:
    schema = read_schema(open_database(sqlite_file))
    found = described(schema, {"singer.age": "in years", "country": "of birth"})
    assert "in years" in found.show({}) and "of birth" in found.show({})
    with pytest.raises(QueryError, match=r"no column singer\.height"):
        described(schema, {"singer.height": "in metres"})


def test_descriptions_need_no_headings(tmp_path: Path) -> None:
    (tmp_path / "about.csv").write_text("singer.age,in years\nsinger.country,of birth\n")
    assert read_descriptions(tmp_path / "about.csv") == {"singer.age": "in years", "singer.country": "of birth"}


def test_what_an_evaluation_has_no_use_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    for option in ("--then", "--describe"):
        done = CliRunner().invoke(app, ["--evaluate", str(tmp_path / "x"), "--databases", str(tmp_path), option, "y"])
        assert done.exit_code == 2 and option in done.output, done.output


def test_schemas_beside_main(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute("CREATE TABLE book (id INT PRIMARY KEY); CREATE SCHEMA lending")
        connection.execute('CREATE TABLE lending."order" (book INT, back DATE)')
    database = open_database(tmp_path / "x.duckdb")
    assert set(read_schema(database).tables) == {"book", "lending.order"}
    assert 'CREATE TABLE lending."order" (\n  book INTEGER' in read_schema(database).show({})


def test_comments_of_a_duckdb_file_are_descriptions(duck_file: Path) -> None:
    with duckdb.connect(str(duck_file)) as connection:
        connection.execute("COMMENT ON COLUMN singer.age IS 'in years'")
    assert "-- in years" in read_schema(open_database(duck_file)).show({})


@pytest.mark.parametrize(
    ("columns", "rows", "kind"),
    [
        (("name", "n"), [("a", 1), ("b", Decimal("2.5"))], "bars"),
        (("year", "sold"), [(2022, 5), (2020, 3), (2021, 4)], "line"),
        (("day", "x"), [("2024-01-02", 1.0), ("2024-01-01", 2.0), ("2024-01-03", 0.5)], "line"),
        (("n",), [(1,), (2,)], None),
        (("name", "n"), [("a", 1)], None),
        (("name", "n"), [("a", 1), ("a", 2)], None),
        (("name", "other"), [("a", "x"), ("b", "y")], None),
        (("name", "n"), [(f"a{n}", n) for n in range(100)], None),
        (("name", "n"), [("a", None), ("b", 2)], None),
        (("parts", "n"), [(["a"], 1), (["b"], 2)], "bars"),
    ],
)
def test_a_chart_where_it_makes_sense(columns: tuple[str, ...], rows: list[tuple[Any, ...]], kind: str | None) -> None:
    found = chart(SqlResult(columns, tuple(rows), False, 0.0))
    assert (None if found is None else "line" if found.line else "bars") == kind
    if kind == "line":
        assert found is not None and list(found.labels) == sorted(found.labels)


def stored(tmp_path: Path, text: str) -> tuple[list[tuple[Any, ...]], str]:
    """Rows of the database that is made of a file, and what was said."""
    (tmp_path / "x.csv").write_text(text)
    made, notes = imported([tmp_path / "x.csv"], tmp_path)
    return list(open_database(made).run("SELECT * FROM x").rows), " ".join(notes)


CODES = [["H101", "H102"], ["T1-15", "T1 10"], ["(101)", "(102)"], ["101-", "7"], ["(1)", "2"], ["Mar 15", "Apr 16"],
         ["03/2024", "04/2024"], ["2023-S1", "2024-S1"], ["1Q23", "2Q23"], ["12A", "13A"], ["nil", "missing", "x"],
         ["room 1", "room 2"]]  # fmt: skip


@pytest.mark.parametrize("cells", CODES)
@pytest.mark.parametrize("title", ["code", "date"])
def test_codes_are_stored_as_they_are(tmp_path: Path, title: str, cells: list[str]) -> None:
    rows, said = stored(tmp_path, f"{title},name\n" + "".join(f"{cell},a\n" for cell in cells))
    assert [row[0] for row in rows] == cells and not said


WHOLE_FILES = [
    "city,people,note\nBerlin,unknown,x\nParis,21,y\nRome,28,z\n",
    "a,b\nx,y\na,b\nq,w\n",
    "day,n\n,kW\n2024-01-01,1\n2024-01-02,2\n",
    "name,n,m\nA,1,2\nB,1,2\nZoe,,\n",
    "name,n,m\nA,1,2\nB,1,2\nSource: us,,\n",
    "First Last\nAnna 1\nBob 2\nEve 3\n",
]


@pytest.mark.parametrize("text", WHOLE_FILES)
def test_no_row_is_dropped_from_a_database(tmp_path: Path, text: str) -> None:
    rows, said = stored(tmp_path, text)
    assert len(rows) == text.count("\n") - 1 and not said


def test_what_is_stored_in_another_form_is_said(tmp_path: Path) -> None:
    rows, said = stored(tmp_path, 'n\n"(1,200.50)"\nn.a.\n99.00\n')
    assert rows == [(-1200.5,), (None,), (99.0,)]
    assert said == "x.csv, column n: '(1,200.50)' is stored as -1200.5 and 'n.a.' as no value."


@pytest.mark.parametrize("heads", ["n,n,n", "n,n,n_1", ",,"])
def test_columns_are_stored_by_their_place(tmp_path: Path, heads: str) -> None:
    rows, _ = stored(tmp_path, f"name,{heads}\nA,$1,$2,$3\nB,$4,$5,$6\n")
    assert rows == [("A", 1, 2, 3), ("B", 4, 5, 6)]
