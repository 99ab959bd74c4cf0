"""Times that a table holds in several columns, as year and month or day and hour, joined in one."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import combinations

from .numbers import MISSING
from .tables import TextTable
from .times import MONTH_WORDS, PLAIN_NUMBER, SLASHED, TIME_COLUMNS, TimeError, known, lacking, parsed

PART_TITLES = {
    "year": "year yr jahr año ano anio année annee anno yyyy",
    "month": "month mon monat mois mes mês mese mm",
    "day": "day tag día dia jour giorno dd",
    "quarter": "quarter qtr quartal trimestre q",
    "week": "week wk woche kw semaine semana settimana",
    "hour": "hour hr stunde heure hora ora hh",
    "minute": "minute minuto min mi",
    "date": "date datum fecha data day tag dia giorno jour day_date 日期 日付",
    "clock": "time uhrzeit zeit hora heure ora clock hour stunde timestamp 时间 時間",
}
"""What columns that hold a part of a time are called."""
CLOCK = re.compile(r"^(\d{1,2}):(\d\d)(:\d\d(\.\d+)?)?( ?[AaPp]\.?[Mm]\.?)?$")
Cells = Sequence[str]


@dataclass(frozen=True, slots=True)
class TimeJoin:
    """Columns `at` that together hold one time, and the times as texts, one a row."""

    at: tuple[int, ...]
    whole: Cells

    @property
    def distinct(self) -> int:
        return len(set(self.whole))


def with_one_time(table: TextTable, value: str | None = None) -> TextTable:
    """A table whose times stand in several columns, with one column of times in place of them. Others as they are: also
    one in which a single column already tells the times, or in which date and another column tell the rows apart and
    an hour is a value. The column `value` is never part of a time."""
    joins = list(joins_of(table, value)) if len(table.rows) > 1 else []
    if not joins:
        return table
    if (alone := full_times(table, joins)) is not None:
        return put_first(table, alone, min(min(join.at) for join in joins))
    finest = sorted(joins, key=lambda join: -len(join.at))
    rows = len(table.rows)
    best = next((join for join in joins if join.distinct == rows), None)
    best = best or next((join for join in finest if is_long(table, join.whole, join.at)), None)
    best = best or next((join for join in finest if join.distinct >= MOSTLY_DISTINCT * rows), None)
    if best is None:
        return table
    begun = [row[best.at[0]] for row in table.rows]
    if is_long(table, begun, best.at) and not (best.distinct == rows and on_a_grid(best.whole)):
        return table
    return joined(table, best.at, best.whole)


MOSTLY_DISTINCT = 0.9
"""Share of distinct times from which times that come twice are a mistake in the table and no sign of another layout."""


def joins_of(table: TextTable, value: str | None) -> Iterator[TimeJoin]:
    """Every way to join columns to one time, where the first of them alone does not tell the rows apart."""
    for titles, make in TIME_WAYS:
        places = [place(table, title) for title in titles]
        if None in places or len(set(places)) < len(titles):
            continue
        at = tuple(each for each in places if each is not None)
        columns = [[row[each] for row in table.rows] for each in at]
        if len(set(columns[0])) == len(columns[0]) or value in [table.header[each] for each in at]:
            continue
        try:
            whole = make(*columns)
        except TimeError:  # days that can be read two ways: the table's own reading says so
            continue
        if whole is not None:
            yield TimeJoin(at, whole)


def full_times(table: TextTable, joins: Sequence[TimeJoin]) -> int | None:
    """A column of full times that tells at least as many times apart as any join does."""
    parts = {at for join in joins for at in join.at}
    most = max(join.distinct for join in joins)
    bare = not any(table.header[at].lower() in TIME_COLUMNS for at in parts)
    for at, name in enumerate(table.header):
        cells = [row[at] for row in table.rows]
        if at in parts or not (bare or name.lower() in TIME_COLUMNS) or len(set(cells)) < most:
            continue
        plain = all(PLAIN_NUMBER.match(cell) for cell in cells)
        if not plain and all(map(known, cells[:50])):
            return at
        if plain and name.lower() in TIME_COLUMNS and at < min(parts) and len(set(cells)) == len(cells):
            return at
    return None


def put_first(table: TextTable, at: int, part: int) -> TextTable:
    """The table with its column of full times before the parts of times, of which the first is at `part`."""
    if at < part:
        return table
    order = [at, *(each for each in range(len(table.header)) if each != at)]
    rows = tuple(tuple(row[each] for each in order) for row in table.rows)
    return replace(table, header=tuple(table.header[each] for each in order), rows=rows)


def tells_series(times: Cells, keys: Sequence[object]) -> bool:
    """Whether times come again, and a key tells the series apart that have a value each at one time."""
    if not 1 < len(set(keys)) <= len(keys) // 2 or len(set(times)) == len(times):
        return False
    return len(set(zip(times, keys))) == len(keys)


MOST_SERIES_KEYS = 6
"""Columns up to which two or three of them together may tell series apart."""


def is_long(table: TextTable, times: Cells, parts: Sequence[int]) -> bool:
    """Whether columns other than `parts` tell series apart, one below the other, with a row each at each time."""
    rows, keys = len(table.rows), []
    for at in (each for each in range(len(table.header)) if each not in parts):
        cells = [row[at] for row in table.rows]
        counts = all(COUNT_CELL.match(cell) or cell.lower() in MISSING for cell in cells)
        measured = not counts and all(DECIMAL_CELL.match(cell) or cell.lower() in MISSING for cell in cells)
        if not measured and 1 < len(set(cells)) <= rows // 2:
            keys.append((cells, counts))
    for count in range(1, 4 if len(keys) <= MOST_SERIES_KEYS else 2):
        for some in combinations(keys, count):
            together = list(zip(*(cells for cells, _ in some)))
            if not tells_series(times, together):
                continue
            sure = count == 1 and not some[0][1]  # numbers tell rows apart by chance: most series have most times
            if sure or 2 * rows >= len(set(together)) * len(set(times)):
                return True
    return False


COUNT_CELL, DECIMAL_CELL = re.compile(r"[+-]?\d+$"), re.compile(r"[+-]?\d*[.,]?\d+$")


def on_a_grid(texts: Cells) -> bool:
    """Whether times are at equal distances, with fewer gaps than times."""
    try:
        return lacking(parsed(texts, "the times")) <= len(texts)
    except TimeError:
        return False


def place(table: TextTable, part: str) -> int | None:
    names = [plain_title(name) for name in table.header]
    return next((names.index(title) for title in PART_TITLES[part].split() if title in names), None)


def plain_title(name: str) -> str:
    return name.strip("<>\"' ").lower()


def joined(table: TextTable, at: Sequence[int], whole: Cells) -> TextTable:
    """The table with `whole` in place of its columns `at`."""
    rest = [each for each in range(len(table.header)) if each not in at]
    names = " and ".join(table.header[each] for each in at)
    title = "datetime" if "datetime" not in map(str.lower, table.header) else "time of row"
    rows = tuple((time, *(row[each] for each in rest)) for time, row in zip(whole, table.rows))
    note = f"the columns {names} were joined to one time, as {whole[0]!r}."
    return replace(
        table,
        header=(title, *(table.header[each] for each in rest)),
        rows=rows,
        notes=(*table.notes, note),
        trimmed=True,
    )


def of_year_and_month(years: Cells, months: Cells) -> list[str] | None:
    found = [(year_of(year), month_of(month)) for year, month in zip(years, months)]
    return [f"{year}-{month:02}" for year, month in found if year and month] if all(map(all, found)) else None


def of_year_month_day(years: Cells, months: Cells, days: Cells) -> list[str] | None:
    begun = of_year_and_month(years, months)
    if begun is None or not all(re.fullmatch(r"0?[1-9]|[12]\d|3[01]", day) for day in days):
        return None
    return [f"{month}-{int(day):02}" for month, day in zip(begun, days)]


def of_year_and_quarter(years: Cells, quarters: Cells) -> list[str] | None:
    parts = [re.fullmatch(r"[QqTt]?\.?\s?([1-4])\.?|([1-4])[QqTt]", each) for each in quarters]
    if not all(map(year_of, years)) or not all(parts):
        return None
    return [f"{year_of(year)}-Q{part[1] or part[2]}" for year, part in zip(years, parts) if part]


def of_year_and_week(years: Cells, weeks: Cells) -> list[str] | None:
    parts = [re.fullmatch(r"(?:kw|w|wk)?\s?(0?[1-9]|[1-4]\d|5[0-3])", each.lower()) for each in weeks]
    if not all(map(year_of, years)) or not all(parts):
        return None
    return [f"{year_of(year)}-W{int(part[1]):02}" for year, part in zip(years, parts) if part]


def of_date_and_hour(dates: Cells, hours: Cells) -> list[str] | None:
    """Hours from 0 to 23; where 24 comes, an hour is called by its end."""
    if not all(re.fullmatch(r"(0?\d|1\d|2[0-4])", hour) for hour in hours):
        return None
    if all(map(SLASHED.match, dates)) and "24" not in hours:  # the whole tells days and months apart
        return [f"{day} {int(hour):02}:00" for day, hour in zip(dates, hours)]
    if (days := days_of(dates)) is None:
        return None
    return [str(day_and_seconds(day, 3600 * int(hour))) for day, hour in zip(days, hours)]


def of_date_hour_minute(dates: Cells, hours: Cells, minutes: Cells) -> list[str] | None:
    begun = of_date_and_hour(dates, hours)
    if begun is None or not all(re.fullmatch(r"[0-5]?\d", minute) for minute in minutes):
        return None
    return [f"{time[:-2]}{int(minute):02}" for time, minute in zip(begun, minutes)]


def of_year_to_hour(years: Cells, months: Cells, days: Cells, hours: Cells) -> list[str] | None:
    dates = of_year_month_day(years, months, days)
    return of_date_and_hour(dates, hours) if dates is not None else None


def of_year_to_minute(years: Cells, months: Cells, days: Cells, hours: Cells, minutes: Cells) -> list[str] | None:
    dates = of_year_month_day(years, months, days)
    return of_date_hour_minute(dates, hours, minutes) if dates is not None else None


def of_date_and_clock(dates: Cells, clocks: Cells) -> list[str] | None:
    """Clocks as 9:30, 09:30:00, 9:30 AM, 930, 0930 and 93000."""
    digits = all(map(str.isdigit, clocks)) and max(map(len, clocks)) in (3, 4, 5, 6)
    if digits:
        wide = 4 if max(map(len, clocks)) < 5 else 6
        clocks = [":".join(re.findall("..", each.zfill(wide))) for each in clocks]
    days = dates if all(map(SLASHED.match, dates)) else days_of(dates)
    if days is None or not all(map(CLOCK.match, clocks)):
        return None
    if any(each > f"{most}" for clock in clocks for each, most in zip(clock[:8].split(":")[1:], ("59", "59"))):
        return None
    return [f"{day} {clock}" if "m" in clock.lower() else f"{day} {clock.zfill(5 if clock.count(':') == 1 else 8)}"
            for day, clock in zip(days, clocks)]  # fmt: skip


TIME_WAYS: tuple[tuple[tuple[str, ...], Callable[..., list[str] | None]], ...] = (
    (("year", "month", "day"), of_year_month_day),
    (("year", "month", "day", "hour"), of_year_to_hour),
    (("year", "month", "day", "hour", "minute"), of_year_to_minute),
    (("year", "month"), of_year_and_month),
    (("year", "quarter"), of_year_and_quarter),
    (("year", "week"), of_year_and_week),
    (("date", "hour"), of_date_and_hour),
    (("date", "hour", "minute"), of_date_hour_minute),
    (("date", "clock"), of_date_and_clock),
)


def year_of(text: str) -> int | None:
    match = re.fullmatch(r"(?:FY ?)?((?:1[5-9]|20|21)\d\d)(?:\.0)?", text)
    return int(match[1]) if match else None


def month_of(text: str) -> int | None:
    low = text.lower().rstrip(".")
    if low in MONTH_WORDS:
        return MONTH_WORDS[low]
    match = re.fullmatch(r"m?(0?[1-9]|1[0-2])(?:\.0)?", low)
    return int(match[1]) if match else None


def days_of(texts: Cells) -> list[date] | None:
    """The days that texts are, if all are days. Raises TimeError where they can be read two ways."""
    distinct = list(dict.fromkeys(texts))
    if not all(known(each) or (len(each) == 8 and each.isdigit()) for each in distinct[:50]):
        return None
    found = dict(zip(distinct, parsed(distinct, "the days")))
    if any(time.hour or time.minute for time in found.values()):
        return None
    return [found[each].date() for each in texts]


def day_and_seconds(day: date, seconds: int) -> str:
    later, rest = divmod(seconds, 86400)
    return f"{day + timedelta(days=later)} {rest // 3600:02}:00"
