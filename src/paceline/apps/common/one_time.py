"""Times that a table holds in several columns, as year and month or day and hour, joined in one."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, timedelta

from .tables import TextTable
from .times import MONTH_WORDS, SLASHED, known, parsed

PART_TITLES = {
    "year": "year yr jahr año ano anio année annee anno yyyy",
    "month": "month mon monat mois mes mês mese mm",
    "day": "day tag día dia jour giorno dd",
    "quarter": "quarter qtr quartal trimestre q",
    "week": "week wk woche kw semaine semana settimana",
    "hour": "hour hr stunde heure hora ora hh",
    "date": "date datum fecha data day tag dia giorno jour day_date 日期 日付",
    "clock": "time uhrzeit zeit hora heure ora clock hour stunde timestamp 时间 時間",
}
"""What columns that hold a part of a time are called."""
CLOCK = re.compile(r"^(\d{1,2}):(\d\d)(:\d\d(\.\d+)?)?( ?[AaPp]\.?[Mm]\.?)?$")
Cells = Sequence[str]


def with_one_time(table: TextTable) -> TextTable:
    """A table whose times stand in several columns, with one column of times in place of them; others as they are."""
    if len(table.rows) < 2:
        return table
    for titles, make in TIME_WAYS:
        places = [place(table, title) for title in titles]
        if None in places or len(set(places)) < len(titles):
            continue
        at = [each for each in places if each is not None]
        columns = [[row[each] for row in table.rows] for each in at]
        whole = make(*columns) if len(set(columns[0])) < len(columns[0]) else None
        if whole is not None:
            return joined(table, at, whole)
    return table


def place(table: TextTable, part: str) -> int | None:
    titles = PART_TITLES[part].split()
    return next((at for at, name in enumerate(table.header) if plain_title(name) in titles), None)


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
    (("year", "month"), of_year_and_month),
    (("year", "quarter"), of_year_and_quarter),
    (("year", "week"), of_year_and_week),
    (("date", "hour"), of_date_and_hour),
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
