"""Price bars: open, high, low and close of equal spans of time, read from CSV."""

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.times import ordered

Floats = NDArray[np.float64]

QUANT_COLUMNS = ("open", "high", "low", "close")
BAR_TIME_COLUMNS = ("datetime", "date", "time", "timestamp")


@dataclass(frozen=True)
class Bars:
    """Bars in order of time: `time` as text, the prices as float64 [n]."""

    time: tuple[str, ...]
    open: Floats
    high: Floats
    low: Floats
    close: Floats

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
        )

    def last(self, count: int) -> "Bars":
        return self.part(max(0, len(self) - count), len(self))


def bars_of(rows: Sequence[Mapping[str, str]], place: str) -> Bars:
    """Bars from rows of text, in order of time. Raises ValueError that names the row and the column."""
    if not rows:
        raise ValueError(f"{place} holds no bars; give a CSV file with the columns {', '.join(QUANT_COLUMNS)}.")
    names = {name.strip().lower(): name for name in rows[0]}
    missing = [name for name in QUANT_COLUMNS if name not in names]
    if missing:
        raise ValueError(f"{place} has no column {missing[0]}; expected are {', '.join(QUANT_COLUMNS)}.")
    when = next((names[name] for name in BAR_TIME_COLUMNS if name in names), None)
    time = tuple(row[when] if when else str(index) for index, row in enumerate(rows))
    if when is not None:
        order = ordered(time, f"{place}, column {when}").order
        rows, time = [rows[at] for at in order], tuple(time[at] for at in order)
    prices = {name: _column(rows, names[name], place) for name in QUANT_COLUMNS}
    wrong = np.flatnonzero(
        (prices["high"] < np.maximum(prices["open"], prices["close"]))
        | (prices["low"] > np.minimum(prices["open"], prices["close"]))
    )
    if len(wrong):
        raise ValueError(
            f"{place}, bar {wrong[0] + 1}: open or close lies outside low to high; correct or drop the bar."
        )
    return Bars(time, **prices)


def _column(rows: Sequence[Mapping[str, str]], name: str, place: str) -> Floats:
    values = np.empty(len(rows))
    for index, row in enumerate(rows):
        try:
            values[index] = float(row[name])
        except (TypeError, ValueError):
            raise ValueError(f"{place}, bar {index + 1}: {name} is {row[name]!r}; expected is a number.") from None
        if not values[index] > 0 or not np.isfinite(values[index]):
            raise ValueError(f"{place}, bar {index + 1}: {name} is {row[name]}; expected is a positive price.")
    return values


def read_windows(path: Path) -> dict[str, Bars]:
    """Windows of bars by name, from a CSV file (.gz too); without a column `window`, one window."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    rows = list(csv.DictReader(text.splitlines()))
    groups: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault(row.get("window", "1"), []).append(row)
    if not groups:
        raise ValueError(f"{path} holds no bars; give a CSV file with the columns {', '.join(QUANT_COLUMNS)}.")
    return {name: bars_of(group, f"{path}, window {name}") for name, group in groups.items()}
