"""Headings of tables: whether the first rows are some, what stands above them, and headings over several lines."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .numbers import MISSING, number
from .times import day_or_year, known, one
from .units import TIME_FORM, unit_like

TABLE_SUMS = frozenset({"total", "totals", "sum", "grand total", "average", "mean", "summe", "gesamt", "gesamtsumme",
                  "suma", "somme", "totale"})  # fmt: skip
YEAR_TITLE = re.compile(r"^(?:FY|X|Y|YR)?[ -]?((?:1[5-9]|20|21)\d\d)(?: \[YR\1\])?$", re.IGNORECASE)
"""A year as a heading: 2021, FY2021, X2021 of R and 2021 [YR2021] of the World Bank."""
BRACKETED = re.compile(r"^\(.*\)$")
"""An amount below nothing in a row of values; above one, the number of a column."""
TRIMESTER_CODE = re.compile(r"^[Tt]\d{5}$")
SHORT_YEAR = re.compile(r"^(?!\w{3})[^']*[^\d']\d\d$")
"""Headings that are codes more often than times: T12001, and Q1 23 without an apostrophe."""
FOOT_LINE = re.compile(
    r"^(?:[*©†‡]|(?:sources?|quellen?|fuentes?|fonte|notes?|nota|hinweis|anmerkung|remarks?|stand|updated)\s*:|"
    r"(?:data from|last updated|downloaded|retrieved|copyright)\b)",
    re.IGNORECASE,
)
"""What a line below a table begins with."""
MANY_YEARS = 4
"""Years next to each other that are headings also where some between them are left out."""
Rows = Sequence[Sequence[str]]


def captions(rows: Sequence[Sequence[str]]) -> int:
    """How many rows stand above the table's headings: those with fewer cells than most rows, or with their first one
    alone. A row of several cells is one only where headings follow for sure."""
    wide = [max(at for at, cell in enumerate(row, 1) if cell) for row in rows[:200]]
    usual = max(set(wide), key=wide.count)
    for at, row in enumerate(rows[: len(wide)]):
        if not row[0] and sum(map(bool, row)) > 1 and (len(row) >= usual or times_across(rows[at + 1 :])):
            return at  # merged headings
        alone = row[0] and not any(row[1:]) and not value_like(row[0])
        if usual == 1 or not (len(row) < usual or alone):
            short = max(wide[:at], default=0)
            return at if short < 2 or headed(rows[at:]) else 0
    return 0


def lines_of(count: int) -> str:
    return "a line" if count == 1 else f"{count} lines"


def sums(row: Sequence[str]) -> bool:
    """Whether a row adds up or averages those above, as exports have it at their end."""
    return row[0].lower().rstrip(":") in TABLE_SUMS


def titled(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header: it has a text where the others have numbers or times, or no number at all."""
    return headed(rows) is not False


def headed(rows: Sequence[Sequence[str]]) -> bool | None:
    """Whether the first row is a header; None where no column of numbers or times tells."""
    if times_across(rows):
        return True
    rest = rows[1:20]
    for at, cell in enumerate(rows[0]):
        below = [row[at] for row in rest if at < len(row) and row[at].lower() not in MISSING]
        if below and all(value_like(each) for each in below) and not BRACKETED.match(cell):
            return not value_like(cell)
    return None


def value_like(text: str) -> bool:
    """A number or something that begins or ends with digits, as a date does."""
    return number(text) is not None or bool(re.match(r"^\d{1,4}[-/. ]\S*\d", text))


def times_across(rows: Rows) -> bool:
    """Whether the first row has times that go on in one direction, such as 2019, 2020, 2021, over columns of numbers:
    these are headings, though they look like numbers. Its other cells must be texts."""
    if not rows or len(rows) < 2 or value_like(rows[0][0]):
        return False
    heads = [(at, time) for at, cell in enumerate(rows[0]) if (time := heading_time(cell)) is not None]
    if len(heads) < 2 or not one_way([time for _, time in heads]):
        return False
    places = {at for at, _ in heads}
    below = [row[at] for row in rows[1:20] for at in places if at < len(row) and row[at].lower() not in MISSING]
    first = [rows[1][at] for at in places if at < len(rows[1]) and rows[1][at].lower() not in MISSING]
    if first and not any(number(each) is not None for each in first):
        return False  # headings over headings
    return (
        not any(value_like(cell) for at, cell in enumerate(rows[0]) if at not in places)
        and bool(below)
        and 2 * sum(number(each) is not None for each in below) > len(below)
        and not all(heading_time(each) for each in below)
    )


def heading_time(cell: str) -> str | None:
    """A heading that is a time in itself, in a form that `times` reads; None for others."""
    cell = cell.strip()
    if match := YEAR_TITLE.match(cell):
        return match[1]
    if cell.isdigit() or TRIMESTER_CODE.match(cell):
        return None
    return cell if known(cell) or (known(cell, True) and not SHORT_YEAR.match(cell)) else None


def one_way(times: Sequence[str]) -> bool:
    """Whether times of one kind rise or fall all along."""
    if day_or_year(times):
        return False
    years = all(map(str.isdigit, times))
    keys: list[Any] = [int(each) if years else one(each) or each for each in times]
    if len({type(key) for key in keys}) > 1:
        return False
    if years and len(keys) < MANY_YEARS and {abs(a - b) for a, b in pairwise(keys)} != {1}:
        return False
    if isinstance(keys[0], str):  # 03/01/2024: which of the first two is the month shows later
        return len(set(keys)) == len(keys)
    try:
        rises = [a < b for a, b in pairwise(keys)]
    except TypeError:
        return False
    return len(set(keys)) == len(keys) and len(set(rises)) == 1


def joined_heads(rows: Rows) -> tuple[tuple[str, ...], str] | None:
    """Headings over two lines as one, and what to say; None where the second row is one of values. Cells that are empty
    in the first line belong to the heading left of them, as merged cells are written; where none is empty, a second
    line of units alone is left out."""
    if len(rows) < 3 or len(rows[1]) > len(rows[0]) + 1:
        return None
    top, below, rest = list(rows[0]), list(rows[1]), rows[2:22]
    top += [""] * (len(below) - len(top))
    below += [""] * (len(top) - len(below))
    held = [
        at
        for at in range(len(top))
        if (cells := [row[at] for row in rest if at < len(row) and row[at].lower() not in MISSING])
        and all(number(each) is not None for each in cells)
    ]
    texts = [at for at in held if below[at].lower() not in MISSING]
    merged = not all(top[at] for at in texts) and times_across(rows[1:])
    if not texts or times_across(rows) or not (merged or all(number(below[at]) is None for at in texts)):
        return None
    if any(value_like(below[at]) for at in range(len(below)) if at not in held):
        return None
    if all(top[at] for at in texts) and len({top[at] for at in texts}) == len(texts):
        if not all(is_unit(cell, at in held) for at, cell in enumerate(below)):
            return None
        return tuple(top), f"the line under the headings, as {below[texts[0]]!r}, was left out."
    if not merged and any(top[at] and below[at] for at in range(len(top)) if at not in held):
        return None
    whole, above = [], ""
    for at, (high, low) in enumerate(zip(top, below)):
        above = high or (above if at in held else "")
        whole.append(f"{above} {low}".strip())
    if len(set(whole)) < len(whole):
        return None
    return tuple(whole), f"two lines of headings were joined, as {whole[texts[0]]!r}."


def is_unit(cell: str, held: bool) -> bool:
    """Whether a cell may stand in a line of units. `held`: over a column of numbers; others have none or say how their
    times are written."""
    if cell.lower() in MISSING or (unit_like(cell) and (held or len(cell) > 1)):
        return True
    return not held and bool(TIME_FORM.match(cell.strip("()[] ")))


def is_foot(row: Sequence[str], first_cells: Sequence[str]) -> bool:
    """Whether a last row is a line below the table: its first cell alone is filled, with a remark, or with a text where
    the rows have numbers or times."""
    if not row[0] or any(row[1:]) or value_like(row[0]):
        return False
    return bool(FOOT_LINE.match(row[0])) or all(value_like(cell) for cell in first_cells if cell)


def distinct(header: Sequence[str], as_duckdb: bool = False) -> tuple[tuple[str, ...], list[str]]:
    """Headings that come twice with a number behind, and what to say. `as_duckdb`: the number that DuckDB gives."""
    made: list[str] = []
    for at, name in enumerate(header):
        count = header[:at].count(name) + 1
        form = "{}_{}" if as_duckdb else "{} ({})"
        count -= as_duckdb
        new = form.format(name, count)
        while new in header or new in made:
            count += 1
            new = form.format(name, count)
        made.append(new if name and name in header[:at] else name)
    again = next((name for name, given in zip(made, header) if name != given), None)
    return tuple(made), [] if again is None else [f"a heading comes twice; the second is called {again}."]
