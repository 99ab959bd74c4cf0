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

from .headings import captions, distinct, headed, is_foot, joined_heads, lines_of, sums, titled
from .numbers import (
    GROUPED,
    GROUPED_TWICE,
    MISSING,
    WHOLE_NUMBER,
    TableError,
    bare,
    decimal_comma,
    number,
    numbers,
    sure_comma,
)
from .times import TIME_COLUMNS, known

SEPARATORS = ",;\t|"
RARE = 0.15
"""Share of bytes beyond ASCII below which a text is of western Europe: a detector needs more of them to tell."""


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
        plain = [each for each in (bare(text) for text in self.column(name)) if each.lower() not in MISSING]
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


def read_table(path: Path, every_row: bool = False) -> TextTable:
    """A CSV file (.gz too), separated by comma, semicolon, tab or bar. `every_row`: for a database, in which lines of
    units, remarks below the table and headings that come again stay rows. Raises TableError, OSError."""
    text, notes = decoded(path)
    no_table(text, path)
    lines = text.splitlines()
    mark = separator(lines[:50])
    blanks = split_at_blanks(lines, every_row) if mark == "," and "," not in text else None
    if mark != "," or blanks:
        notes.append(f"{path.name}: columns are separated by {'blanks' if blanks else NAMES[mark]}.")
    try:
        reader = csv.reader(blanks or lines, delimiter="\t" if blanks else mark)
        read = [(tuple(cell.strip() for cell in row), reader.line_num) for row in reader]
    except csv.Error as error:
        raise TableError(f"{path} is no table ({error}); look for a quotation mark that nothing closes.") from error
    read = [(row, at) for row, at in read if any(row)]
    if not read:
        raise TableError(f"{path} holds no rows; give a CSV file with one row for each time.")
    above = captions([row for row, _ in read])
    rows = [row for row, _ in read[above:]]
    body, header = rows, tuple(f"column{n + 1}" for n in range(len(rows[0])))
    two = joined_heads(rows) if titled(rows) and not (len(rows) > 1 and rows[1][0].lower() == "ticker") else None
    if two is not None and not (every_row and two[0][: len(rows[0])] == rows[0]):
        header, body = two[0], rows[2:]
        notes.append(f"{path.name}: {two[1]}")
    elif titled(rows):
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
        title = f"the first {read[0][0][0][:40]!r}"
        notes.append(f"{path.name}: {lines_of(above)} above the table, {title}, left out.")
    first = read[len(read) - len(body)][1] if body else read[-1][1] + 1
    below = 0
    firsts = [row[0] for row in body[:20] if any(row[1:])]
    while len(body) > 2 and len(header) > 2 and not every_row and any(body[0][1:]) and is_foot(body[-1], firsts):
        below, body = below + 1, body[:-1]
    if below:
        notes.append(f"{path.name}: {lines_of(below)} below the table left out.")
    while len(body) > 1 and sums(body[-1]) and not sums(body[-2]):
        notes.append(f"{path.name}: the last row ({body[-1][0]!r}) is a sum and was left out.")
        body = body[:-1]
    again = [at for at, row in enumerate(body) if row == header]
    if every_row or not headed([header, *(row for row in body[:50] if row != header)]):
        again = []
    if again:
        notes.append(f"{path.name}: the headings come again further down; {lines_of(len(again))} left out.")
    header, said = distinct(header, every_row)
    notes += [f"{path.name}: {each}" for each in said]
    wide = len(header)
    for line, row in enumerate(body, first):
        if any(row[wide:]):
            raise TableError(
                f"{path}, row {line}: there are {len(row)} cells under {wide} headings; put cells that hold {mark!r} "
                "in quotation marks."
            )
    kept = [at for at in range(len(body)) if at not in again]
    filled = tuple((body[at] + ("",) * wide)[:wide] for at in kept)
    lines_kept = tuple(first + at for at in kept) if again else ()
    return TextTable(
        header,
        filled,
        tuple(notes),
        first,
        mark,
        above > 0 or len(body) < len(rows) - 1 or bool(blanks or again),
        lines_kept,
    )


def split_at_blanks(lines: Sequence[str], wide: bool) -> list[str] | None:
    """Lines with tabs between their columns, where blanks part all of them in the same number and the first is one of
    headings; else None. `wide`: two blanks or more alone part columns. One blank may also stand within a number or a
    name: it parts columns of numbers behind one of times or names."""
    filled = [line for line in lines if line.strip()]
    if all(known(" ".join(line.split())) for line in filled[1:]):
        return None
    for mark in (r"\s{2,}",) if wide else (r"\s{2,}", r"\s+"):
        rows = [re.split(mark, line.strip()) for line in filled]
        if len(rows) < 3 or len({len(row) for row in rows}) > 1 or len(rows[0]) < 2 or not headed(rows):
            continue
        if mark == r"\s{2,}" or columns_of_numbers(rows):
            return ["\t".join(row) for row in rows]
    return None


def columns_of_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Whether one blank parts columns of times and numbers, the first row being headings: not a name from its number,
    and not thousands from hundreds."""
    if all(number(" ".join(row)) is not None for row in rows[1:]):
        return False
    if any(all(BLANK_THOUSANDS.match(" ".join(row[at:])) for row in rows[1:]) for at in range(len(rows[0]) - 1)):
        return False
    if all(known(row[0]) for row in rows[1:]) or rows[0][0].lower() in TIME_COLUMNS:
        return True
    cells = [cell for row in rows[1:] for cell in row[1:] if cell.lower() not in MISSING]
    return len(rows[0]) > 2 and all(number(cell) is not None for cell in cells)


BLANK_THOUSANDS = re.compile(r"^[+-]?\d{1,3}(?: \d{3})+(?:[.,]\d+)?(?: \D+)?$")
OTHER_FILES = (
    (r"PK\x03\x04", "a workbook of Excel or a zip archive"),
    (r"\{\s*[\"}]|\[\s*[{\[]|\[[\r\n]", "JSON"),
    (r"<!(doctype|--|\[cdata)", "HTML or XML"),
    (r"<html[\s>]", "HTML"),
    (r"<\?xml", "XML"),
    (r"PAR1[\x00-\x08\x0e-\x1f]", "Parquet"),
    (r"SQLite format 3\x00", "a database of SQLite"),
    (r"%PDF-\d", "PDF"),
)
"""How files of other kinds begin, as expressions, and what they are called."""


def no_table(text: str, path: Path) -> None:
    """Raises TableError for what begins as a file of another kind does."""
    begun = text.lstrip()[:20]
    for start, what in OTHER_FILES:
        if re.match(start, begun, re.IGNORECASE):
            raise TableError(f"{path} holds {what}; save it as CSV, with a row for each time.")


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


def decoded(path: Path) -> tuple[str, list[str]]:
    """A file's text, and what to say of its encoding. Raises TableError, OSError."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TableError(f"{path} cannot be unpacked ({error}); pack it again.") from error
    no_table(raw[:20].decode("latin-1"), path)
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


def shows_commas(texts: Sequence[str], mark: str) -> bool:
    """Whether a column of numbers alone has decimal commas for sure, so that other columns have them as well."""
    try:
        sure = any(sure_comma(bare(text)) for text in texts) and decimal_comma(texts, mark)
        return sure and all(text.strip().lower() in MISSING or number(text, True) is not None for text in texts)
    except TableError:
        return False
