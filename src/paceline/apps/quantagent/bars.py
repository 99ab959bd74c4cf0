"""Price bars: open, high, low and close of equal spans of time, read from CSV."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.numbers import MISSING, decimal_comma, number
from ..common.one_time import tells_series, with_one_time
from ..common.tables import TextTable, read_table
from ..common.times import TIME_COLUMNS, known, ordered

Floats = NDArray[np.float64]

QUANT_COLUMNS = ("open", "high", "low", "close")
BAR_TIME_COLUMNS = ("datetime", "date", "time", "timestamp")
PRICE_TITLES = {
    "open": "open o eröffnung eröffnungskurs erster ouverture ouv apertura aper abertura 开盘 開盤 開盤價 始値 시가",
    "high": "high h hoch höchst plus_haut haut máximo maximo máx massimo max 最高 最高價 高値 고가",
    "low": "low l tief tiefst plus_bas bas mínimo minimo mín min 最低 最低價 安値 저가",
    "close": "close c schluss schlusskurs clôture cloture cierre chiusura fechamento 收盘 收盤 收盤價 終値 종가",
}
"""What exports call the prices of a bar, in several languages; the English name goes before."""
CLOSE_CALLED = ("price", "last", "kurs", "zuletzt", "dernier", "último", "ultimo", "prezzo", "precio")
"""Headings of the close in exports that have no column of that name."""
SYMBOL_TITLES = ("window", "symbol", "ticker", "asset", "pair", "instrument", "code", "isin")
"""Headings of the columns that tell assets of one file apart."""


@dataclass(frozen=True)
class Bars:
    """Bars in order of time: `time` as text, the prices as float64 [n]."""

    time: tuple[str, ...]
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    notes: tuple[str, ...] = ()
    """How the file was read, in words."""

    def __len__(self) -> int:
        return len(self.time)

    def part(self, start: int, stop: int) -> "Bars":
        """Bars [start, stop), copied: the part gives no access to the bars after it."""
        span = slice(start, stop)
        return Bars(
            self.time[span],
            self.open[span].copy(),
            self.high[span].copy(),
            self.low[span].copy(),
            self.close[span].copy(),
            self.notes,
        )

    def last(self, count: int) -> "Bars":
        return self.part(max(0, len(self) - count), len(self))

    def mirrored(self) -> "Bars":
        """Bars upside down, about the last close: each rise is a fall of the same ratio."""
        square = float(self.close[-1]) ** 2
        return Bars(self.time, square / self.open, square / self.low, square / self.high, square / self.close)


def bars_of(rows: Sequence[Mapping[str, str]], names: Mapping[str, str], place: str, mark: str) -> Bars:
    """Bars from rows of text, in order of time; rows without any price are left out. `names` are the headings, by
    `headings`; `mark` parts the file's columns. Raises ValueError that names the row and the column."""
    rows = [row for row in rows if any(row[names[name]].lower() not in MISSING for name in QUANT_COLUMNS)]
    when = names.get("time")
    time = tuple(row[when] if when else str(index) for index, row in enumerate(rows))
    notes: tuple[str, ...] = (f"{place}: there is no column of times; the first row is taken to be the oldest.",)
    if when is not None:
        read = ordered(time, f"{place}, column {when}")
        rows, time, notes = [rows[at] for at in read.order], tuple(time[at] for at in read.order), read.notes
    prices = {name: _column(rows, names[name], place, mark) for name in QUANT_COLUMNS}
    slack = 1e-9 * prices["high"]
    wrong = np.flatnonzero(
        (prices["high"] + slack < np.maximum(prices["open"], prices["close"]))
        | (prices["low"] - slack > np.minimum(prices["open"], prices["close"]))
    )
    if len(wrong):
        raise ValueError(
            f"{place}, bar {wrong[0] + 1}: open or close lies outside low to high; correct or drop the bar."
        )
    return Bars(time, **prices, notes=notes)


def headings(header: Sequence[str], place: str) -> dict[str, str]:
    """The file's headings by those that bars need, and under "time" that of the times where there is one. Raises
    ValueError where a price has no column or several."""
    found: dict[str, str] = {}
    letters = all(each in map(str.lower, header) for each in "ohlc")
    for wanted in QUANT_COLUMNS:
        titles = [
            each.replace("_", " ") for each in PRICE_TITLES[wanted].split() if len(each) > 1 or each > "z" or letters
        ]
        alike = [name for name in header if exact(name) == wanted] or [n for n in header if plain(n) == wanted]
        alike = alike or [name for name in header if exact(name) in titles or plain(name) in titles]
        if wanted == "close" and not alike:
            alike = [name for name in header if plain(name) in CLOSE_CALLED]
        if not alike:
            raise ValueError(
                f"{place} has no column {wanted}; expected are {', '.join(QUANT_COLUMNS)}. Write them above the prices."
            )
        if len(alike) > 1:
            raise ValueError(
                f"{place} has several columns {wanted} ({', '.join(alike)}); keep one, under the name {wanted}."
            )
        found[wanted] = alike[0]
    low = {exact(name): name for name in reversed(header)}
    called_times = [low[name] for name in (*BAR_TIME_COLUMNS, *sorted(TIME_COLUMNS - {"index", "step"})) if name in low]
    worded = [name for name in header if {"time", "date", "timestamp"} & set(re.split(r"[^a-z]+", name.lower()))]
    if times := called_times or worded:
        found["time"] = times[0]
    return found


def exact(name: str) -> str:
    """A heading in small letters, without <> around it or a number behind that makes it distinct."""
    return re.sub(r" \(\d+\)$", "", name.lower().strip(" <>'\"."))


def plain(name: str) -> str:
    """A heading without what is around the price's name, as in `('Close', 'AAPL')` and `Close AAPL` of yfinance."""
    return re.split(r"[\W\d_]+", name.lower().strip(" ('\"<>"))[0]


def _column(rows: Sequence[Mapping[str, str]], name: str, place: str, mark: str) -> Floats:
    values, comma = np.empty(len(rows)), decimal_comma([row[name] for row in rows], mark)
    for index, row in enumerate(rows):
        value = number(row[name], comma)
        if value is None:
            raise ValueError(f"{place}, bar {index + 1}: {name} is {row[name]!r}; expected is a number.")
        values[index] = value
        if not value > 0:
            raise ValueError(f"{place}, bar {index + 1}: {name} is {row[name]}; expected is a positive price.")
    return values


def with_headings(table: TextTable) -> TextTable:
    """A table without headings, as trading programs and exchanges write it: time, or day and time of day, then open,
    high, low and close. Others as they are, also where high and low are not what their places say."""
    if table.header[:2] != ("column1", "column2") or len(table.header) < 5:
        return table
    clock = all(re.fullmatch(r"\d?\d:\d\d(:\d\d)?", row[1]) for row in table.rows)
    times = [row[1] if row[1][2] == ":" else f"0{row[1]}" for row in table.rows] if clock else []
    rows = (
        tuple((f"{row[0]} {at}", *row[2:]) for row, at in zip(table.rows, times, strict=True)) if clock else table.rows
    )
    header = ("datetime", *QUANT_COLUMNS, *table.header[6 if clock else 5 :])
    for row in rows:
        prices = [number(cell) for cell in row[1:5]]
        known = [price for price in prices if price is not None]
        if len(known) < 4 or known[1] < max(known) or known[2] > min(known):
            return table
    return replace(table, header=header, rows=rows)


def read_windows(path: Path) -> dict[str, Bars]:
    """Windows of bars by name, from a CSV file (.gz too, and as yfinance writes it); without a column `window`, one
    window."""
    table = with_one_time(with_headings(read_table(path)))
    groups: dict[str, list[Mapping[str, str]]] = {}
    names = headings(table.header, str(path))
    if "time" not in names:
        found = [name for name in table.header if name not in names.values() and times_in(table.column(name))]
        names |= {"time": found[0]} if found else {}
    called = [name for wanted in SYMBOL_TITLES for name in table.header if exact(name) == wanted]
    tells = next((name for name in called if exact(name) == "window" or several(table, name, names.get("time"))), None)
    for row in (dict(zip(table.header, cells)) for cells in table.rows):
        groups.setdefault(row[tells] if tells is not None else "1", []).append(row)
    if not groups:
        raise ValueError(f"{path} holds no bars; give a CSV file with the columns {', '.join(QUANT_COLUMNS)}.")
    made = {name: bars_of(group, names, f"{path}, window {name}", table.mark) for name, group in groups.items()}
    return {name: replace(bars, notes=(*table.notes, *bars.notes)) for name, bars in made.items()}


def several(table: TextTable, tells: str, when: str | None) -> bool:
    """Whether the rows of a file are of several assets that a column tells apart: times come again, and once for each.
    Where no time comes again, the column may count rows, or name the contract of one series that was the nearest."""
    return when is not None and tells_series(table.column(when), table.column(tells))


def times_in(texts: Sequence[str]) -> bool:
    """Whether texts are times, written as no number is."""
    return bool(texts) and all(known(text) and number(text) is None for text in texts[:50])
