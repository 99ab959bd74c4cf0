"""Tables as people lay them out: times as headings, in several columns, as bare numbers; headings over two lines."""

from pathlib import Path

import pytest

from paceline.apps.tsci.series import read_series

MONTH_NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
YEARS = range(2021, 2024)
DAYS_ = [f"2024-01-{day:02}" for day in range(1, 21)]


def table(*rows: list[object]) -> str:
    return "\n".join(",".join(map(str, row)) for row in rows) + "\n"


def by_month(year: int) -> list[int]:
    return [year * 12 + month for month in range(12)]


LAYOUTS = {
    "years over months": (
        table(["Month", *YEARS], *([name, *(by_month(y)[n] for y in YEARS)] for n, name in enumerate(MONTH_NAMES))),
        by_month(2021)[0], 36, "2024-01-01"),
    "newest year first": (
        table(["Month", *YEARS[::-1]], *([n + 1, *(by_month(y)[n] for y in YEARS[::-1])] for n in range(12))),
        by_month(2021)[0], 36, "2024-01-01"),
    "years over quarters": (
        table(["Quarter", *YEARS, 2024], *([f"Q{q}", *(y * 4 + q for y in (*YEARS, 2024))] for q in range(1, 5))),
        2021 * 4 + 1, 16, "2025-01-01"),
    "years over weeks": (
        table(["Week", *YEARS], *([w, *(y * 52 + w for y in YEARS)] for w in range(1, 53))),
        2021 * 52 + 1, 156, "2024-01-01"),
    "fiscal months": (
        table(["Year", *MONTH_NAMES[3:], *MONTH_NAMES[:3]], *([y, *by_month(y)] for y in YEARS)),
        by_month(2021)[0], 36, "2024-04-01"),
    "fiscal years": (
        table(["FY", "Q1", "Q2", "Q3", "Q4"], *([f"FY{y}", *(y * 4 + q for q in range(4))] for y in (*YEARS, 2024))),
        2021 * 4, 16, "2025-01-01"),
    "two years a row": (
        table(["Fiscal Year", "1Q", "2Q", "3Q", "4Q"],
              *([f"{y}/{y % 100 + 1}", *(y * 4 + q for q in range(4))] for y in (*YEARS, 2024))),
        2021 * 4, 16, "2025-01-01"),
    "a row a series": (
        table(["Item", *(f"{m}-{y}" for y in (22, 23) for m in MONTH_NAMES)], ["Shoes", *range(24)],
              ["Hats", *range(100, 124)], ["Total", *range(24)]), 0, 24, "2024-01-01"),
    "years as headings": (
        table(["Country", "Code", *range(1990, 2020)], ["Spain", "ES", *range(30)], ["Peru", "PE", *range(30)]),
        0, 30, "2020"),
    "days as headings": (
        table(["Item", *(f"{d}/01/2024" for d in range(1, 21))], ["A", *range(20)]), 0, 20, "2024-01-21"),
    "merged headings": (
        table(["", 2021, *[""] * 11, 2022, *[""] * 11], ["Region", *MONTH_NAMES * 2], ["N", *range(24)],
              ["S", *range(24)]), 0, 24, "2023-01-01"),
    "hours as headings": (
        table(["Date", *(f"{h:02}:00" for h in range(24))], *([day, *range(24)] for day in DAYS_[:3])),
        0, 72, "2024-01-04 00:00:00"),
    "hours by their end": (
        table(["Date", *(f"H{h}" for h in range(1, 25))], *([day, *range(24)] for day in DAYS_[:3])),
        0, 72, "2024-01-04 01:00:00"),
    "year and month": (
        table(["year", "month", "n"], *([y, m, y * 12 + m] for y in YEARS for m in range(1, 13))),
        2021 * 12 + 1, 36, "2024-01-01"),
    "Jahr und Monat": (
        table(["Jahr", "Monat", "n"], *([y, m, y] for y in YEARS for m in ("Januar", "Februar", "März", "April", "Mai",
              "Juni", "Juli", "August", "September", "Oktober", "November", "Dezember"))), 2021, 36, "2024-01-01"),
    "year and quarter": (
        table(["year", "quarter", "n"], *([y, q, y * 4 + q] for y in range(2015, 2020) for q in range(1, 5))),
        2015 * 4 + 1, 20, "2020-01-01"),
    "year to hour": (
        table(["No", "year", "month", "day", "hour", "n"],
              *([d * 24 + h, 2010, 1, d, h, d * 24 + h] for d in range(1, 4) for h in range(24))),
        24, 72, "2010-01-04 00:00:00"),
    "year to minute": (
        table(["year", "month", "day", "hour", "minute", "n"],
              *([2010, 1, 1, m // 60, m % 60, m] for m in range(0, 300, 10))), 0, 30, "2010-01-01 05:00:00"),
    "years to hours of stations": (
        table(["year", "month", "day", "hour", "station", "n"],
              *([2010, 1, d, h, s, d * 24 + h] for s in "AB" for d in (1, 2) for h in range(24))),
        24, 48, "2010-01-03 00:00:00"),
    "day, hour and minute": (
        table(["date", "hour", "minute", "n"], *([DAYS_[0], m // 60, m % 60, m] for m in range(0, 450, 15))),
        0, 30, "2024-01-01 07:30:00"),
    "day and hour": (
        table(["date", "hour", "n"], *([day, h, h] for day in DAYS_[:2] for h in range(24))),
        0, 48, "2024-01-03 00:00:00"),
    "day and clock": (
        table(["<DATE>", "<TIME>", "n"], *(["2024.01.01", f"{h:02}:30:00", h] for h in range(20))),
        0, 20, "2024-01-01 20:30:00"),
    "days of Excel": (table(["date", "n"], *([45292 + n, n] for n in range(20))), 0, 20, "2024-01-21"),
    "202101": (table(["date", "n"], *([f"{y}{m:02}", y * m] for y in YEARS for m in range(1, 13))), 2021, 36,
               "2024-01-01"),
    "01.2021": (table(["Monat", "n"], *([f"{m:02}.{y}", y * m] for y in YEARS for m in range(1, 13))), 2021, 36,
                "2024-01-01"),
    "12312023": (table(["date", "n"], *([f"01{d:02}2024", d] for d in range(1, 21))), 1, 20, "2024-01-21"),
    "24-01-31": (table(["date", "n"], *([day[2:], n] for n, day in enumerate(DAYS_))), 0, 20, "2024-01-21"),
    "millionths": (table(["timestamp", "n"], *([(1704067200 + 3600 * n) * 10**6, n] for n in range(20))), 0, 20,
                   "2024-01-01 20:00:00"),
    "newest first in Japanese": (
        table(["日付", "n"], *([f"2024年1月{d}日", d] for d in range(20, 0, -1))), 1, 20, "2024-01-21"),
    "halves": (table(["period", "n"], *([f"{y} H{h}", y] for y in range(2010, 2020) for h in (1, 2))), 2010, 20,
               "2020-01-01"),
    "a line of units": (table(["date", "n"], ["", "kW"], *([day, n] for n, day in enumerate(DAYS_))), 0, 20,
                        "2024-01-21"),
    "headings twice": (table(["date", "n"], *([d, 7] for d in DAYS_[:9]), ["date", "n"], *([d, 7] for d in DAYS_[9:])),
                       7, 20, "2024-01-21"),
    "blanks": (table(["date n"], *([f"{day} {n}"] for n, day in enumerate(DAYS_))), 0, 20, "2024-01-21"),
    "units": (table(["date", "n"], *([day, f"{n} kWh"] for n, day in enumerate(DAYS_))), 0, 20, "2024-01-21"),
    "exponents": (table(["date", "n"], *([day, f"{100 + n}e10"] for n, day in enumerate(DAYS_))), 1e12, 20,
                  "2024-01-21"),
    "accounts": (table(["date", "n"], *([day, f'"(1,{n:03}.50)"'] for n, day in enumerate(DAYS_))), -1000.5, 20,
                 "2024-01-21"),
    "lakhs": (table(["date", "n"], *([day, f'"1,20,0{n:02}.00"'] for n, day in enumerate(DAYS_))), 120000, 20,
              "2024-01-21"),
    "a counter": (table(["date", "n", "id"], *([day, n * n, n + 7] for n, day in enumerate(DAYS_))), 0, 20,
                  "2024-01-21"),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_read_in_order_with_their_times(tmp_path: Path, layout: str) -> None:
    text, first, count, after = LAYOUTS[layout]
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    series = read_series(path)
    assert (series.values[0], len(series), series.following(1)) == (first, count, [after])
    if not layout.startswith(("202", "01.", "hours", "day and hour", "accounts")):
        assert (series.values[1:] >= series.values[:-1]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table(["date", "n"], *([d, f"{n}%" if n % 2 else f"0.{n}"] for n, d in enumerate(DAYS_))), "per cent"),
        (table(["date", "n"], *([d, f"{'$€'[n % 2]}{n}"] for n, d in enumerate(DAYS_))), "different currencies"),
        (table(["date", "n"], *([d, f"1.{n}{'KM'[n % 2]}"] for n, d in enumerate(DAYS_))), "'1.0K' is not a number"),
        (table(["date", "n"], *([d, "2e300"] for d in DAYS_)), r"holds 2e\+300, too large"),
        ('[{"date": "2024-01-01"}]', "holds JSON"),
        ("PK\x03\x04....", "a workbook of Excel"),
    ],
)
def test_what_would_be_read_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_series(path)


def test_first_rows_of_values_that_look_like_years_are_no_headings(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table(["Country", *range(1990, 2010)], ["A", *range(1990, 2010)], ["B", *range(20)]))
    assert read_series(path).values[:2].tolist() == [1990, 1991] and read_series(path, None, "B").values[1] == 1
    with pytest.raises(ValueError, match="no series C; the table has A, B"):
        read_series(path, None, "C")


def test_marks_of_missing_values_and_orders_that_are_taken_as_they_come_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table(["when", "n"], *([f"shift {n}", -999 if n == 3 else n] for n in range(20))))
    notes = " ".join(read_series(path).notes)
    assert "-999 comes once" in notes and "'shift 0' is not read as a time" in notes


@pytest.mark.parametrize(
    ("names", "times", "steps"),
    [
        (["day"], YEARS, range(1, 366)),
        (["week"], range(2019, 2023), range(1, 31)),
        ([""], [f"2024-{month:02}" for month in range(1, 13)], range(31)),
        (["day", "weekday"], range(2000, 2020), [f"{day},Mo" for day in range(1, 30)]),
        (["hour"], DAYS_, range(24)),
        (["depth"], YEARS, range(5, 65, 5)),
    ],
)
def test_years_as_headings_over_rows_that_are_steps_are_series(
    tmp_path: Path, names: list[str], times: list[object], steps: list[object]
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(
        table([*names, *times], *([step, *range(n, n + 7 * len(times), 7)] for n, step in enumerate(steps)))
    )
    series = read_series(path)
    assert series.name == f"x.{times[-1]}" and len(series) == len(steps)
    assert (series.values - series.values[0]).tolist() == list(range(len(steps)))


JANUARY = [f"2024-01-{day:02}" for day in range(1, 31)]
ALL = list(enumerate(JANUARY))
BESIDE_A_DATE = {
    "month and year after": table(["Date", "Month", "Year", "n"], *([d, 1, 2024, n / 2] for n, d in ALL)),
    "year and month before": table(["Year", "Month", "Date", "n"], *([2024, 1, d, n / 2] for n, d in ALL)),
    "Prophet's": table(["ds", "y", "month", "year"], *([d, n / 2, 1, 2024] for n, d in ALL)),
    "steps": table(["step", "year", "month", "n"], *([n, 2024, 1, n / 2] for n in range(30))),
    "hours worked": table(
        ["date", "project", "hour", "cost"],
        *([d, p, 3 + (n * 5 + (p == "b")) % 7, n / 2] for n, d in ALL for p in "ab")),
    "running times": table(
        ["date", "runner", "time", "n"],
        *([d, p, f"{4 + (p == 'b')}:{(n * 17) % 60:02}", n / 2] for n, d in ALL for p in "ab")),
    "records": table(
        ["year", "store", "month", "n"],
        *([y, s, 1 + (y * 5 + s * 3) % 12, y / 2 - 995] for y in range(1990, 2020) for s in (7, 8))),
}  # fmt: skip


@pytest.mark.parametrize("layout", BESIDE_A_DATE)
def test_parts_of_times_beside_a_column_that_tells_them_stay_values(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(BESIDE_A_DATE[layout])
    series = read_series(path)
    assert series.values.tolist() == [n / 2 for n in range(30)] and "joined" not in " ".join(series.notes)
    after = {"steps": "30", "records": "2020"}
    assert series.following(1) == [after.get(layout, "2024-01-31")]


def test_a_column_that_is_asked_for_is_no_part_of_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table(["year", "month", "n"], *([2000 + n, 1 + n % 12, n] for n in range(20)), [2019, 12, 20]))
    with pytest.raises(ValueError, match="2019 comes twice"):
        read_series(path, "month")
    path.write_text(table(["date", "hour", "n"], *([day, h, h] for day in DAYS_ for h in (9, 17))))
    assert read_series(path, "hour", "9").values.tolist() == [9] * 20
