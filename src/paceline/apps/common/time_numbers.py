"""Times that tables hold as bare numbers: seconds since 1970, days of Excel, 202312, 12312023."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

DAY_S = 86400.0
EPOCH_FROM, EPOCH_TO = 3652 * DAY_S, 47482 * DAY_S
"""Seconds since 1970 of the years 1980 to 2099."""
EPOCH_UNITS = {9: 1, 10: 1, 12: 10**3, 13: 10**3, 15: 10**6, 16: 10**6, 18: 10**9, 19: 10**9}
"""Digits of a time since 1970, and how many of its units a second has."""
EXCEL_BEGINS = datetime(1899, 12, 30)
EXCEL_DAYS = (18000.0, 51500.0)
"""Days of Excel of the years 1949 to 2040; astronomers count such days from 51544, which is the year 2000."""
DAY_HEADINGS = re.compile(r"(?i:(?<![^\W_])dat(e|um|a)\b|^(day|tag|fecha|jour|dia|día|giorno|日期|日付)$)|[a-z]Date\b")
"""Headings of columns in which a number may be a day of Excel's."""


def since_1970(texts: Sequence[str]) -> tuple[list[str], str] | None:
    """Seconds, or thousandths to billionths of them, in ISO form, if all are of the years 1980 to 2099."""
    whole = [re.sub(r"\.\d*$", "", text) for text in texts]
    for digits, unit in EPOCH_UNITS.items():
        if not all(len(text) == digits and text.isdigit() for text in whole):
            continue
        if unit > 1 and any(float(text) % 1 for text in texts):
            return None
        found = [float(text) if unit == 1 else int(each) / unit for text, each in zip(texts, whole)]
        if min(found) > EPOCH_FROM and max(found) < EPOCH_TO:
            made = [datetime.fromtimestamp(each, UTC).replace(tzinfo=None).isoformat() for each in found]
            return made, "times since 1970, in UTC"
    return None


def of_excel(texts: Sequence[str]) -> tuple[list[str], str] | None:
    """Days since 1900 as Excel counts them, in ISO form."""
    if not all(re.fullmatch(r"\d{5}(\.\d+)?", text) for text in texts):
        return None
    days = [float(text) for text in texts]
    if not (EXCEL_DAYS[0] < min(days) and max(days) < EXCEL_DAYS[1]):
        return None
    made = [(EXCEL_BEGINS + timedelta(seconds=round(each * DAY_S))).isoformat(" ") for each in days]
    return made, f"days of Excel ({texts[0]} is {made[0][:10]})"


def of_months(texts: Sequence[str]) -> tuple[list[str], str] | None:
    """202312, 12.2023 and 012.2023 as 2023-12."""
    points = [re.fullmatch(r"0{0,2}([1-9]|1[0-2])\.((?:19|20|21)\d\d)", text) for text in texts]
    if all(points) and len({match[1] for match in points if match}) > 1:
        made = [f"{match[2]}-{int(match[1]):02}" for match in points if match]
        return made, f"months ({texts[0]} is {made[0]})"
    if not all(re.fullmatch(r"(1[89]|2[01])\d\d(0[1-9]|1[0-2])", text) for text in texts):
        return None
    made = [f"{text[:4]}-{text[4:]}" for text in texts]
    return made, f"months ({texts[0]} is {made[0]})"


def of_days(texts: Sequence[str]) -> tuple[list[str], str] | None:
    """12312023 as 12/31/2023, which the other rows tell from 31/12/2023; 20231231 is not of this kind."""
    if not all(re.fullmatch(r"\d{7,8}", text) for text in texts):
        return None
    parts = [(text[:-6], text[-6:-4], text[-4:]) for text in texts]
    if not all(1 <= int(a) <= 31 and 1 <= int(b) <= 31 and "1900" <= c < "2200" for a, b, c in parts):
        return None
    return ["/".join(each) for each in parts], "days of eight digits with the year at the end"


def written_out(texts: Sequence[str], heading: str) -> tuple[list[str], str] | None:
    """Numbers under a heading of times as texts that can be read as times, and what they were taken for; None for
    steps."""
    if found := since_1970(texts):
        return found
    if heading.lower() in ("t", "step", "index"):
        return None
    if all(re.fullmatch(r"(1[89]|2[01])\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", text) for text in texts):
        return None  # 20231231, which needs no change
    if found := of_months(texts) or of_days(texts):
        return found
    return of_excel(texts) if DAY_HEADINGS.search(heading) else None
