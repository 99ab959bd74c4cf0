"""Tables in users' files: any usual encoding, separator and way to write numbers, with or without a header.

table = read_table(Path("verkauf.csv"))
table.header, table.rows        # texts
table.notes                     # what was taken to be what, in words
table.numbers("Preis")          # 1.234,50 and 3 % are numbers
"""

import csv
import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SEPARATORS = ",;\t|"
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "#n/a", "?"})
TABLE_SUMS = frozenset({"total", "totals", "sum", "grand total", "average", "mean", "summe", "gesamt", "gesamtsumme",
                  "suma", "somme", "totale"})  # fmt: skip
AROUND = re.compile(r"^[\s€$£¥%]+|(?<![\s€$£¥%])[\s€$£¥%]+$|(?<=\d)['\u00a0\u202f ](?=\d{3})")
"""Signs around a number, and blanks or apostrophes between its thousands. A run of them is looked at once, however long
it is."""
DECIMAL_COMMA = re.compile(r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)?,\d+$")
POINT = re.compile(r"^[+-]?\d+\.\d+(e[+-]?\d+)?$", re.IGNORECASE)
GROUPED = re.compile(r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$")
GROUPED_TWICE = re.compile(r"^[+-]?[1-9]\d{0,2}(\.\d{3}){2,}$")
"""1.204.500: points that can part nothing but thousands."""
WHOLE_NUMBER = re.compile(r"^[+-]?\d+$")
THOUSANDS = re.compile(r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$")
TWO_WAYS = re.compile(r"^[+-]?[1-9]\d{0,2},\d{3}$")
"""1,234 is a thousand or a decimal: where semicolons part the columns a comma is the decimal sign."""
RARE = 0.15
"""Share of bytes beyond ASCII below which a text is of western Europe: a detector needs more of them to tell."""


class TableError(ValueError):
    """A file that is no table; the text is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells as texts, all rows as long as the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    first: int = 2
    """The line of the first row, for messages."""
    mark: str = ","
    """What parts the columns."""
    trimmed: bool = False
    """Whether lines above, sums below or further headings were left out."""
    lines: tuple[int, ...] = ()
    """The line of each row, where rows were picked or put in another order."""

    def at(self, name: str) -> int:
        """The place of a column. Raises TableError."""
        if name not in self.header:
            raise TableError(f"There is no column {name}; the columns are {', '.join(self.header)}.")
        return self.header.index(name)

    def column(self, name: str) -> list[str]:
        at = self.at(name)
        return [row[at] for row in self.rows]

    def numbers(self, name: str) -> list[float | None]:
        """A column's values, as `numbers`; 246.243 is a thousand where `points_part` says so."""
        texts = self.column(name)
        if self.points_part(name):
            return [float("nan") if each.strip().lower() in MISSING else number(each, True) for each in texts]
        return numbers(texts, self.mark)

    def points_part(self, name: str) -> bool:
        """Whether the points of a column could be decimal ones and part thousands all the same, since other columns of
        the table have decimal commas."""
        plain = [each for each in (AROUND.sub("", text) for text in self.column(name)) if each.lower() not in MISSING]
        if not any("." in each for each in plain) or any(GROUPED_TWICE.match(each) for each in plain):
            return False
        grouped = all(GROUPED.match(each) or WHOLE_NUMBER.match(each) for each in plain)
        return grouped and any(shows_commas(self.column(each), self.mark) for each in self.header if each != name)

    def points_said(self, name: str) -> list[str]:
        """What to say where `points_part`."""
        said = f"column {name}: points part thousands (1.204 is 1204), since other columns have decimal commas."
        return [said] if self.points_part(name) else []

    def line(self, at: int) -> int:
        """The line of a row, for messages."""
        return self.lines[at] if self.lines else self.first + at


def read_table(path: Path) -> TextTable:
    """A CSV file (.gz too), separated by comma, semicolon, tab or bar. Raises TableError, OSError."""
    text, notes = decoded(path)
    lines = text.splitlines()
    mark = separator(lines[:50])
    if mark != ",":
        notes.append(f"{path.name}: columns are separated by {NAMES[mark]}.")
    try:
        reader = csv.reader(lines, delimiter=mark)
        read = [(tuple(cell.strip() for cell in row), reader.line_num) for row in reader]
    except csv.Error as error:
        raise TableError(f"{path} is no table ({error}); look for a quotation mark that nothing closes.") from error
    read = [(row, at) for row, at in read if any(row)]
    if not read:
        raise TableError(f"{path} holds no rows; give a CSV file with one row for each time.")
    above = captions([row for row, _ in read])
    rows = [row for row, _ in read[above:]]
    body, header = rows, tuple(f"column{n + 1}" for n in range(len(rows[0])))
    if titled(rows):
        header, body = rows[0], rows[1:]
        if body and body[0][0].lower() == "ticker":  # yfinance writes two more lines of headings
            header, body = (
                ("Date", *header[1:]),
                [row for row in body[1:] if row[0].lower() not in ("date", "datetime")],
            )
    else:
        ragged(path, read[above:], mark)
        notes.append(f"{path.name} has no header; its columns are called {', '.join(header[:3])}.")
    if above:
        said = f"the first {read[0][0][0][:40]!r}"
        notes.append(f"{path.name}: {lines_of(above)} above the table, {said}, left out.")
    first = read[len(read) - len(body)][1] if body else read[-1][1] + 1
    while len(body) > 1 and sums(body[-1]) and not sums(body[-2]):
        notes.append(f"{path.name}: the last row ({body[-1][0]!r}) is a sum and was left out.")
        body = body[:-1]
    wide = len(header)
    for number, row in enumerate(body, first):
        if any(row[wide:]):
            raise TableError(
                f"{path}, row {number}: there are {len(row)} cells under {wide} headings; put cells that hold {mark!r} "
                "in quotation marks."
            )
    filled = tuple((row + ("",) * wide)[:wide] for row in body)
    return TextTable(header, filled, tuple(notes), first, mark, above > 0 or len(body) < len(rows) - 1)


def ragged(path: Path, rows: Sequence[tuple[tuple[str, ...], int]], mark: str) -> None:
    """Refuses rows of unequal length where no headings say what their columns are: `1,003.37` without quotation marks
    is two cells. Raises TableError."""
    wide = {line: max(at for at, cell in enumerate(row, 1) if cell) for row, line in rows if not sums(row)}
    counts = [len(row) for row, line in rows if line in wide]
    if not counts or mark != ",":
        return
    usual = min(max(set(counts), key=counts.count), max(wide.values()))  # empty cells at the end of a row are none
    at = next((line for row, line in rows if line in wide and (len(row) < usual or wide[line] > usual)), None)
    if at is not None:
        raise TableError(
            f"{path}, row {at}: its cells are not {usual} as in most rows, and there is no header; put cells that hold "
            f"{mark!r} in quotation marks."
        )


NAMES = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


def captions(rows: Sequence[Sequence[str]]) -> int:
    """How many rows stand above the table's headings: those with fewer cells than most rows, or with their first one
    alone. A row of several cells is one only where headings follow for sure."""
    wide = [max(at for at, cell in enumerate(row, 1) if cell) for row in rows[:200]]
    usual = max(set(wide), key=wide.count)
    for at, row in enumerate(rows[: len(wide)]):
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


def decoded(path: Path) -> tuple[str, list[str]]:
    """A file's text, and what to say of its encoding. Raises TableError, OSError."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TableError(f"{path} cannot be unpacked ({error}); pack it again.") from error
    for encoding in ("utf-16",) if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig",):
        try:
            return raw.decode(encoding), []
        except UnicodeDecodeError:
            pass
    if sum(byte >= 0x80 for byte in raw) < RARE * len(raw) and b"\0" not in raw:
        try:
            return raw.decode("cp1252"), [f"{path.name} is not UTF-8; it was read as Windows-1252."]
        except UnicodeDecodeError:
            pass
    from charset_normalizer import from_bytes

    best = from_bytes(raw).best()
    if best is None or b"\0" in raw:
        raise TableError(f"{path} is not text; export it as CSV in UTF-8.")
    return str(best), [f"{path.name} is not UTF-8; it was read as {best.encoding}."]


def separator(lines: Sequence[str]) -> str:
    """The mark that parts all lines in the most equal columns."""

    def fit(mark: str) -> tuple[int, int]:
        counts = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
        usual = max(set(counts), key=counts.count) if counts else 1
        return (0, 0) if usual == 1 else (sum(count == usual for count in counts), -SEPARATORS.index(mark))

    best = max((m for m in SEPARATORS), key=fit)
    decimal = [m for m in ";\t|" if fit(m)[0] == fit(best)[0] and fit(m)[0]]
    return decimal[0] if best == "," and decimal else best if fit(best)[0] else ","


def titled(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header: it has a text where the others have numbers or times, or no number at all."""
    return headed(rows) is not False


def headed(rows: Sequence[Sequence[str]]) -> bool | None:
    """Whether the first row is a header; None where no column of numbers or times tells."""
    rest = rows[1:20]
    for at, cell in enumerate(rows[0]):
        below = [row[at] for row in rest if at < len(row) and row[at].lower() not in MISSING]
        if below and all(value_like(each) for each in below):
            return not value_like(cell)
    return None


def value_like(text: str) -> bool:
    """A number or something that begins or ends with digits, as a date does."""
    return number(text) is not None or bool(re.match(r"^\d{1,4}[-/. ]\S*\d", text))


def number(text: str, comma: bool | None = None) -> float | None:
    """A number as people write it; None for what is none. `comma`: a comma is the decimal sign; None: where the text
    alone says so."""
    plain = AROUND.sub("", text)
    if comma or (comma is None and DECIMAL_COMMA.match(plain) and not THOUSANDS.match(plain)):
        plain = plain.replace(".", "").replace(",", ".")
    elif THOUSANDS.match(plain):
        plain = plain.replace(",", "")
    elif GROUPED_TWICE.match(plain):
        plain = plain.replace(".", "")
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def decimal_comma(texts: Sequence[str], mark: str = ",") -> bool:
    """Whether a column writes decimals with a comma: a cell shows it, as 1,5 and 1.204.500 do, and none has a point
    where decimals stand; 1,234 alone shows it where `mark`, which parts the columns, is a semicolon. Raises TableError
    where cells contradict each other."""
    plain = [AROUND.sub("", text) for text in texts]
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


def shows_commas(texts: Sequence[str], mark: str) -> bool:
    """Whether a column of numbers alone has decimal commas for sure, so that other columns have them as well."""
    try:
        sure = any(sure_comma(AROUND.sub("", text)) for text in texts) and decimal_comma(texts, mark)
        return sure and all(text.strip().lower() in MISSING or number(text, True) is not None for text in texts)
    except TableError:
        return False


def numbers(texts: Sequence[str], mark: str = ",") -> list[float | None]:
    """A column's values; not a number where one is missing, None where a cell is no number."""
    comma = decimal_comma(texts, mark)
    return [float("nan") if each.strip().lower() in MISSING else number(each, comma) for each in texts]
