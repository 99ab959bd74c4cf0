"""Series and windows: what a CSV may hold, and the seal over the future."""

import gzip
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from paceline.apps.tsci.explore import explore
from paceline.apps.tsci.generate import retail
from paceline.apps.tsci.pipeline import seasons
from paceline.apps.tsci.series import Leak, Sealed, Series, errors, read_series, windows


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.csv"
    path.write_text(text)
    return path


def rows(*values: object) -> str:
    return "date,a,b\n" + "".join(f"2020-01-{i + 1:02},{value},{i}\n" for i, value in enumerate(values))


def test_a_column_with_gaps(tmp_path: Path) -> None:
    series = read_series(write(tmp_path, rows(1, "", "NA", 4, 5, 6, 7, 8, 9, 10, 11, 12)), "a")
    assert series.name == "x.a"
    assert np.flatnonzero(np.isnan(series.values)).tolist() == [1, 2]
    assert series.time[0] == "2020-01-01"
    assert read_series(write(tmp_path, rows(*range(12)))).name == "x.b"


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", None, "holds no rows"),
        (rows(*range(12)), "c", "no column c; its columns are date, a, b"),
        (rows(1, "x", *range(12)), "a", "row 3: 'x' is not a number"),
        (rows(1, "inf", *range(12)), "a", "row 3: 'inf' is not a number"),
        (rows(1, 2, 3), "a", "10 or more"),
        ("date,a\n" + "2020-01-01,1\n" * 12, "a", "comes twice"),
        ("date,a\n" + "2020-01-01,1,5\n" * 12, "a", "row 2: there are 3 cells under 2 headings"),
        ('date,a\n2020-01-01,"' + "11\n" * 100_000, "a", "quotation mark that nothing closes"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, column: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_series(write(tmp_path, text), column)


@pytest.mark.parametrize("name", ["data", "step", "tag"])
def test_the_only_column_is_the_value(tmp_path: Path, name: str) -> None:
    """Under a heading that can be one of times, too: in order of its values it would be another series."""
    series = read_series(write(tmp_path, name + "\n" + "".join(f"{7 * n % 12}\n" for n in range(12))))
    assert series.values.tolist() == [7 * n % 12 for n in range(12)]


def test_a_packed_file_that_is_broken_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(rows(*range(12)).encode())[:-9])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        read_series(path)


def test_windows_cover_the_series_and_are_copies() -> None:
    series = Series("x", np.arange(100.0), tuple(map(str, range(100))))
    found = windows(series, 30, 10, 4)
    assert [w.start for w in found] == [0, 20, 40, 60]
    found[0].history[:] = 0
    assert series.values[5] == 5
    with pytest.raises(ValueError, match="100 values"):
        windows(series, 95, 10, 1)


def test_the_future_is_sealed() -> None:
    future = windows(retail(), 200, 24, 1)[0].future
    for look in (np.asarray, list, lambda f: f[0], lambda f: f + 1 if False else np.mean(f), sum):
        with pytest.raises(Leak):
            look(future)
    assert len(future) == 24
    scores, truth = future.score({"zero": np.zeros(24)})
    assert scores["zero"]["mae"] == pytest.approx(np.nanmean(np.abs(truth)))


def test_errors_by_hand() -> None:
    found = errors(np.array([1.0, 2.0]), np.array([2.0, 0.0]))
    assert found == {"mae": 1.5, "mse": 2.5, "mape": 50.0}


def test_missing_truth_is_not_scored() -> None:
    scores, _ = Sealed(np.array([1.0, np.nan])).score({"x": np.array([1.5, 100.0])})
    assert scores["x"]["mae"] == 0.5
    with pytest.raises(ValueError, match="no value to score"):
        Sealed(np.array([np.nan])).score({"x": np.array([1.0])})


def dated(*times: str) -> str:
    return "date,a\n" + "".join(f"{time},{number}\n" for number, time in enumerate(times))


def days(form: str, count: int = 20, step: int = 1, first: str = "2023-12-11", skip: bool = False) -> list[str]:
    found, day = [], datetime.fromisoformat(first)
    while len(found) < count:
        if not skip or day.weekday() < 5:
            found.append(day.strftime(form))
        day += timedelta(days=step)
    return found


@pytest.mark.parametrize(
    ("times", "period"),
    [
        ([f"2016-07-01 {hour:02}:00:00" for hour in range(20)], 24),
        ([f"2016-07-01 {minute // 60:02}:{minute % 60:02}" for minute in range(0, 300, 15)], 96),
        (days("%Y-%m-%d"), 7),
        (days("%d/%m/%Y"), 7),
        (days("%m/%d/%Y"), 7),
        (days("%d.%m.%y"), 7),
        (days("%Y%m%d"), 7),
        (days("%d %b %Y"), 7),
        (days("%Y-%m-%d", skip=True), 5),
        ([f"{2000 + month // 12}-{month % 12 + 1:02}-01" for month in range(20)], 12),
        ([f"{2000 + month // 12}-{month % 12 + 1:02}" for month in range(20)], 12),
        ([f"{2000 + quarter // 4}Q{quarter % 4 + 1}" for quarter in range(20)], 4),
        ([f"2016-07-01T00:{minute:02}:00Z" for minute in range(20)], 1),
        ([str(number) for number in range(20)], 1),
    ],
)
def test_times_are_read_put_in_order_and_suggest_a_season(tmp_path: Path, times: list[str], period: int) -> None:
    forward = read_series(write(tmp_path, dated(*times)), "a")
    assert forward.period == period and not forward.notes
    backward = read_series(write(tmp_path, "date,a\n" + "".join(dated(*times).splitlines(True)[:0:-1])), "a")
    assert backward.values.tolist() == forward.values.tolist() == list(range(20))
    assert "put in order" in backward.notes[0]


@pytest.mark.parametrize(
    ("texts", "after"),
    [
        ([f"{day:02}-01-24" for day in range(1, 32)], "2024-02-01"),
        ([f"01-{day:02}-24" for day in range(31, 0, -1)], "2024-02-01"),
        ([f"{day:02}-01-24" for day in range(1, 30) if day % 7 not in (6, 0) and day != 3], "2024-01-30"),
        ([f"{day:02}-03-10 {hour:02}:00" for day in (21, 22) for hour in range(24)], "2010-03-23 00:00:00"),
        ([f"21-03-10 {hour:02}:00" for hour in range(24)], "2010-03-22 00:00:00"),
        ([f"31-12-{year:02}" for year in range(1, 21)], "2021-12-31"),
        ([f"30-06-{year:02}" for year in range(5, 25)], "2025-06-30"),
        ([f"24-{month:02}-15" for month in range(1, 13)], "2016-01-24"),
        ([f"{year}-{month:02}-01" for year in (22, 23, 24) for month in range(1, 13)], "2025-01-01"),
        ([f"24-01-{day:02}" for day in range(1, 32) if day != 9], "2024-02-01"),
    ],
)
def test_days_with_two_digits_of_the_year_begin_with_it_only_where_the_rows_say_so(
    tmp_path: Path, texts: list[str], after: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("date,n\n" + "".join(f"{text},{n / 2}\n" for n, text in enumerate(texts)))
    assert read_series(path).following(1) == [after]


def test_newest_first_by_slashes_ends_with_the_newest(tmp_path: Path) -> None:
    """The kind that read as a falling series: the forecast began where the series had begun."""
    times = days("%d/%m/%Y", 30)
    text = "date,a\n" + "".join(f"{time},{100 + at}\n" for at, time in reversed(list(enumerate(times))))
    assert read_series(write(tmp_path, text)).values[-1] == 129


def test_day_and_month_are_told_apart_by_the_gaps_that_each_order_leaves(tmp_path: Path) -> None:
    times = [datetime(2024, 3, 8) + timedelta(minutes=15 * n) for n in range(300) if n not in (100, 101)]
    path = tmp_path / "meter.csv"
    path.write_text("Timestamp,kWh\n" + "".join(f"{t:%m/%d/%Y %I:%M %p},{n}\n" for n, t in enumerate(times)))
    series = read_series(path)
    assert len(series.values) == 300 and np.isnan(series.values[100:102]).all()
    assert series.read is not None and series.read.following(1) == ["2024-03-11 03:00:00"]


def test_a_gap_is_a_missing_value_and_named(tmp_path: Path) -> None:
    times = days("%Y-%m-%d", 20)
    series = read_series(write(tmp_path, dated(*times[:5], *times[7:])), "a")
    assert np.flatnonzero(np.isnan(series.values)).tolist() == [5, 6] and len(series) == 20
    assert "2 times are missing" in series.notes[0] and times[4] in series.notes[0]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([f"0{1 + at % 9}/0{1 + at * at % 7}/20{10 + at}" for at in range(11)],
         "may begin with the day or with the month"),
        ([*days("%d/%m/%Y", 9, first="2023-01-13"), "13/13/2023"], "neither"),
        ([*days("%Y-%m-%d", 10), "soon"], "row 12: 'soon' is no time"),
        ([*days("%Y-%m-%d", 10), "2023-12-13"], "2023-12-13 comes twice"),
        ([*days("%Y-%m-%d", 10), "2023-12-13T00:00:00"], "comes twice"),
        ([*days("%Y-%m-%dT00:00:00+01:00", 10), "2024-12-13"], "time zone"),
        ([*days("%Y-%m-%d", 10), "2924-12-13"], "times are missing"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_used_are_refused(tmp_path: Path, times: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_series(write(tmp_path, dated(*times)), "a")


def test_labels_are_no_times(tmp_path: Path) -> None:
    text = "shop,a\n" + "".join(f"shop {number % 3},{number}\n" for number in range(12))
    assert read_series(write(tmp_path, text)).values.tolist() == list(range(12))


def test_a_found_season_goes_before_the_calendars() -> None:
    facts = explore(np.tile([1.0, 5.0, 9.0, 2.0, 3.0], 40) + 0.01 * np.arange(200))
    assert facts.period == 5 and seasons(facts, 7) == [5, 7, 1]


DAYS = [f"2024-01-{n + 1:02}" for n in range(12)]


@pytest.mark.parametrize(
    ("lines", "encoding", "values", "said"),
    [
        (["Datum;Umsatz", *(f"{d};1.{n:03},5" for n, d in enumerate(DAYS))], "cp1252", [1000.5, 1001.5], "semicolons"),
        ([f"{d},{n}.5" for n, d in enumerate(DAYS)], "utf-8", [0.5, 1.5], "no header"),
        (["day,price", *(f'{d},"$1,{n:03}.25"' for n, d in enumerate(DAYS))], "utf-8-sig", [1000.25, 1001.25], ""),
        (
            ["Tag\tZahl\tOrt", *(f"{d}\t{n},25\tKöln" for n, d in enumerate(DAYS))],
            "latin-1",
            [0.25, 1.25],
            "not UTF-8",
        ),
        (["date,share", *(f"{d},{n} %" for n, d in enumerate(DAYS))], "utf-16", [0, 1], ""),
        (["date;n", *(f"{d};{n}.5" for n, d in enumerate(DAYS))], "utf-8", [0.5, 1.5], "semicolons"),
        (["date;n", *(f"{d};{n + 1},125" for n, d in enumerate(DAYS))], "utf-8", [1.125, 2.125], "semicolons"),
        (["date,n", *(f'{d},"{n + 1},125"' for n, d in enumerate(DAYS))], "utf-8", [1125, 2125], ""),
        (["date,n", *(f'{d},"0,12{n % 10}"' for n, d in enumerate(DAYS))], "utf-8", [0.12, 0.121], ""),
        (["Report", "", "day;sum", *(f"{d};{n}" for n, d in enumerate(DAYS)), "Total;66"], "utf-8", [0, 1], "is a sum"),
        (["Station,Ulm", "", "day,t,q", *(f"{d},{n},ok" for n, d in enumerate(DAYS))], "utf-8", [0, 1], "'Station'"),
        (["Date,Close,Volume", *(f"{d},{n},9" for n, d in enumerate(DAYS))], "utf-8", [0, 1], "(Volume)"),
        (["t,n", *(f"{1704067200000 + n * 86400000},{n}" for n in range(12))], "utf-8", [0, 1], "since 1970"),
        (["data,n,tag", *(f"{d},{n},red" for n, d in enumerate(DAYS))], "utf-8", [0, 1], ""),
    ],
)
def test_files_as_people_have_them(
    tmp_path: Path, lines: list[str], encoding: str, values: list[float], said: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    series = read_series(path)
    assert series.values[:2].tolist() == values and len(series) == 12
    assert series.time[0] in ("2024-01-01", "1704067200000")
    assert said in " ".join(series.notes)
    assert series.following(2) == ["2024-01-13", "2024-01-14"]


def test_points_and_commas_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    text = "date;a\n" + "".join(f"{d};{'1,5' if n % 2 else '1.5'}\n" for n, d in enumerate(DAYS))
    with pytest.raises(ValueError, match="write all rows alike"):
        read_series(write(tmp_path, text))


def test_points_part_thousands_where_another_column_has_decimal_commas(tmp_path: Path) -> None:
    path = write(tmp_path, "tag;leute;flaeche\n" + "".join(f"{d};2{n % 10}6.243;{n},65\n" for n, d in enumerate(DAYS)))
    assert read_series(path, "leute").values[:2].tolist() == [206243, 216243]


def test_rows_of_unequal_length_without_headings_are_refused(tmp_path: Path) -> None:
    text = "".join(f"{d},${'1,003.37' if n % 3 else '990.10'},ok\n" for n, d in enumerate(DAYS))
    with pytest.raises(ValueError, match="row 1: its cells are not 4 as in most rows"):
        read_series(write(tmp_path, text))


def test_a_long_table_holds_several_series(tmp_path: Path) -> None:
    rows_ = [f"{d},{shop},{n + 100 * (shop == 'Bonn')}" for n, d in enumerate(DAYS) for shop in ("Kiel", "Bonn")]
    path = write(tmp_path, "date,shop,sold\n" + "\n".join(rows_) + "\n")
    first, other = read_series(path), read_series(path, "sold", "Bonn")
    assert (first.name, first.values[0], other.values[0], len(other)) == ("x.Kiel", 0, 100, 12)
    assert "holds 2 series (Kiel, Bonn)" in " ".join(first.notes)
    with pytest.raises(ValueError, match="no series Ulm in column shop; it has Kiel, Bonn"):
        read_series(path, None, "Ulm")


def test_a_long_table_may_need_two_columns_to_tell_its_series_apart(tmp_path: Path) -> None:
    rows_ = [f"{d},{a},{b},{n}" for n, d in enumerate(DAYS) for a in ("Kiel", "Bonn") for b in ("tea", "salt")]
    path = write(tmp_path, "date,shop,item,sold\n" + "\n".join(rows_) + "\n")
    assert (read_series(path).name, len(read_series(path, None, "Bonn / salt"))) == ("x.Kiel / tea", 12)
    with pytest.raises(ValueError, match="it has Kiel / tea, Kiel / salt"):
        read_series(path, None, "Bonn / rice")


@pytest.mark.parametrize(("heads", "next_"), [("Jan Feb Mär Apr Mai Jun Jul Aug Sep Okt Nov Dez", "2023-11-01"),
                                              ("Q1 Q2 Q3 Q4", "2023-10-01")])  # fmt: skip
def test_a_table_with_a_column_for_each_month_is_one_series(tmp_path: Path, heads: str, next_: str) -> None:
    names = heads.split()
    rows_ = [[str(year), *(str(year * 100 + n) for n in range(len(names)))] for year in (2019, 2020, 2021, 2022, 2023)]
    rows_[-1][-2 if len(names) > 4 else -1 :] = [""] * (2 if len(names) > 4 else 1)
    series = read_series(write(tmp_path, "\n".join(",".join(row) for row in [["Year", *names], *rows_]) + "\n"))
    assert series.values[:2].tolist() == [201900, 201901] and len(series) == 5 * len(names) - (
        2 if len(names) > 4 else 1
    )
    assert series.following(1) == [next_] and "were read as one series" in series.notes[0]


MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def wide(path: Path, head: Sequence[object], *rows_: Sequence[object]) -> Path:
    return write(path, "\n".join(",".join(map(str, row)) for row in [head, *rows_]) + "\n")


@pytest.mark.parametrize("blank", ["", "NA", "-"])
def test_a_wide_table_may_begin_with_the_newest_year(tmp_path: Path, blank: str) -> None:
    rows_: list[list[object]] = [[year, *(year * 100 + n for n in range(12))] for year in (2023, 2022, 2021)]
    rows_[0][-2:] = [blank] * 2
    series = read_series(wide(tmp_path, ["Year", *MONTHS], *rows_))
    assert (len(series), series.values[0], series.values[-1]) == (34, 202100, 202309)
    assert series.following(1) == ["2023-11-01"]


def test_a_wide_table_may_hold_several_series_and_errors_name_its_rows(tmp_path: Path) -> None:
    head = ["Region", "Year", *MONTHS, "Total"]
    rows_: list[list[object]] = [
        [region, year, *(year + n + add for n in range(12)), 9]
        for region, add in (("N", 0), ("S", 1000))
        for year in (2021, 2022)
    ]
    path = wide(tmp_path, head, *rows_)
    assert read_series(path).values[0] == 2021 and read_series(path, None, "S").values[:2].tolist() == [3021, 3022]
    rows_[3][4] = "many"
    with pytest.raises(ValueError, match="row 5: 'many' is not a number"):
        read_series(wide(tmp_path, head, *rows_), None, "S")


@pytest.mark.parametrize(("first", "heads", "count"), [("Year", range(1, 13), 144), ("cohort", range(1, 13), 12),
                                                       ("cohort", ["t1", "t2", "t3", "t4"], 12),
                                                       ("Jahr", ["T1", "T2", "T3", "T4"], 48)])  # fmt: skip
def test_numbers_are_months_beside_a_column_called_years_alone(
    tmp_path: Path, first: str, heads: list[object], count: int
) -> None:
    rows_ = [[year, *(year + n for n in range(len(heads)))] for year in range(2001, 2013)]
    assert len(read_series(wide(tmp_path, [first, *map(str, heads)], *rows_))) == count


def test_columns_of_values_are_no_keys_for_a_few_times_that_come_twice(tmp_path: Path) -> None:
    rows_ = [
        [day, ("sun", "rain", "snow")[n % 3], n % 2, n] for n, day in enumerate([*DAYS, DAYS[0], DAYS[1], DAYS[2]], 3)
    ]
    rows_[-1][1], rows_[-2][1] = "fog", "fog"
    with pytest.raises(ValueError, match="comes twice"):
        read_series(wide(tmp_path, ["date", "weather", "promo", "sold"], *rows_))


@pytest.mark.parametrize(
    ("rows_", "column", "values", "note"),
    [
        ([["3,50", "1.000"], ["4,50", "-500"], ["5,25", "1.001"]], "b", [1000, -500, 1001], "points part thousands"),
        ([["1,204", "3.100"], ["1,305", "3.200"], ["999", "4.150"]], "b", [3.1, 3.2, 4.15], ""),
        ([["3,50", "1.204.500"], ["4,5", "204.500"], ["1,5", "7"]], "b", [1204500, 204500, 7], ""),
        ([["1", "1.204.500"], ["2", "204.500"], ["3", "7"]], "b", [1204500, 204500, 7], ""),
    ],
)
def test_points_part_thousands_where_the_table_says_so(
    tmp_path: Path, rows_: list[list[str]], column: str, values: list[float], note: str
) -> None:
    lines = [f"{day};{a};{b}" for day, (a, b) in zip(DAYS, rows_ * 4)]
    series = read_series(write(tmp_path, "\n".join(["day;a;b", *lines]) + "\n"), column)
    assert series.values[:3].tolist() == values
    assert (note in " ".join(series.notes)) and ("points part" in " ".join(series.notes)) == bool(note)


def test_empty_cells_at_the_end_of_rows_and_sums_alone_are_not_ragged(tmp_path: Path) -> None:
    text = "".join(f"{d},{n}{',' * (n % 3)}\n" for n, d in enumerate(DAYS))
    assert read_series(write(tmp_path, text)).values.tolist() == list(range(12))
    with pytest.raises(ValueError, match="10 or more are needed"):
        read_series(write(tmp_path, "sum,1\nsum,2\n"))


@pytest.mark.parametrize(
    ("times", "next_"),
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], ["2024-04-30", "2024-05-31"]),
        (["2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08"], ["2024-01-09", "2024-01-10"]),
        (["2024-01-01 22:00", "2024-01-01 23:00", "2024-01-02 00:00"], ["2024-01-02 01:00:00", "2024-01-02 02:00:00"]),
        (["2023-Q3", "2023-Q4", "2024-Q1"], ["2024-04-01", "2024-07-01"]),
        (["2023-T3", "2023-T4", "2024-T1"], ["2024-04-01", "2024-07-01"]),
        (["Q3 2023", "Q4 2023", "Q1 2024"], ["2024-04-01", "2024-07-01"]),
        (["2023-W51", "2023-W52", "2024-W01"], ["2024-01-08", "2024-01-15"]),
        (["Mrz 2024", "April 2024", "Mai 2024"], ["2024-06-01", "2024-07-01"]),
        (["1 févr. 2024", "2 févr. 2024", "3 févr. 2024"], ["2024-02-04", "2024-02-05"]),
        (["1 de enero de 2024", "2 de enero de 2024", "3 de enero de 2024"], ["2024-01-04", "2024-01-05"]),
        (["2024-01-01", "2024-01-02", "2024-01-09"], ["2024-01-10", "2024-01-11"]),
        (["2021", "2022", "2023"], ["2024", "2025"]),
        (["1", "2", "4"], []),
        (["a", "b", "c"], []),
    ],
)
def test_the_next_times(times: list[str], next_: list[str]) -> None:
    from paceline.apps.common.times import ordered

    assert ordered(times, "here", False).following(2) == next_
