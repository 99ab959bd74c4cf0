"""Times as text in the first column of users' files: parsed, put in order, and refused where they can be read two ways.

read = ordered(["31/12/2023", "30/12/2023", ...], "prices.csv, column Date")
read.order      # the rows in order of time
read.notes      # what was done, in words
"""

import re
from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Literal

from .time_numbers import written_out

TIME_COLUMNS = frozenset(
    {
        "datetime", "date", "time", "timestamp", "ds", "day", "month", "year", "period", "index", "step", "t", "datum",
        "zeit", "zeitpunkt", "fecha", "jour", "mois", "monat", "jahr", "week", "quarter", "date_time", "date time",
        "open time", "open_time", "opentime", "gmt time", "local time", "unix", "epoch", "woche", "quartal", "uhrzeit",
        "buchungstag", "año", "mes", "semana", "hora", "année", "semaine", "heure", "trimestre", "anno", "mese", "mês",
        "fiscal year", "日付", "日期", "时间", "時間", "日時", "날짜", "дата",
    }
)  # fmt: skip
"""Headers of columns that hold times."""
SLASHED = re.compile(r"^(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?:[ T,]+(.+))?$")
PLAIN_NUMBER = re.compile(r"^[+-]?\d+(\.\d+)?$")
FORMATS = (
    "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y.%m.%d", "%Y.%m.%d %H:%M", "%Y.%m.%d %H:%M:%S", "%Y-%m",
    "%Y/%m", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%d. %b %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y",
    "%B %d %Y", "%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Y-%b",
    "%A, %b %d, %Y", "%A, %d %b %Y", "%a, %d %b %Y", "%a %d %b %Y", "%a %b %d %Y",
    "%a, %d %b %Y %H:%M:%S %Z", "%Y%m%dT%H%M%S",
)  # fmt: skip
HEADED_FORMATS = ("%Y %b", "%b %y", "%m/%Y", "%m-%Y")
"""Forms that codes and days without a year have too: times only under a heading of times."""
MONTH_AND_NUMBER = re.compile(r"^([^\W\d_]{3,})\.? \d\d$")
CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
QUARTER = re.compile(r"^(?P<year>\d{4})[-/ ]?[QqTt](?P<part>[1-4])$|^[QqTt](?P<part2>[1-4])[-/ ]?(?P<year2>\d{4})$")
PART_FIRST = re.compile(
    r"^(?:[Qq](?P<q>[1-4])(?:[-/ ]'?|')|(?P<n>[1-4])[Qq][-/ ]?'?|[HhSs](?P<half>[12])(?:[-/ ]'?(?=\d{4}$)|'))"
    r"(?P<year>\d{4}|\d{2})$"
)
YEAR_FIRST = re.compile(r"^(?:FY ?)?(?P<year>\d{4})[-/ ]?(?:[QqTt](?P<q>[1-4])|[HhSs](?P<half>[12]))$")
"""Quarters and halves of years under a heading of times: Q1'23, 1Q23, H1 2023, 2023-H2. H101 and T1-15 are codes."""
CJK_DAY = re.compile(r"^(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월](?:\s?(\d{1,2})\s?[日일])?$")
MONTH_WORDS = {
    word: number
    for number, words in enumerate(
        ("jan january januar janv janvier ene enero gen gennaio", "feb february februar févr fevr février fév febrero "
         "febbraio", "mar march mär märz mrz maerz mars marzo", "apr april avr avril abr abril aprile",
         "may mai mayo mag maggio", "jun june juni juin junio giu giugno",
         "jul july juli juil juillet julio lug luglio",
         "aug august août aout ago agosto", "sep sept september septembre septiembre set settembre",
         "oct october okt oktober octobre octubre ott ottobre", "nov november novembre noviembre",
         "dec december dez dezember déc décembre dic diciembre dicembre"), start=1)
    for word in words.split()
}  # fmt: skip
"""Months as English, German, French, Spanish and Italian name them, in small letters and without a stop."""
WORD = re.compile(r"[^\W\d_]{3,}\.?")
Unit = Literal["", "seconds", "days", "business days", "months"]
DAY = 86400.0
MANY_TIMES_MORE = 10
"""Ratio of gaps above which the order of day and month with fewer gaps is taken."""


class TimeError(ValueError):
    """Times that cannot be used; the text is a sentence that says which and what to do."""


@dataclass(frozen=True, slots=True)
class ParsedTimes:
    """Rows in order of time. `step` is the usual distance in `unit` ("" where the column holds no times); `missing`
    says how many steps lack before each row but the first."""

    order: tuple[int, ...]
    unit: Unit = ""
    step: float = 0.0
    missing: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    last: datetime | None = None
    """The newest time, where the column holds times."""
    last_number: float | None = None
    """The greatest number, where it holds numbers at equal distances, as years are."""

    def following(self, count: int) -> list[str]:
        """The next `count` times in ISO form, or numbers; empty where they are at no equal distance."""
        if self.last_number is not None:
            return [f"{self.last_number + self.step * number:.15g}" for number in range(1, count + 1)]
        if self.last is None or not self.unit:
            return []
        made = [after(self.last, self.unit, self.step, number) for number in range(1, count + 1)]
        clock = any(each.time() != time() for each in (self.last, *made))
        return [each.isoformat(" ", "seconds") if clock else each.date().isoformat() for each in made]


def after(begun: datetime, unit: Unit, step: float, number: int) -> datetime:
    """The time `number` steps later; the last day of a month stays one."""
    if unit == "seconds":
        return begun + timedelta(seconds=step * number)
    if unit == "days":
        return begun + timedelta(days=step * number)
    if unit == "business days":
        at = begun
        for _ in range(number):
            at += timedelta(days={4: 3, 5: 2}.get(at.weekday(), 1))
        return at
    months = begun.year * 12 + begun.month - 1 + round(step) * number
    year, month = months // 12, months % 12 + 1
    longest = monthrange(year, month)[1]
    ends = begun.day == monthrange(begun.year, begun.month)[1]
    return begun.replace(year=year, month=month, day=longest if ends else min(begun.day, longest))


def ordered(texts: Sequence[str], place: str, named: bool = True) -> ParsedTimes:
    """Raises TimeError for times that cannot be read, can be read two ways, or come twice. `place` ends with the
    column's name. `named`: this name says that the column holds times; without that a column of other texts is taken
    as none."""
    cleaned = [" ".join(text.split()) for text in texts]
    plain = tuple(range(len(cleaned)))
    bare = named and all(PLAIN_NUMBER.match(text) for text in cleaned)
    if bare and (made := written_out(cleaned, place.rpartition(", column ")[2])) is not None:
        read = ordered(made[0], place)
        return replace(read, notes=(f"{place}: the numbers were read as {made[1]}.", *read.notes))
    if all(PLAIN_NUMBER.match(text) for text in cleaned) and not dated(cleaned):
        return numbers([float(text) for text in cleaned], place, named)
    if not named and not any(known(text) for text in cleaned):
        said = f"{place}: {cleaned[0][:40]!r} is not read as a time; the rows are taken in the order of the file."
        return ParsedTimes(plain, notes=(said,) if cleaned else ())
    found = parsed(cleaned, place)
    order = tuple(sorted(plain, key=lambda at: found[at]))
    inside = [found[at] for at in order]
    twice(inside, [cleaned[at] for at in order], place)
    unit, step, missing = distances(inside)
    notes = [] if order == plain else [f"{place}: the rows were put in order of time."]
    if lacking := sum(missing):
        at = next(at for at, count in enumerate(missing) if count)
        word = "time is" if lacking == 1 else "times are"
        notes.append(
            f"{place}: {lacking} {word} missing, the first after {cleaned[order[at]]}; values there are unknown."
        )
    elif not unit:
        notes.append(f"{place}: the times are not at equal distances; they are taken as if they were.")
    return ParsedTimes(order, unit, step, missing, tuple(notes), inside[-1])


def dated(texts: Sequence[str]) -> bool:
    """Numbers of eight digits that are all days, as 20231231."""
    return all(
        len(text) == 8 and text.isdigit() and "1800" < text[:4] < "2200" and attempt("%Y%m%d")(text) for text in texts
    )


def numbers(values: Sequence[float], place: str, named: bool) -> ParsedTimes:
    """Steps or seconds as numbers: put in order where the column is one of times."""
    plain = tuple(range(len(values)))
    falling = all(a > b for a, b in pairwise(values))
    if not named and not falling and not all(a < b for a, b in pairwise(values)):
        return ParsedTimes(plain)
    order = tuple(sorted(plain, key=lambda at: values[at]))
    inside = [values[at] for at in order]
    twice(inside, [f"{value:g}" for value in inside], place)
    note = () if order == plain else (f"{place}: the rows were put in order of time.",)
    steps = {round(b - a, 9) for a, b in pairwise(inside)}
    if len(steps) != 1:
        return ParsedTimes(order, "", 0.0, (), note)
    return ParsedTimes(order, "", steps.pop(), (), note, last_number=inside[-1])


def twice(inside: Sequence[object], texts: Sequence[str], place: str) -> None:
    for (one, text), (other, _) in pairwise(zip(inside, texts)):
        if one == other:
            raise TimeError(f"{place}: the time {text} comes twice; keep one row for each time.")


def known(text: str, named: bool = False) -> bool:
    """Whether a text is a time. `named`: it stands under a heading of times, where Q1 23 is one as well."""
    return SLASHED.match(text) is not None or one(text, named) is not None


def parsed(texts: Sequence[str], place: str) -> list[datetime]:
    """All texts as times of one kind. Raises TimeError."""
    slashed = [SLASHED.match(text) for text in texts]
    if all(slashed):
        return by_slashes([match.groups() for match in slashed if match], texts, place)
    found = [one(text) for text in texts]
    for number, (text, value) in enumerate(zip(texts, found), start=2):
        if value is None:
            raise TimeError(
                f"{place}, row {number}: {text[:40]!r} is no time that can be read; write it as 2023-12-31 or "
                "2023-12-31 14:30, all rows alike."
            )
    values = [value for value in found if value is not None]
    if all(map(MONTH_AND_NUMBER.match, texts)):
        distinct = sorted(set(values))
        if day_or_year(texts) or (len(distinct) > 2 and not distances(distinct)[0]):
            raise TimeError(
                f"{place}: {texts[0]!r} may be a day or a month of a year; write it as 2023-12-31 or 2023-12, all rows "
                "alike."
            )
    if len({value.tzinfo is None for value in values}) > 1:
        raise TimeError(f"{place}: some times have a time zone and some have none; give all or none.")
    return [value.astimezone(UTC) if value.tzinfo else value for value in values]


def day_or_year(texts: Sequence[str]) -> bool:
    """Whether a text goes on in the same month with another number, as Jan 20 and Jan 21 do: days, or years."""
    found = [match for text in texts if (match := MONTH_AND_NUMBER.match(text))]
    return any(a[1] == b[1] and a[0] != b[0] for a, b in pairwise(found))


def one(text: str, named: bool = True) -> datetime | None:
    """A time in any form but day and month by numbers. `named`: under a heading of times."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    if match := QUARTER.match(text):
        return datetime(int(match["year"] or match["year2"]), 3 * int(match["part"] or match["part2"]) - 2, 1)
    if named and (match := YEAR_FIRST.match(text) or PART_FIRST.match(text)):
        part, year = match.groupdict(), match["year"]
        month = 6 * int(part["half"]) - 5 if part["half"] else 3 * int(part["q"] or part["n"]) - 2
        return datetime(int(year) + (2000 if len(year) == 2 else 0), month, 1)
    if match := CJK_DAY.match(text):
        return attempt("%Y-%m-%d")("-".join(each or "1" for each in match.groups()))
    text = WORD.sub(in_english, text.replace(" de ", " "))
    forms = (*FORMATS, *HEADED_FORMATS) if named else FORMATS
    return next((value for form in forms if (value := attempt(form)(text)) is not None), None)


def in_english(word: re.Match[str]) -> str:
    """A month's short English name for its name in any of the languages; another word as it is."""
    number = MONTH_WORDS.get(word[0].rstrip(".").lower())
    return datetime(2000, number, 1).strftime("%b") if number else word[0]


def attempt(form: str) -> Callable[[str], datetime | None]:
    def read(text: str) -> datetime | None:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            return None

    return read


def by_slashes(groups: Sequence[tuple[str, ...]], texts: Sequence[str], place: str) -> list[datetime]:
    """31/12/2023 or 12/31/2023: which of the two all rows together say; or 23-12-31, where they say neither. Raises
    TimeError."""
    firsts, seconds = {int(g[0]) for g in groups}, {int(g[2]) for g in groups}
    ways: dict[str, list[datetime]] = {}
    for name, day, month in (("day first", 0, 2), ("month first", 2, 0)):
        if max(firsts if month == 0 else seconds) <= 12:
            made = [slashed(g, int(g[day]), int(g[month])) for g in groups]
            if None not in made:
                ways[name] = [value for value in made if value is not None]
    read = likely(ways)
    others = [read] if read is not None else list(ways.values())
    with_year = year_first(groups)
    if with_year is not None and begins_with_year(groups, with_year, others):
        return with_year
    if read is not None:
        return read
    if not ways:
        raise TimeError(
            f"{place}: the times, as {texts[0]!r}, are neither all day/month/year nor all month/day/year; write them "
            "as 2023-12-31."
        )
    raise TimeError(
        f"{place}: {texts[0]!r} may begin with the day or with the month, and the rows do not tell; write the times as "
        "2023-12-31."
    )


def likely(ways: Mapping[str, list[datetime]]) -> list[datetime] | None:
    """The way to read times that is at equal distances, or lacks far fewer times than the other; None where neither."""
    if len(ways) < 2:
        return next(iter(ways.values()), None)
    even = [values for values in ways.values() if even_steps(values)]
    if len(even) == 1:
        return even[0]
    best, other = sorted(ways.values(), key=lacking)
    least = lacking(best)
    return best if least <= len(best) and lacking(other) > MANY_TIMES_MORE * (least + len(best)) else None


def year_first(groups: Sequence[tuple[str, ...]]) -> list[datetime] | None:
    """The times as 24-12-31, if all can be such."""
    if not all(g[1] == "-" and len(g[0]) == len(g[3]) == 2 and int(g[2]) <= 12 for g in groups):
        return None
    made = [slashed((g[3], g[1], g[2], g[0], g[4]), int(g[3]), int(g[2])) for g in groups]
    return None if None in made else [value for value in made if value is not None]


def begins_with_year(
    groups: Sequence[tuple[str, ...]], with_year: Sequence[datetime], others: Sequence[Sequence[datetime]]
) -> bool:
    """Whether 24-01-31 is a day of 2024: only where the other ways, which go before, are far less likely."""
    if not others:
        return True
    if 2 * len({g[0] for g in groups}) > len(groups):
        return False  # a year stays for many rows
    least, mine = min(map(lacking, others)), lacking(with_year)
    if mine == 0 < least or least > MANY_TIMES_MORE * (mine + len(groups)):
        return mine <= len(groups)
    # 24-01-01, 24-01-02: days of a month, or January 24th of 2001 and 2002, which is no day on which books are closed
    days = {value.day for values in others for value in values}
    if len(days) > 1 or any(map(closing, others[0])) or mine > len(groups):
        return False
    return [len({g[at] for g in groups}) > 1 for at in (0, 2, 3)] == [False, False, True]


def closing(value: datetime) -> bool:
    """Whether a day is the first or the last of its month."""
    return value.day == 1 or (value + timedelta(days=1)).day == 1


def even_steps(values: Sequence[datetime]) -> bool:
    unit, _, missing = distances(sorted(values))
    return bool(unit) and not sum(missing)


def lacking(values: Sequence[datetime]) -> float:
    """How many times are missing between the first and the last; infinite where they are at no equal distance."""
    unit, _, missing = distances(sorted(values))
    return sum(missing) if unit else float("inf")


def slashed(group: tuple[str, ...], day: int, month: int) -> datetime | None:
    year = int(group[3]) + (2000 if len(group[3]) == 2 and int(group[3]) < 70 else 1900 if len(group[3]) == 2 else 0)
    try:
        begun = datetime(year, month, day)
    except ValueError:
        return None
    if not group[4]:
        return begun
    clock = next((value for form in CLOCKS if (value := attempt(form)(group[4].strip())) is not None), None)
    return None if clock is None else begun.replace(hour=clock.hour, minute=clock.minute, second=clock.second)


def distances(values: Sequence[datetime]) -> tuple[Unit, float, tuple[int, ...]]:
    """The usual distance of times in order, and how many steps lack before each row but the first; unit "" where the
    distances are of no kind."""
    if len(values) < 3:
        return "", 0.0, ()
    if all(value.day == values[0].day and value.time() == values[0].time() for value in values) or month_ends(values):
        months = [12 * (b.year - a.year) + b.month - a.month for a, b in pairwise(values)]
        step = Counter(months).most_common(1)[0][0]
        if step and all(each % step == 0 for each in months):
            return "months", float(step), tuple(each // step - 1 for each in months)
    seconds = [(b - a).total_seconds() for a, b in pairwise(values)]
    usual = Counter(seconds).most_common(1)[0][0]
    if usual == DAY and all(value.weekday() < 5 for value in values) and 3 * DAY in seconds:
        return "business days", 1.0, tuple(working(a.date(), b.date()) - 1 for a, b in pairwise(values))
    if usual > 0 and all(abs(each / usual - round(each / usual)) < 1e-6 for each in seconds):
        unit: Unit = "days" if usual % DAY == 0 else "seconds"
        step_ = usual / DAY if unit == "days" else usual
        return unit, step_, tuple(round(each / usual) - 1 for each in seconds)
    return "", 0.0, ()


def month_ends(values: Sequence[datetime]) -> bool:
    return all((value + timedelta(days=1)).day == 1 for value in values)


def working(first: date, last: date) -> int:
    """Business days from one to another, holidays not known."""
    days = (last - first).days
    return sum((first + timedelta(days=each)).weekday() < 5 for each in range(1, days + 1))
