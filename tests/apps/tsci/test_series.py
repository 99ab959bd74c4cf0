"""Series and windows: what a CSV may hold, and the seal over the future."""

from pathlib import Path

import numpy as np
import pytest

from paceline.apps.tsci.generate import retail
from paceline.apps.tsci.series import Leak, Sealed, Series, calendar_period, errors, read_series, windows


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
        (rows(1, "x", *range(12)), "a", "row 3: 'x' is no number"),
        (rows(1, "inf", *range(12)), "a", "row 3: 'inf' is no number"),
        (rows(1, 2, 3), "a", "10 or more"),
        ("date,a\n" + "2020-01-01,1\n" * 12, "a", "comes twice"),
        ("date,a\n" + "".join(f"2020-01-{31 - i},1\n" for i in range(12)), "a", "not in order"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, column: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_series(write(tmp_path, text), column)


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


@pytest.mark.parametrize(
    ("first", "second", "period"),
    [
        ("2016-07-01 00:00:00", "2016-07-01 01:00:00", 24),
        ("2016-07-01 00:00:00", "2016-07-01 00:15:00", 96),
        ("2016-07-01", "2016-07-02", 7),
        ("2016-07-01", "2016-08-01", 12),
        ("2016-07-01", "2016-07-04", 1),
        ("0", "1", 1),
        ("monday", "tuesday", 1),
    ],
)
def test_the_calendar_suggests_a_season(first: str, second: str, period: int) -> None:
    assert calendar_period((first, second)) == period
