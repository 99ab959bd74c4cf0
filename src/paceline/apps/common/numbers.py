"""Numbers as people write them in tables: 1.234,50 and 1'234.50, (12.50) and 12.50- for less than nothing, 3 %."""

import re
from collections.abc import Sequence

from .units import CURRENCY_CODES, GLUED_UNITS

MISSING = frozenset({
    "", "na", "n/a", "n.a.", "nan", "nat", "null", "(null)", "\\n", "nil", "none", "missing", "-", "--", "\u2013",
    "\u2014", ".", "..", "…", "?", ":", "k.a.", "k. a.", "s/d", "<na>", "#n/a", "#div/0!", "#value!", "#ref!", "#num!",
    "#name?", "#null!",
})  # fmt: skip
"""What stands in a cell without a value, in small letters."""
AROUND = re.compile(r"^[\s€$£¥%]+|(?<![\s€$£¥%])[\s€$£¥%]+$|(?<=\d)['\u00a0\u202f ](?=\d{3})")
"""Signs around a number, and blanks or apostrophes between its thousands. A run of them is looked at once, however long
it is."""
DECIMAL_COMMA = re.compile(r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)?,\d+(e[+-]?\d+)?$", re.IGNORECASE)
POINT = re.compile(r"^[+-]?\d+\.\d+(e[+-]?\d+)?$", re.IGNORECASE)
GROUPED = re.compile(r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$")
GROUPED_TWICE = re.compile(r"^[+-]?[1-9]\d{0,2}(\.\d{3}){2,}$")
"""1.204.500: points that can part nothing but thousands."""
WHOLE_NUMBER = re.compile(r"^[+-]?\d+$")
THOUSANDS = re.compile(r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$")
TWO_WAYS = re.compile(r"^[+-]?[1-9]\d{0,2},\d{3}$")
"""1,234 is a thousand or a decimal: where semicolons part the columns a comma is the decimal sign."""
UNDERLINED = re.compile(r"^[+-]?\d{1,3}(_\d{3})+(\.\d+)?$")
INDIAN = re.compile(r"^[+-]?\d{1,2}(,\d{2})+,\d{3}(\.\d+)?$")
"""12,34,567.50: pairs of digits above the thousands."""
DEBIT = re.compile(r"^\(([^()+-]+)\)$|^(\d[\d.,]*)-$")
"""Amounts below nothing in accounts."""
SIGNED = re.compile(r"^([+-])[\s€$£¥]+(?=[\d.,])")
CURRENCIES = "€$£¥"


class TableError(ValueError):
    """A file that is no table; the text is a sentence that says what to do."""


def bare(text: str) -> str:
    """A number without signs of a unit, the sign of what is less than nothing in front."""
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return text
    plain = SIGNED.sub(r"\1", AROUND.sub("", text.replace("\u2212", "-")))
    if match := DEBIT.match(plain):
        plain = f"-{AROUND.sub('', match[1] or match[2])}"
    return plain


def number(text: str, comma: bool | None = None) -> float | None:
    """A number as people write it; None for what is none. `comma`: a comma is the decimal sign; None: where the text
    alone says so."""
    plain = bare(text)
    if comma or (comma is None and DECIMAL_COMMA.match(plain) and not THOUSANDS.match(plain)):
        plain = plain.replace(".", "").replace(",", ".")
    elif THOUSANDS.match(plain) or INDIAN.match(plain):
        plain = plain.replace(",", "")
    elif GROUPED_TWICE.match(plain):
        plain = plain.replace(".", "")
    if "_" in plain and not UNDERLINED.match(plain):
        return None
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def decimal_comma(texts: Sequence[str], mark: str = ",") -> bool:
    """Whether a column writes decimals with a comma: a cell shows it, as 1,5 and 1.204.500 do, and none has a point
    where decimals stand; 1,234 alone shows it where `mark`, which parts the columns, is a semicolon. Raises TableError
    where cells contradict each other."""
    plain = [bare(text) for text in texts]
    shown = [each for each in plain if sure_comma(each)]
    if not shown and mark == ";" and not any(THOUSANDS.match(each) and not TWO_WAYS.match(each) for each in plain):
        shown = [each for each in plain if TWO_WAYS.match(each)]
    if not shown:
        return False
    points = [each for each in plain if POINT.match(each) and not GROUPED.match(each)]
    if points:
        has = "points between thousands" if GROUPED_TWICE.match(shown[0]) else "a decimal comma"
        raise TableError(f"{shown[0]!r} has {has} and {points[0]!r} a decimal point; write all rows alike.")
    return True


def sure_comma(plain: str) -> bool:
    """Whether one number alone tells that commas are decimal signs where it stands; 1,234 may be a thousand."""
    return bool((DECIMAL_COMMA.match(plain) and not THOUSANDS.match(plain)) or GROUPED_TWICE.match(plain))


def one_unit(texts: Sequence[str]) -> None:
    """Raises TableError where some numbers of a column are per cent and others not, or amounts of two currencies."""
    filled = [text for text in texts if text.strip().lower() not in MISSING]
    share = next((text for text in filled if "%" in text and number(text) is not None), None)
    other = next((text for text in filled if "%" not in text and number(text)), None)
    if share is not None and other is not None:
        raise TableError(f"{share!r} is per cent and {other!r} is not; write all rows alike.")
    money = {sign: text for text in filled for sign in CURRENCIES if sign in text}
    if len(money) > 1:
        one, two, *_ = money.values()
        raise TableError(f"{one!r} and {two!r} are amounts of different currencies; convert them to one.")


UNIT_BEHIND = re.compile(r"^([^A-Za-z]*\d)(\s?)(?![bBdDeEoOxX]\d)([A-Za-z°µΩ][A-Za-z/°Ω]*[²³23]?)$")
"""A unit behind a number; 1e10 and 0x10 have none."""
UNIT_BEFORE = re.compile(rf"^({'|'.join(sorted(CURRENCY_CODES))})\s?([+-]?\d.*)$")
SCALES = frozenset(
    {"k", "m", "b", "t", "e", "bn", "mn", "mm", "mio", "mrd", "mld", "tsd", "million", "billion", "thousand"}
)
"""Words behind a number that multiply it, in small letters."""


def without_unit(texts: Sequence[str]) -> list[str]:
    """Numbers without the unit that all of them have, as in 12 kWh and EUR 12; others as they are. A unit without a
    blank must be a known one: 116A and 12XL are codes."""
    filled = [text for text in texts if text.strip().lower() not in MISSING]
    for form, unit, rest in ((UNIT_BEHIND, 3, 1), (UNIT_BEFORE, 1, 2)):
        found = [match for text in filled if (match := form.match(text))]
        units = {match[unit] for match in found}
        if not filled or len(found) < len(filled) or len(units) != 1 or {each.lower() for each in units} & SCALES:
            continue
        if form is UNIT_BEFORE or all(match[2] for match in found) or units <= GLUED_UNITS | CURRENCY_CODES:
            return [match[rest] if (match := form.match(text)) else text for text in texts]
    return list(texts)


def as_plain(texts: Sequence[str]) -> bool:
    """Whether a column of numbers needs no unit and no brackets of accounts to be one. Others may be codes, as 90° and
    (555)."""
    plain = (AROUND.sub("", text) for text in texts)
    return without_unit(texts) == list(texts) and not any(DEBIT.match(text) for text in plain)


def comma_of_texts(texts: Sequence[str], mark: str) -> bool:
    """`decimal_comma` of a column that holds texts as well: they cannot contradict each other."""
    try:
        return decimal_comma(texts, mark)
    except TableError:
        return False


def numbers(texts: Sequence[str], mark: str = ",") -> list[float | None]:
    """A column's values; not a number where one is missing, None where a cell is no number. Raises TableError."""
    texts = without_unit(texts)
    if all(text.strip().lower() in MISSING or number(text) is not None for text in texts):
        one_unit(texts)
        comma = decimal_comma(texts, mark)
    else:
        comma = comma_of_texts(texts, mark)
    return [float("nan") if each.strip().lower() in MISSING else number(each, comma) for each in texts]
