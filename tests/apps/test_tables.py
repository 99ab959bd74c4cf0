"""Plain tables: codes stay codes, rows stay rows, and what is new reads only what could not be read."""

from pathlib import Path

import pytest

from paceline.apps.common.numbers import TableError
from paceline.apps.common.tables import TextTable, read_table
from paceline.apps.common.times import known, ordered
from paceline.apps.tsci.series import read_series

DAYS_OF_JUNE = [f"2024-06-{day:02}" for day in range(1, 21)]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "data" / "x.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def last(cells: list[str]) -> str:
    """A table of days, of values and of other cells."""
    return "date,n,last\n" + "".join(f"{day},{at},{cells[at % len(cells)]}\n" for at, day in enumerate(DAYS_OF_JUNE))


def table(tmp_path: Path, text: str, every_row: bool = False) -> TextTable:
    return read_table(write(tmp_path, text), every_row)


@pytest.mark.parametrize(
    "text", ["H101", "S101", "T1-15", "T1 10", "H12023", "S1-15", "Q1-10", "1Q23", "Mar 15", "01/2024", "2023-S1"]
)
def test_codes_are_times_at_most_under_a_heading_of_times(text: str) -> None:
    assert not known(text)


@pytest.mark.parametrize("text", ["Q1 2023", "2023T4", "T1-2023", "Jan-22", "2024年1月2日"])
def test_times_that_no_code_looks_like_need_no_heading(text: str) -> None:
    assert known(text)


@pytest.mark.parametrize("text", ["H101", "S101", "T1-15", "T1 10", "Q123"])
def test_codes_are_no_times_under_a_heading_of_times(text: str) -> None:
    assert not known(text, True)


@pytest.mark.parametrize("text", ["Q1 23", "Q1'23", "1Q23", "H1 2023", "S1'23", "2023-H1", "FY2023 Q1", "Jan 23"])
def test_short_forms_are_times_under_a_heading_of_times(text: str) -> None:
    assert known(text, True)


@pytest.mark.parametrize("names", ["T101,T102,T103,T104", "S101,S102,S103,S104", "T12001,T12002,T12003,T12004",
                                   "Q1 21,Q2 21,Q3 21,Q4 21", "Jan 20,Jan 21,Jan 22,Jan 23"])  # fmt: skip
def test_sensors_as_headings_are_columns_of_values(tmp_path: Path, names: str) -> None:
    rows = "".join(f"{n},1,2,3,{n * n}\n" for n in range(12))
    series = read_series(write(tmp_path, f"t,{names}\n{rows}"))
    assert (series.name, len(series), series.values[3]) == (f"x.{names.split(',')[-1]}", 12, 9)


@pytest.mark.parametrize("times", [[f"Jan {n}" for n in range(10, 30)], ["Mar 15", "Apr 20", "Jun 11", "Jul 29"] * 3])
def test_days_without_a_year_are_refused(tmp_path: Path, times: list[str]) -> None:
    text = "date,n\n" + "".join(f"{time},{n}\n" for n, time in enumerate(times))
    with pytest.raises(ValueError, match="may be a day or a month of a year"):
        read_series(write(tmp_path, text))


@pytest.mark.parametrize("cells", [["SKU615", "SKU7"], ["BAW12", "BAW7"], ["RUN 7"], ["116A", "12A"], ["45N"], ["12XL"],
                                   ["EDD101"], ["90°", "7°"], ["(555)", "(212)"], ["101-", "7-"], ["$", "€"],
                                   ["paid in $", "paid in €"], ["1.5 or", "'1,5'"]])  # fmt: skip
def test_a_last_column_of_codes_is_not_the_series(tmp_path: Path, cells: list[str]) -> None:
    assert read_series(write(tmp_path, last([f'"{cell}"' for cell in cells]))).name == "x.n"


@pytest.mark.parametrize("cell", ["116A", "SKU 5", "12XL"])
def test_codes_are_no_numbers(tmp_path: Path, cell: str) -> None:
    text = "date,n\n" + "".join(f"{day},{cell}\n" for day in DAYS_OF_JUNE)
    with pytest.raises(ValueError, match="is not a number"):
        read_series(write(tmp_path, text))


@pytest.mark.parametrize("cell", ["12kWh", "12 kWh", "EUR 12", "12 EUR", "12EUR", "12 persons", "12°C", "12 m²"])
def test_known_units_are_left_out(tmp_path: Path, cell: str) -> None:
    text = "date,n\n" + "".join(f"{day},{cell}\n" for day in DAYS_OF_JUNE)
    assert read_series(write(tmp_path, text)).values[0] == 12


def test_underlines_may_part_thousands(tmp_path: Path) -> None:
    found = table(tmp_path, "n\n1_204\n2_500\n").numbers("n")
    assert found == [1204, 2500] and table(tmp_path, "n\n1_2\n").numbers("n") == [None]


def test_a_count_is_a_value_and_a_number_of_rows_is_none(tmp_path: Path) -> None:
    for name, read in (("visits", "visits"), ("run_id", "n"), ("No.", "n"), ("#", "n")):
        rows = "".join(f"{day},{at * at},{1000 + at}\n" for at, day in enumerate(DAYS_OF_JUNE))
        assert read_series(write(tmp_path, f"date,n,{name}\n{rows}")).name == f"x.{read}"


def test_a_column_with_too_few_values_is_not_the_series(tmp_path: Path) -> None:
    assert read_series(write(tmp_path, last([*["n.a."] * 19, "3"]))).name == "x.n"


def test_headings_that_come_twice_become_distinct(tmp_path: Path) -> None:
    assert table(tmp_path, "a,a,a (2),a\n1,2,3,4\n").header == ("a", "a (3)", "a (2)", "a (4)")


def test_the_first_of_two_columns_with_one_name_is_read(tmp_path: Path) -> None:
    text = "date,x,x\n" + "".join(f"{day},{at},7\n" for at, day in enumerate(DAYS_OF_JUNE))
    assert read_series(write(tmp_path, text)).values[3] == 3


@pytest.mark.parametrize(
    "first", ["Berlin,unknown,x", "Maya,m,", "Berlin,m,x", "Berlin,absent,", ",absent,", "-,absent,-"]
)
def test_a_first_row_without_a_value_stays(tmp_path: Path, first: str) -> None:
    found = table(tmp_path, f"city,people,note\n{first}\nParis,21,y\nRome,28,z\n")
    assert found.header == ("city", "people", "note") and len(found.rows) == 3


@pytest.mark.parametrize(
    "units",
    [",kW,°C", "YYYY-MM-DD,(kW),[°C]", "UTC,kWh/m²,m s-1", "-,Mio. EUR,%", "yyyy-mm-dd hh:mm,µg/m³,", '"",W m-2,1/min'],
)
def test_a_line_of_units_is_left_out_but_for_a_database(tmp_path: Path, units: str) -> None:
    text = f"date,n,t\n{units}\n2024-01-01,1,2\n2024-01-02,1,2\n"
    assert len(table(tmp_path, text).rows) == 2 and "was left out" in table(tmp_path, text).notes[0]
    assert len(table(tmp_path, text, True).rows) == 3


def test_a_first_row_is_not_joined_to_headings_that_are_empty_or_alike(tmp_path: Path) -> None:
    for heads in (",score", ",score,score", "name,,score", "name,score,score"):
        empty = ",absent" * heads.count(",")
        rows = "".join(f"{name}{',4' * heads.count(',')}\n" for name in ("Bob", "Eve"))
        assert len(table(tmp_path, f"{heads}\nAnna{empty}\n{rows}").rows) == 3


def test_a_last_row_with_a_name_alone_stays_and_a_remark_does_not(tmp_path: Path) -> None:
    text = "name,score,grade\nA,1,B\nC,2,D\n"
    assert len(table(tmp_path, f"{text}Zoe,,\n").rows) == len(table(tmp_path, f"{text}Source A,,\n").rows) == 3
    assert len(table(tmp_path, f"{text}Source: the office\n").rows) == 2
    assert len(table(tmp_path, f"{text}Source: the office\n", True).rows) == 3
    days = "date,a,b\n2024-01-01,1,2\n2024-01-02,1,2\n"
    assert len(table(tmp_path, f"{days}All values are estimates,,\n").rows) == 2


def test_a_row_as_the_headings_stays_where_no_number_tells(tmp_path: Path) -> None:
    assert len(table(tmp_path, "a,b\nx,y\na,b\nq,w\n").rows) == 3
    assert len(table(tmp_path, "a,b\nx,1\na,b\nq,2\n").rows) == 2
    assert len(table(tmp_path, "a,b\nx,1\na,b\nq,2\n", True).rows) == 3


def test_numbers_in_brackets_may_be_headings(tmp_path: Path) -> None:
    assert table(tmp_path, "(1),(2)\n3,4\n5,6\n").header == ("(1)", "(2)")


def test_a_short_line_above_the_headings_is_a_caption(tmp_path: Path) -> None:
    assert table(tmp_path, ",Station,Ulm\ndate,a,b,c\n2024-01-01,1,2,3\n2024-01-02,1,2,3\n").header[1:] == tuple("abc")


def test_days_of_excel_need_a_heading_not_a_folder() -> None:
    excel = [str(45300 + n) for n in range(12)]
    for name in ("date", "Fecha", "day", "日付", "trade_date", "OrderDate"):
        assert ordered(excel, f"data/x.csv, column {name}").following(1) == ["2024-01-21"]
    for name in ("time", "t", "update"):
        assert ordered(excel, f"data/date 5.csv, column {name}").following(1) == ["45312"]
    assert ordered([str(58849 + n) for n in range(12)], "x.csv, column date").following(1) == ["58861"]


def test_steps_are_no_months() -> None:
    months = [str(202001 + n) for n in range(12)]
    assert ordered(months, "x.csv, column date").following(1) == ["2021-01-01"]
    assert ordered(months, "x.csv, column step").following(1) == ["202013"]
    assert ordered([f"1.{2000 + n}" for n in range(12)], "x.csv, column time").last is None


@pytest.mark.parametrize("heading, row", [("Umsatz EUR", "{a} 2{n}"), ("Umsatz in EUR", "{a} 2{n} €"),
    ("Umsatz in EUR", "{a} 200 1{n}"), ("Room number", "Room {n}"), ("Street and number", "Main Street {n}"),
    ("Phone number here", "555 1{n} 40{n}"), ("time stamp", "2024-01-{n} 05:00"),
    ("Monat Umsatz EUR", "2024-01 {a} 2{n}")])  # fmt: skip
def test_a_blank_within_a_cell_parts_no_columns(tmp_path: Path, heading: str, row: str) -> None:
    rows = "\n".join(row.format(a=n % 3 + 1, n=n) for n in range(10, 30))
    assert table(tmp_path, f"{heading}\n{rows}\n").header == (heading,)


def test_blanks_part_columns_of_times_and_numbers(tmp_path: Path) -> None:
    for heading, row in (("date n", "2024-01-{n} {n}"), ("year n", "20{n} {n}"), ("name a b", "r{n} {n} 1.5")):
        rows = "\n".join(row.format(n=n) for n in range(10, 30))
        assert table(tmp_path, f"{heading}\n{rows}\n").header == tuple(heading.split())
        assert table(tmp_path, f"{heading}\n{rows}\n", True).header == (heading,)


@pytest.mark.parametrize("head", ["PAR1,PAR2", "{name},score", "<html_id>,v", "%PDFs,v", "<!>,v"])
def test_headings_like_the_beginning_of_other_files_are_headings(tmp_path: Path, head: str) -> None:
    assert table(tmp_path, f"{head}\n1,2\n3,4\n").header == tuple(head.split(","))


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "{\n}", "[{}]", "[\n1]", "<!DOCTYPE html>", "<html>", "<?xml ?>", "PAR1\x15\x04", "%PDF-1.7"]
)
def test_other_files_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(TableError, match="save it as CSV"):
        table(tmp_path, text)
