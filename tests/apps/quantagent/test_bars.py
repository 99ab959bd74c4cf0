"""Files of bars as trading programs and exchanges write them."""

from pathlib import Path

import numpy as np
import pytest

from paceline.apps.quantagent.bars import read_windows

BAR_FILES = {
    "exchange": ("17000000{:02d}000,40.0,41.5,39.0,40.5,1.5,0\n", ""),
    "terminal": ("2024.01.02,10:{:02d},40.0,41.5,39.0,40.5,7\n", ""),
    "letters": ("17000000{:02d}000,40.0,40.5,41.5,39.0\n", "t,o,c,h,l\n"),
    "German": ("{:02d}.01.2024;40,0;41,5;39,0;40,5\n", "Datum;Erster;Hoch;Tief;Schlusskurs\n"),
    "Spanish": ('{:02d}.01.2024,"40,5","40,0","41,5","39,0"\n', "Fecha,Último,Apertura,Máximo,Mínimo\n"),
    "French": ("{:02d}/01/2024;40.5;40;41.5;39\n", "Date;Clôture;Ouverture;Plus haut;Plus bas\n"),
    "Chinese": ("2024-01-{:02d},40,40.5,41.5,39\n", "日期,开盘,收盘,最高,最低\n"),
    "two columns": (
        "2024.01.02\t10:{:02d}:00\t40\t41.5\t39\t40.5\n",
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\n",
    ),
    "portal": ('"01/{:02d}/2024","40.5","40.0","41.5","39.0","1.25M"\n', "Date,Price,Open,High,Low,Vol.\n"),
}


@pytest.mark.parametrize("name", BAR_FILES)
def test_bars_without_headings_or_with_others(tmp_path: Path, name: str) -> None:
    row, head = BAR_FILES[name]
    path = tmp_path / "bars.csv"
    path.write_text(head + "".join(row.format(number) for number in range(10, 30)))
    (bars,) = read_windows(path).values()
    assert len(bars) == len(set(bars.time)) == 20
    for column, wanted in ((bars.open, 40.0), (bars.high, 41.5), (bars.low, 39.0), (bars.close, 40.5)):
        np.testing.assert_array_equal(column, wanted)


def test_numbers_that_are_no_bars_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("".join(f"2024-01-{day},40,39,41,40.5\n" for day in range(10, 30)))
    with pytest.raises(ValueError, match="has no column open"):
        read_windows(path)


def test_bars_come_in_order_of_time_whatever_their_column_is_called(tmp_path: Path) -> None:
    """A heading that was not known as one of times left the newest bar first: prices ran backwards, unsaid."""
    path = tmp_path / "bars.csv"
    for heading in ("Period", "Gmt time", "Open time", "Handelstag"):
        rows = "".join(f"2024-01-{day},40,41,39,{40 + day / 100}\n" for day in range(30, 10, -1))
        path.write_text(f"{heading},open,high,low,close\n{rows}")
        (bars,) = read_windows(path).values()
        assert bars.close[-1] == 40.3 and "put in order" in bars.notes[0]
    path.write_text("open,high,low,close\n" + "40,41,39,40\n" * 20)
    assert "first row is taken to be the oldest" in read_windows(path)["1"].notes[0]


def test_assets_of_one_file_are_windows(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    rows = "".join(
        f"2024-01-{day},{name},{k},{k},{k},{k}\n" for day in range(10, 30) for name, k in (("A", 1), ("B", 2))
    )
    path.write_text("date,ticker,open,high,low,close\n" + rows)
    windows = read_windows(path)
    assert list(windows) == ["A", "B"] and windows["B"].close.tolist() == [2.0] * 20


@pytest.mark.parametrize(
    ("heading", "names"), [("code", range(30)), ("Instrument", ["ESH4"] * 15 + ["ESM4"] * 15), ("pair", ["A"] * 30)]
)
def test_columns_that_tell_no_times_apart_are_no_assets(tmp_path: Path, heading: str, names: list[object]) -> None:
    """A number of each row, and contracts one after the other, are one window; nor do year and month replace a date."""
    path = tmp_path / "bars.csv"
    rows = "".join(f"2024,1,2024-01-{n:02},{name},{n},{n},{n},{n}\n" for n, name in enumerate(names, start=1))
    path.write_text(f"year,month,date,{heading},open,high,low,close\n{rows}")
    (bars,) = read_windows(path).values()
    assert bars.close.tolist() == list(range(1, 31)) and bars.time[0] == "2024-01-01"
