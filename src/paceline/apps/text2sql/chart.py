"""A chart of a result where one makes sense: names or times in one column, numbers in another."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..common.times import known
from .database import SqlResult

FEWEST_ROWS, MOST_BARS = 2, 60
"""Rows of a chart, at least and at most; a line may have twenty times as many."""


@dataclass(frozen=True, slots=True)
class SqlChart:
    """Values by label, as bars, or as a line where the labels are times or years in order."""

    label: str
    value: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    line: bool

    def as_dict(self) -> dict[str, Any]:
        return {"label": self.label, "value": self.value, "labels": list(self.labels), "values": list(self.values),
                "line": self.line}  # fmt: skip

    def draw(self, axes: Any) -> None:
        """Draw on matplotlib axes."""
        if self.line:
            axes.plot(self.labels, self.values, marker="o" if len(self.values) <= MOST_BARS else "")
            step = max(1, len(self.labels) // 8)
            axes.set_xticks(range(0, len(self.labels), step), self.labels[::step], rotation=20)
            axes.set_ylabel(self.value)
        else:
            axes.barh([each[:40] for each in self.labels], self.values)
            axes.invert_yaxis()
            axes.set_xlabel(self.value)


def chart(result: SqlResult) -> SqlChart | None:
    """None where no column of numbers stands next to one of names, or there are too few or many rows."""
    columns = list(zip(*result.rows)) if result.rows else []
    if len(columns) < 2 or not FEWEST_ROWS <= len(result.rows) <= 20 * MOST_BARS:
        return None
    times = [n for n, cells in enumerate(columns) if all(timed(cell) for cell in cells)]
    numeric = [n for n, cells in enumerate(columns) if n not in times and all(number(cell) for cell in cells)]
    names = times or [n for n in range(len(columns)) if n not in numeric]
    names = [n for n in names if len(set(map(str, columns[n]))) == len(columns[n])]
    if not numeric or not names:
        return None
    at, value = names[0], numeric[-1]
    labels = [str(cell) for cell in columns[at]]
    line = bool(times) and len(labels) > FEWEST_ROWS
    if line:
        order: Sequence[int] = sorted(range(len(labels)), key=lambda n: labels[n])
    elif len(labels) > MOST_BARS:
        return None
    else:
        order = range(len(labels))
    values = tuple(float(columns[value][n]) for n in order)
    return SqlChart(result.columns[at], result.columns[value], tuple(labels[n] for n in order), values, line)


def number(cell: Any) -> bool:
    return isinstance(cell, int | float | Decimal) and not isinstance(cell, bool)


def timed(cell: Any) -> bool:
    """A time as text, or a whole number that can be a year."""
    if isinstance(cell, str):
        return len(cell) >= 4 and cell[:4].isdigit() and known(cell)
    return isinstance(cell, int) and not isinstance(cell, bool) and 1800 <= cell <= 2200
