"""Series, windows of them, and the seal that hides a window's future from the forecasters."""

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}


class Leak(RuntimeError):
    """Error: a window's future was read before the forecasts were scored."""


@dataclass(frozen=True)
class Series:
    """Values at equal distances in time, float64 [n], missing ones not a number; `time` is kept as text."""

    name: str
    values: Floats
    time: tuple[str, ...]

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
    """One column of a CSV file in its order; the last one if none is named. Raises ValueError that names the row."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise ValueError(f"{path} holds no rows; give a CSV file with a header and one row for each time.")
    header = [name.strip() for name in rows[0]]
    if column is not None and column not in header:
        raise ValueError(f"{path} has no column {column}; its columns are {', '.join(header)}.")
    at = header.index(column) if column is not None else len(header) - 1
    when = 0 if at != 0 else None
    values = np.array([_number(row, at, f"{path}, row {number}") for number, row in enumerate(rows[1:], start=2)])
    time = tuple(row[when] if when is not None else str(number) for number, row in enumerate(rows[1:]))
    _check(values, time, f"{path}, column {header[at]}")
    return Series(f"{path.stem}.{header[at]}", values, time)


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
    raise ValueError(f"{place}: {text!r} is no number; give a number, or leave it empty where missing.")


def _check(values: Floats, time: tuple[str, ...], place: str) -> None:
    known = values[np.isfinite(values)]
    if len(known) < 10:
        raise ValueError(f"{place} has {len(known)} values; 10 or more are needed.")
    if len(set(time)) < len(time):
        again = next(text for text in time if time.count(text) > 1)
        raise ValueError(f"{place}: the time {again} comes twice; keep one row for each time.")
    ordered = all(a < b for a, b in itertools.pairwise(time) if len(a) == len(b))
    if not ordered and "-" in time[0]:
        raise ValueError(f"{place}: the times are not in order; sort the rows by time.")


TSCI_SERIES_STEPS = {900: 96, 1800: 48, 3600: 24, 86400: 7}
"""Seconds between values, and the season that people's days and weeks give them."""


def calendar_period(time: tuple[str, ...]) -> int:
    """The season's length that the times suggest (24 of hourly values, 7 of daily, 12 of monthly); 1 if they do not."""
    try:
        first, second = (np.datetime64(text.replace(" ", "T"), "s") for text in time[:2])
    except ValueError:
        return 1
    seconds = int((second - first) / np.timedelta64(1, "s"))
    return TSCI_SERIES_STEPS.get(seconds, 12 if 28 * 86400 <= seconds <= 31 * 86400 else 1)
