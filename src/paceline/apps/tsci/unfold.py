"""Tables whose headings are times, as one series: a row a year, a row a month, or a row a series."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import combinations, pairwise

from ..common.headings import heading_time, one_way
from ..common.numbers import MISSING
from ..common.one_time import PART_TITLES, days_of, month_of, plain_title
from ..common.tables import TextTable
from ..common.times import MONTH_WORDS, TIME_COLUMNS, TimeError

YEAR_CELL = re.compile(r"(?:FY ?)?((?:1[5-9]|20|21)\d\d)(?:[/-](\d\d|\d{4}))?", re.IGNORECASE)
"""A year, or two of a fiscal year, as 2021, FY2021 and 2021/22."""
YEAR_HEADINGS = TIME_COLUMNS - {"t", "index", "step"} | {
    "years", "yr", "jahre", "año", "ano", "anio", "année", "annee", "an", "anno", "fy",
}  # fmt: skip
"""Headings of columns of years: next to them 1 to 12 and t1 to t4 are months and quarters."""
FEWEST_TIMES = 3
"""Headings that are times, from which a table is one with a row for each series."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of the unfolded series: its time, its key where several series stand in the table, its text, and the
    number of its row."""

    time: str
    key: tuple[str, ...]
    text: str
    row: int


def unfolded(table: TextTable, column: str | None, one: str | None) -> tuple[TextTable, str | None, str | None]:
    """A table whose headings are times, as one with a column of times; the name of its column of values; and that of
    the series which was picked where each row is one. Others as they are. Raises ValueError for a series that there is
    not."""
    if column is not None:
        return table, None, None
    made = by_years(table) or by_months(table) or by_hours(table)
    return (*made, None) if made is not None else by_rows(table, one)


def by_years(table: TextTable) -> tuple[TextTable, str] | None:
    """A row for each year and a column for each month or quarter. Where years come several times other columns tell the
    rows apart, and stay."""
    heads, rows = table.header, table.rows
    others = [at for at, name in enumerate(heads) if period_place(name, "") is None]
    years_at = next((at for at in others if all(begins(row[at]) for row in rows)), None)
    if years_at is None:
        return None
    parts = [period_place(name, heads[years_at]) for name in heads]
    for count, form in ((12, "{}-{:02d}"), (4, "{}-Q{}")):
        found = [(part[1], at) for at, part in enumerate(parts) if part is not None and part[0] == count]
        places = dict(found)
        if sorted(places) != list(range(1, count + 1)) or len(found) != count:
            continue
        turned = [part for part, _ in found]
        first = turned[0]
        fiscal = turned == [(first + n - 1) % count + 1 for n in range(count)] and first > 1
        spans = any("/" in row[years_at] or "-" in row[years_at] for row in rows)
        several = len({row[years_at] for row in rows}) < len(rows)
        keys = [at for at in range(len(heads)) if several and at != years_at and at not in places.values()]
        order = sorted(range(len(rows)), key=lambda number: begins(rows[number][years_at]))
        cells = []
        for number in order:
            year = begins(rows[number][years_at])
            key = tuple(rows[number][at] for at in keys)
            for part in turned if fiscal else range(1, count + 1):
                time = form.format(year + (fiscal and part < first), part)
                cells.append(Cell(time, key, rows[number][places[part]], number))
        names = heads[places[turned[0]]], heads[places[turned[-1]]]
        said = f"the {count} columns {names[0]} to {names[1]} were read as one series."
        if fiscal:
            said += f" A year is taken to begin with {names[0]}: the first value is of {cells[0].time}."
        elif spans:
            said += f" Quarters are counted from the beginning of a fiscal year; the first is called {cells[0].time}."
        return folded_out(table, cells, heads[years_at], [heads[at] for at in keys], names, said)
    return None


def by_months(table: TextTable) -> tuple[TextTable, str] | None:
    """A row for each month, quarter or week and a column for each year."""
    heads, rows = table.header, table.rows
    years = [(int(time), at) for at, name in enumerate(heads) if (time := heading_time(name)) and time.isdigit()]
    rest = [at for at in range(len(heads)) if at not in [place for _, place in years]]
    if len(years) < 2 or not rest:
        return None
    body = [row for row in rows if row[rest[0]].lower().rstrip(":") not in {"", "total", "year", "sum", "average"}]
    for count, form in ((12, "{}-{:02d}"), (4, "{}-Q{}"), (52, "{}-W{:02d}"), (53, "{}-W{:02d}")):
        parts = [row_part(row[rest[0]], heads[rest[0]], count) for row in body]
        if sorted(part or 0 for part in parts) != list(range(1, count + 1)):
            continue
        by_part = {part: (row, rows.index(row)) for part, row in zip(parts, body)}
        cells = [
            Cell(form.format(year, part), (), by_part[part][0][at], by_part[part][1])
            for year, at in sorted(years)
            for part in range(1, count + 1)
            if part < 53 or by_part[part][0][at].lower() not in MISSING
        ]
        names = heads[sorted(years)[0][1]], heads[sorted(years)[-1][1]]
        said = f"the {len(years)} columns {names[0]} to {names[1]} were read as one series, a column a year."
        return folded_out(table, cells, heads[rest[0]] or "period", [], names, said)
    return None


def by_hours(table: TextTable) -> tuple[TextTable, str] | None:
    """A row for each day and a column for each hour."""
    heads, rows = table.header, table.rows
    found = [(int(match[1]), at) for at, name in enumerate(heads) if (match := HOUR_TITLE.match(name.strip()))]
    hours = [hour for hour, _ in found]
    if hours not in (list(range(24)), list(range(1, 25))) or plain_title(heads[0]) not in TIME_COLUMNS:
        return None
    try:
        days = days_of([row[0] for row in rows])
    except TimeError:
        return None
    if days is None or len(set(days)) < len(rows):
        return None
    order = sorted(range(len(rows)), key=lambda number: days[number])
    cells = [Cell(at_hour(days[row], hour), (), rows[row][at], row) for row in order for hour, at in found]
    names = heads[found[0][1]], heads[found[-1][1]]
    said = f"the 24 columns {names[0]} to {names[1]} were read as one series, a column an hour."
    return folded_out(table, cells, heads[0], [], names, said)


HOUR_TITLE = re.compile(r"^(?:h|hour|he)?[ _]?(\d{1,2})(?::00)?(?::00)?$", re.IGNORECASE)


def at_hour(day: date, hour: int) -> str:
    return f"{day + timedelta(days=hour // 24)} {hour % 24:02}:00"


def by_rows(table: TextTable, one: str | None) -> tuple[TextTable, str | None, str | None]:
    """A row for each series and a column for each time: one row is picked."""
    heads, rows = table.header, table.rows
    found = [(time, at) for at, name in enumerate(heads) if (time := heading_time(name)) is not None]
    rest = [at for at in range(len(heads)) if at not in [place for _, place in found]]
    if len(found) < FEWEST_TIMES or not rest or not one_way([time for time, _ in found]):
        return table, None, None
    if all(heading_time(row[rest[0]]) for row in rows) or steps_down(table, rest, len(found)):
        return table, None, None  # the rows have times of their own
    texts = [at for at in rest if not all(row[at].lower() in MISSING or is_number(row[at]) for row in rows)]
    labels = row_labels(rows, [[at] for at in texts] + [list(each) for n in (2, 3) for each in combinations(texts, n)])
    if labels is None:
        labels = row_labels(rows, [[at] for at in rest]) or [f"row {n}" for n in range(1, len(rows) + 1)]
    picked = 0
    if one is not None:
        alike = [at for at, label in enumerate(labels) if label == one] or [
            at for at, row in enumerate(rows) if one in [row[place] for place in rest]
        ]
        if len(alike) != 1:
            listed = ", ".join(labels[:8])
            word = "no series" if not alike else f"{len(alike)} series of"
            raise ValueError(f"There {'is' if not alike else 'are'} {word} {one}; the table has {listed}.")
        picked = alike[0]
    cells = [Cell(time, (), rows[picked][at], picked) for time, at in found]
    names = heads[found[0][1]], heads[found[-1][1]]
    said = f"the {len(found)} columns {names[0]} to {names[1]} are times; each row is a series."
    made, name = folded_out(table, cells, "time", [], names, said)
    if one is None and len(rows) > 1:
        listed = ", ".join(labels[:5])
        more = f"the table holds {len(rows)} series ({listed}); {labels[0]!r} is read, --series names another."
        made = replace(made, notes=(*made.notes, more))
    return made, name, labels[picked]


FEWEST_STEP_ROWS = 10
"""Rows from which a column can be a series of its own."""


def steps_down(table: TextTable, rest: Sequence[int], times: int) -> bool:
    """Whether the rows of a table with times as headings are steps of time, as the days of some years, a column each:
    the first of the other columns counts them, or rises and is called after a time, and none names them."""
    if len(table.rows) < FEWEST_STEP_ROWS:
        return False
    for at in rest[1:]:
        cells = [row[at] for row in table.rows]
        if len(set(cells)) == len(cells) and not all(is_number(cell) for cell in cells):
            return False
    cells = [row[rest[0]] for row in table.rows]
    if not all(map(is_number, cells)):
        return False
    steps = [float(cell) for cell in cells]
    if not all(a < b for a, b in pairwise(steps)):
        return False
    counts = steps[0] in (0, 1) and steps[-1] - steps[0] == len(steps) - 1
    return counts or times < FEWEST_STEP_ROWS or table.header[rest[0]].strip().lower() in TIME_COLUMNS


def row_labels(rows: Sequence[tuple[str, ...]], ways: Sequence[Sequence[int]]) -> list[str] | None:
    """What tells all rows apart: the cells of the first of some sets of columns that do."""
    for places in ways[:200]:
        labels = [" / ".join(filled) for row in rows if (filled := [row[at] for at in places if row[at]])]
        if len(set(labels)) == len(rows):
            return labels
    return None


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def folded_out(
    table: TextTable, cells: Sequence[Cell], when: str, keys: Sequence[str], names: tuple[str, str], said: str
) -> tuple[TextTable, str]:
    """The cells as a table with a row for each, without those that are empty before the first or after the last value
    of their series; and the name of the column of values."""
    filled: dict[tuple[str, ...], list[int]] = {}
    for at, cell in enumerate(cells):
        if cell.text.lower() not in MISSING:
            filled.setdefault(cell.key, []).append(at)
    kept = [c for at, c in enumerate(cells) if not filled or (c.key in filled and inside(at, filled[c.key]))]
    name = "value" if "value" not in table.header else " to ".join(names)
    rows = tuple((cell.time, *cell.key, cell.text) for cell in kept)
    lines = tuple(table.line(cell.row) for cell in kept)
    return TextTable((when, *keys, name), rows, (*table.notes, said), table.first, table.mark, True, lines), name


def inside(at: int, places: Sequence[int]) -> bool:
    return places[0] <= at <= places[-1]


def begins(cell: str) -> int:
    """The year in which a year, or a fiscal one such as 2021/22, begins; 0 for what is none."""
    match = YEAR_CELL.fullmatch(cell)
    if not match or (match[2] and int(match[2][-2:]) != (int(match[1]) + 1) % 100):
        return 0
    return int(match[1])


def row_part(cell: str, heading: str, count: int) -> int | None:
    """A row's month of 12 or quarter of 4."""
    if count > 12:
        week = re.fullmatch(r"(?:kw|w|wk)?\s?(\d{1,2})", cell.lower())
        return int(week[1]) if week and plain_title(heading) in PART_TITLES["week"].split() else None
    found = period_place(cell, "year" if plain_title(heading) in (*TIME_COLUMNS, "") else "")
    if found is not None and found[0] == count:
        return found[1]
    named = plain_title(heading) in ("quarter", "quartal", "trimestre", "qtr", "q")
    if count == 4:
        return int(cell) if named and cell in ("1", "2", "3", "4") else None
    return None if named else month_of(cell) if found is not None else None


def period_place(heading: str, years: str) -> tuple[int, int] | None:
    """(12, month) or (4, quarter) of a heading that names one, else None. `years`: the heading of the years."""
    low = heading.strip().lower().rstrip(".")
    if low in MONTH_WORDS:
        return 12, MONTH_WORDS[low]
    sure = years.strip().lower() in YEAR_HEADINGS
    if match := re.fullmatch(r"[qt]([1-4])|([1-4])[qt]" if sure else r"q([1-4])|([1-4])q", low):
        return 4, int(match[1] or match[2])
    return (12, int(low)) if sure and re.fullmatch(r"0?[1-9]|1[0-2]", low) else None
