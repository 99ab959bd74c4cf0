"""Series, windows of them, and the seal that hides a window's future from the forecasters."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.times import TIME_COLUMNS, ParsedTimes, ordered

Floats = NDArray[np.float64]

MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}


class Leak(RuntimeError):
    """Error: a window's future was read before the forecasts were scored."""


@dataclass(frozen=True)
class Series:
    """Values at equal distances in time, float64 [n], missing ones not a number; `time` is kept as text, "" where a row
    was missing. `period`: the season that the calendar suggests, 1 for none. `notes`: what was done to the rows."""

    name: str
    values: Floats
    time: tuple[str, ...]
    period: int = 1
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


class Sealed:
    """The values to be forecast, float64 [horizon]: any use but `score` raises Leak."""

    def __init__(self, values: Floats) -> None:
        self.__values = values.copy()

    def __len__(self) -> int:
        return len(self.__values)

    def __array__(self, dtype: object = None, copy: object = None) -> Floats:
        raise Leak("The future of a window was read before it was scored; forecasts may use its history alone.")

    def __getitem__(self, index: object) -> float:
        raise Leak("The future of a window was read before it was scored; forecasts may use its history alone.")

    def __iter__(self) -> Iterator[float]:
        raise Leak("The future of a window was read before it was scored; forecasts may use its history alone.")

    def score(self, forecasts: dict[str, Floats]) -> tuple[dict[str, dict[str, float]], Floats]:
        """MAE, MSE and MAPE (per cent) of each forecast, and the values themselves; missing values are not scored."""
        known = np.isfinite(self.__values)
        if not known.any():
            raise ValueError("The window's future has no value to score against; choose another window.")
        truth = self.__values[known]
        return {name: errors(values[known], truth) for name, values in forecasts.items()}, self.__values.copy()


def errors(forecast: Floats, truth: Floats) -> dict[str, float]:
    """MAE and MSE in units of the series; MAPE in per cent over values that are not 0 (not a number where all are)."""
    gap = forecast - truth
    away = truth != 0
    share = float(100 * np.mean(np.abs(gap[away] / truth[away]))) if away.any() else float("nan")
    return {"mae": float(np.mean(np.abs(gap))), "mse": float(np.mean(gap * gap)), "mape": share}


@dataclass(frozen=True)
class Window:
    """What may be known, and the sealed future behind it. `start` is the history's first index in the series."""

    series: str
    start: int
    history: Floats
    future: Sealed


def windows(series: Series, history: int, horizon: int, count: int) -> list[Window]:
    """`count` windows, evenly spread so that the last ends with the series; histories are copies."""
    room = len(series) - history - horizon
    if room < 0:
        raise ValueError(
            f"{series.name} has {len(series)} values; {history} of history and {horizon} to forecast need "
            f"{history + horizon}: give a longer series, or less of either."
        )
    starts = np.linspace(0, room, count).round().astype(int) if count > 1 else np.array([room])
    return [
        Window(
            series.name,
            int(start),
            series.values[start : start + history].copy(),
            Sealed(series.values[start + history : start + history + horizon]),
        )
        for start in starts
    ]


def read_series(path: Path, column: str | None = None) -> Series:
    """One column of a CSV file in order of time; the last one if none is named. Times that lack get a missing value.
    Raises ValueError that names the row."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise ValueError(f"{path} holds no rows; give a CSV file with a header and one row for each time.")
    header = [name.strip() for name in rows[0]]
    if column is not None and column not in header:
        raise ValueError(f"{path} has no column {column}; its columns are {', '.join(header)}.")
    at = header.index(column) if column is not None else len(header) - 1
    named = [index for index, name in enumerate(header) if name.lower() in TIME_COLUMNS and index != at]
    when = named[0] if named else 0 if at != 0 else None
    values = np.array([_number(row, at, f"{path}, row {number}") for number, row in enumerate(rows[1:], start=2)])
    _check(values, f"{path}, column {header[at]}")
    name = f"{path.stem}.{header[at]}"
    if when is None:
        return Series(name, values, tuple(map(str, range(len(values)))))
    time = [row[when] if when < len(row) else "" for row in rows[1:]]
    read = ordered(time, f"{path}, column {header[when]}", bool(named))
    return placed(name, values, time, read, str(path))


def placed(name: str, values: Floats, time: Sequence[str], read: ParsedTimes, place: str) -> Series:
    """The rows in order of time, with missing values where times lack. Raises ValueError where most would lack."""
    lacking = sum(read.missing)
    if lacking > len(values):
        raise ValueError(f"{place}: {lacking} times are missing in {len(values)} rows; give a series with fewer gaps.")
    made: list[float] = []
    texts: list[str] = []
    for position, row in enumerate(read.order):
        gap = read.missing[position - 1] if position and read.missing else 0
        made += [float("nan")] * gap + [float(values[row])]
        texts += [""] * gap + [time[row]]
    return Series(name, np.array(made), tuple(texts), period_of(read), read.notes)


def _number(row: list[str], at: int, place: str) -> float:
    text = row[at].strip() if at < len(row) else ""
    if text.lower() in MISSING:
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        value = float("inf")
    if np.isfinite(value):
        return value
    raise ValueError(f"{place}: {text!r} is not a number; give a number, or leave it empty where missing.")


def _check(values: Floats, place: str) -> None:
    known = values[np.isfinite(values)]
    if len(known) < 10:
        raise ValueError(f"{place} has {len(known)} values; 10 or more are needed.")


SECONDS = {900.0: 96, 1800.0: 48, 3600.0: 24}
"""Seconds between values, and the season that people's days give them."""


def period_of(read: ParsedTimes) -> int:
    """The season's length that the times suggest: 24 of hourly values, 7 of daily ones, 5 of business days, 12 of
    months, 4 of quarters; 1 if they suggest none."""
    if read.unit == "seconds":
        return SECONDS.get(read.step, 1)
    if read.unit == "months":
        return {1.0: 12, 3.0: 4}.get(read.step, 1)
    return {"days": 7, "business days": 5}.get(read.unit, 1) if read.step == 1 else 1
