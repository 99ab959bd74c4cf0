"""Series, windows of them, and the seal that hides a window's future from the forecasters."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.numbers import MISSING, TableError, as_plain
from ..common.one_time import with_one_time
from ..common.tables import TextTable, read_table
from ..common.times import TIME_COLUMNS, ParsedTimes, TimeError, ordered
from .unfold import unfolded

Floats = NDArray[np.float64]


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
    read: ParsedTimes | None = None
    """The times as parsed, where the file has any: it knows the next ones."""

    def __len__(self) -> int:
        return len(self.values)

    def following(self, count: int) -> list[str]:
        """Next times or steps, if those of the file are at equal distances; else none."""
        return self.read.following(count) if self.read is not None else []


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
    """Data that may be known at an origin, and the future after it, which stays
    sealed. `start` is the history's first index in the series."""

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


def read_series(path: Path, column: str | None = None, one: str | None = None) -> Series:
    """One column of a CSV file in order of time; the last one that holds numbers if none is named. Times that lack get
    a missing value. In a long table, with several series one below the other, `one` names which; default the first.
    Raises ValueError that names the row."""
    table = read_table(path)
    if column is not None and column not in table.header:
        raise ValueError(f"{path} has no column {column}; its columns are {', '.join(table.header)}.")
    if not table.rows:
        raise ValueError(f"{path} holds no rows; give a CSV file with a header and one row for each time.")
    table, joined, label = unfolded(with_one_time(table, column), column, one)
    when = time_column(table, joined or column)
    value = joined or column or value_column(table, when)
    others = [name for name in reversed(number_columns(table, when)) if name != value and value != (joined or column)]
    said: list[str] = []
    if label is None:
        table, label, said = chosen(table, when, value, one, path)
    notes = [*table.notes, *said, *(f"{path.name}, {each}" for each in table.points_said(value))]
    if others:
        notes.append(f"{path.name}: column {value} is read, --column names another ({', '.join(others[:5])}).")
    values = np.array(checked_numbers(table, value, path))
    _check(values, f"{path}, column {value}")
    notes += sentinel_said(values, f"{path.name}, column {value}")
    name = f"{path.name.split('.')[0]}.{label or value}"
    if when is None:
        return Series(name, values, tuple(map(str, range(len(values)))), notes=tuple(notes))
    time = table.column(when)
    read = ordered(time, f"{path}, column {when}", when.lower() in TIME_COLUMNS)
    made = placed(name, values, time, read, str(path))
    return replace(made, notes=(*notes, *made.notes), read=read)


def time_column(table: TextTable, value: str | None) -> str | None:
    """The column of times: one with such a heading, else the first column apart from the value that holds times or
    steps. A single column is the value."""
    if len(table.header) == 1:
        return None
    named = [name for name in table.header if name.lower() in TIME_COLUMNS and name != value]
    if named:
        return next((name for name in named if reads(table, name)), named[0])
    for name in table.header:
        if name == value:
            continue
        try:
            if ordered(table.column(name)[:50], name, False).last is not None:
                return name
        except TimeError:
            if not any(map(str.isalpha, "".join(table.column(name)[:50]))):
                return name
    first = table.header[0]
    return first if value != first else None


def reads(table: TextTable, name: str) -> bool:
    """Whether a column called after times begins with times or numbers."""
    try:
        read = ordered(table.column(name)[:50], name)
    except TimeError as error:
        return "comes twice" in str(error)
    return read.last is not None or not any(map(str.isalpha, "".join(table.column(name)[:50])))


TSCI_USUAL_VALUES = ("close", "adj close", "y", "value")
"""Headings of values, as yfinance, Prophet and many exports call them: they go before later columns."""


def value_column(table: TextTable, when: str | None) -> str:
    """A column of numbers with a usual heading, else the last column of numbers; without any, the last column, whose
    first bad row is refused. Columns of plain numbers go before those of numbers with units, which may be codes."""
    found = sorted(number_columns(table, when), key=lambda name: doubts(table, name))
    usual = [name for wanted in TSCI_USUAL_VALUES for name in found if name.lower() == wanted]
    measured = [name for name in found if not counts_rows(name, table.column(name))]
    return next(
        iter([*usual, *measured, *found]), next((n for n in reversed(table.header) if n != when), table.header[-1])
    )


def doubts(table: TextTable, name: str) -> tuple[bool, bool, bool]:
    """What speaks against a column as the series, the strongest first."""
    texts = table.column(name)
    few = sum(text.lower() not in MISSING for text in texts) < FEWEST_VALUES
    return few, not as_plain(texts), AGAIN.sub("", name) != name and AGAIN.sub("", name) in table.header


FEWEST_VALUES = 10
AGAIN = re.compile(r" \(\d+\)$")
"""What a heading that comes twice ends with; the first column of that name is read."""
ROW_TITLES = re.compile(
    r"^(?:|#|(?:.*[\W_])?(?:id|no|nr|idx|index|row|instant|obs|rownum|record)|unnamed: ?\d+)[.\W]*$"
)
"""Headings of columns that number the rows, in small letters."""


def counts_rows(name: str, texts: Sequence[str]) -> bool:
    """Whether a column numbers the rows: it is called so, and goes up or down by one from each row to the next. A count
    of visits may do the same."""
    if not ROW_TITLES.match(name.lower()) or not all(map(str.isdigit, texts)):
        return False
    steps = {int(b) - int(a) for a, b in pairwise(texts)}
    return steps in ({1}, {-1})


def number_columns(table: TextTable, when: str | None) -> list[str]:
    """The columns of numbers, the last one first."""
    out = []
    for name in reversed(table.header):
        found: list[float | None] = [None]
        try:
            found = replace(table, rows=table.rows[:50]).numbers(name) if name != when else found
        except TableError:
            found = [0.0]  # numbers, written in two ways
        if None not in found and any(each == each for each in found):
            out.append(name)
    return out


MOST_KEY_COLUMNS = 10
"""Columns of a table up to which two or three of them together may tell its series apart."""


def chosen(
    table: TextTable, when: str | None, value: str, one: str | None, path: Path
) -> tuple[TextTable, str, list[str]]:
    """The rows of one series of a long table, its name, and what to say; the whole table, without a name, where it
    holds one."""
    times = table.column(when) if when is not None else []
    texts = [name for name in table.header if name not in (when, value)]
    groups: list[tuple[tuple[str, ...], list[str]]] = []
    repeated = len(set(times)) < len(times)
    widest = 3 if len(texts) <= MOST_KEY_COLUMNS else 1
    for names in (names for count in range(1, widest + 1) for names in combinations(texts, count)):
        if not repeated and one is None:
            break
        keys = keys_of_rows(table, names)
        kinds = list(dict.fromkeys(keys))
        long = repeated and len(set(zip(times, keys))) == len(times)
        if len(names) > 1 and 2 * len(keys) < len(kinds) * len(set(times)):
            long = False  # most series would lack most of the times: columns of values, a few times given twice
        if 1 < len(kinds) <= len(keys) // 2 and (one in kinds or long):
            groups.append((names, kinds))
            break
    if not groups:
        if one is not None:
            raise ValueError(f"{path} holds one series, no {one}; leave --series out.")
        return table, "", []
    names, kinds = groups[0]
    kept = one if one is not None else kinds[0]
    if kept not in kinds:
        raise ValueError(f"{path} has no series {kept} in column {' and '.join(names)}; it has {', '.join(kinds[:8])}.")
    said = f"{path.name} holds {len(kinds)} series ({', '.join(kinds[:5])}); {kept!r} is read, --series names another."
    picked = [at for at, key in enumerate(keys_of_rows(table, names)) if key == kept]
    rows, lines = tuple(table.rows[at] for at in picked), tuple(map(table.line, picked))
    return replace(table, rows=rows, lines=lines), kept, [said] if one is None else []


def keys_of_rows(table: TextTable, names: Sequence[str]) -> list[str]:
    """Key of each row's series in a long table: the cells of some columns."""
    return [" / ".join(cells) for cells in zip(*(table.column(name) for name in names))]


def checked_numbers(table: TextTable, name: str, path: Path) -> list[float]:
    """A column's values. Raises ValueError that names the row."""
    texts = table.column(name)
    try:
        found = table.numbers(name)
    except TableError as error:
        raise ValueError(f"{path}, column {name}: {error}") from error
    for at, (text, value) in enumerate(zip(texts, found)):
        if value is None:
            raise ValueError(
                f"{path}, row {table.line(at)}: {text[:40]!r} is not a number; give a number, or leave it empty."
            )
    return [value for value in found if value is not None]


SENTINELS = frozenset({-99.0, -999.0, -9999.0, -99999.0, -99.9, -999.9, -99.99, -999.99})
"""Numbers that instruments write where they have no value."""


def sentinel_said(values: Floats, place: str) -> list[str]:
    """What to say where the least value is one that often stands for none, far below the others."""
    known = values[np.isfinite(values)]
    least = float(known.min())
    others = known[known > least]
    if least not in SENTINELS or not len(others) or others.min() < least / 2:
        return []
    count = "once" if len(known) - len(others) == 1 else f"{len(known) - len(others)} times"
    return [f"{place}: {least:g} comes {count} and is read as a value; where it stands for none, leave the cell empty."]


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


LARGEST_VALUE = 1e100
"""Size of a value up to which errors can be squared."""


def _check(values: Floats, place: str) -> None:
    known = values[np.isfinite(values)]
    if len(known) and np.abs(known).max() > LARGEST_VALUE:
        raise ValueError(f"{place} holds {np.abs(known).max():g}, too large to be forecast; give a larger unit.")
    if len(known) < FEWEST_VALUES:
        raise ValueError(
            f"{place} has {len(known)} values; {FEWEST_VALUES} or more are needed. Give a row for each time: where "
            "times are headings, turn rows and columns round."
        )


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
