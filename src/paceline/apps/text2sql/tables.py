"""Files of tables as a database: CSV, TSV, Parquet and JSON lines become tables of a DuckDB file, each by its name.

They are read here, before any question: a query of a model's never reads a file.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, time
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..common.numbers import DEBIT, MISSING, TableError, decimal_comma, number, numbers, without_unit
from ..common.tables import TextTable, decoded, read_table, separator
from ..common.times import TimeError, known, parsed
from .database import QueryError
from .schema import name

READERS = {".csv": "read_csv", ".tsv": "read_csv", ".txt": "read_csv", ".parquet": "read_parquet",
           ".json": "read_json", ".jsonl": "read_json", ".ndjson": "read_json"}  # fmt: skip
IMPORT_MEMORY = "1GiB"
LOOKED_AT_ROWS = 200
LARGEST_REWRITTEN = 64 << 20
"""Bytes of a file that is read here before DuckDB; a larger one is left to DuckDB."""


def is_table(path: Path) -> bool:
    return kind(path) in READERS


def kind(path: Path) -> str:
    """The ending, without that of compression."""
    return next((each.lower() for each in reversed(path.suffixes) if each.lower() not in (".gz", ".zst")), "")


def imported(paths: Sequence[Path], folder: Path) -> tuple[Path, list[str]]:
    """A DuckDB file with a table of each file, and what to say. Raises QueryError("missing") that names the file."""
    import duckdb

    made = folder / "tables.duckdb"
    config: dict[str, Any] = {"memory_limit": IMPORT_MEMORY, "threads": "1", "autoinstall_known_extensions": "false"}
    used: dict[str, Path] = {}
    notes: list[str] = []
    with duckdb.connect(str(made), config=config) as connection:
        for number, path in enumerate(paths):
            table = table_name(path)
            if table in used:
                raise QueryError("missing", f"{path} and {used[table]} would both be the table {table}; rename one.")
            used[table] = path
            try:
                reader, source, options = READERS[kind(path)], path, ""
                if reader == "read_csv":
                    source, options, said = plain_csv(path, folder / f"{number}.csv")
                    notes += said
                connection.execute(
                    f"CREATE TABLE {name(table)} AS SELECT * FROM {reader}(?{options})", [no_pattern(source)]
                )
            except (duckdb.Error, OSError, TableError, csv.Error) as error:
                why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                raise QueryError("missing", f"{path} cannot be read as a table: {why}") from error
    return made, notes


def plain_csv(path: Path, copy: Path) -> tuple[Path, str, list[str]]:
    """The file, or a copy in UTF-8 where DuckDB would not read it as people do: another encoding, lines above the
    table, sums below it, numbers such as 1.234,50 EUR; what to tell DuckDB of its decimal sign; and what to say. DuckDB
    itself reads what zstd packed."""
    if path.suffix.lower() == ".zst":
        return path, "", []
    if path.stat().st_size <= LARGEST_REWRITTEN and (table := rewritten(path, copy)) is not None:
        return copy, "", list(table.notes)
    text, notes = decoded(path)
    options = ", decimal_separator=','" if with_commas(text.splitlines()[:LOOKED_AT_ROWS]) else ""
    if not notes and path.read_bytes()[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return path, options, []
    copy.write_text(text, encoding="utf-8")
    return copy, options, notes


def rewritten(path: Path, copy: Path) -> TextTable | None:
    """The table as a plain CSV file at `copy`; None, and nothing there, where it needs none or is too odd for it."""
    try:
        table = read_table(path, every_row=True)
    except TableError:
        return None
    places = tuple(map(str, range(len(table.header))))  # headings may be empty, or come twice
    numbered = replace(table, header=places)
    plain = {at: found for at, place in enumerate(places) if (found := peoples(numbered, place)) is not None}
    if not table.trimmed and not plain:
        return None
    with copy.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.header)
        for number, row in enumerate(table.rows):
            writer.writerow([plain[at][number] if at in plain else cell for at, cell in enumerate(row)])
    said = [f"{path.name}, {each}" for title in table.header for each in table.points_said(title)]
    said += [f"{path.name}, column {table.header[at]}: {each}" for at, found in plain.items()
             for each in stored_said(numbered.column(places[at]), found)]  # fmt: skip
    return replace(table, notes=(*table.notes, *said))


def stored_said(texts: Sequence[str], stored: Sequence[str]) -> list[str]:
    """What to say of cells that the database holds in another form."""
    pairs = list(zip(texts, stored))
    changed = next((pair for pair in pairs if pair[1] and is_odd(pair[0]) and pair[0] != pair[1]), None)
    word = next((text for text, made in pairs if text and not made), None)
    said = [f"{changed[0]!r} is stored as {changed[1]}"] if changed else []
    said += [f"{word!r} as no value" if said else f"{word!r} is stored as no value"] if word else []
    return [f"{' and '.join(said)}."] if said else []


POINTED = re.compile(r"[+-]?\d+\.\d{3}")
"""Digits with a point that may part thousands."""


def peoples(table: TextTable, title: str) -> list[str] | None:
    """A column of numbers or times in plain form, if some are written as people write them; else None."""
    texts = table.column(title)
    filled = [text for text in texts if text.lower() not in MISSING]
    try:
        if filled and all(known(text) and not text.isdigit() for text in filled[:LOOKED_AT_ROWS]):
            return None if all(map(iso, filled)) else plain_times(texts, parsed(filled, title))
        found = table.numbers(title) if without_unit(texts) == texts and amounts(filled) else [None]
    except (TableError, TimeError):
        return None
    thousands = any(value and POINTED.fullmatch(text) and value != float(text) for text, value in zip(texts, found))
    if None in found or not (thousands or any(map(is_odd, filled))):
        return None
    return [repr(value) if value == value else "" for value in found]


CENTS = re.compile(r"\d[.,]\d\d\D?$")


def amounts(texts: Sequence[str]) -> bool:
    """Whether numbers in brackets or with a sign behind are amounts below nothing, which have decimals and stand among
    others; (101) and 13- may be codes."""
    debit = [text for text in texts if DEBIT.match(text)]
    if not debit:
        return True
    return len(debit) < len(texts) and all(CENTS.search(text) for text in texts) and None not in map(number, texts)


def plain_times(texts: Sequence[str], times: Sequence[datetime]) -> list[str]:
    """In ISO form: days alone where no time of day is given."""
    days, left = all(each.time() == time() for each in times), iter(times)
    ahead = ("" if text.lower() in MISSING else next(left) for text in texts)
    return [each if isinstance(each, str) else str(each.date() if days else each) for each in ahead]


def iso(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_odd(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def with_commas(lines: Sequence[str]) -> bool:
    """Whether semicolons part the columns and a column of numbers has decimal commas."""
    if separator(lines[:50]) != ";":
        return False
    for cells in zip_longest(*csv.reader(lines[1:], delimiter=";"), fillvalue=""):
        try:
            if decimal_comma(cells, ";") and None not in numbers(cells, ";"):
                return True
        except TableError:
            continue  # texts that hold both signs
    return False


def no_pattern(path: Path) -> str:
    """The path for a reader of DuckDB's, which takes `a[1].csv` for a pattern."""
    return re.sub(r"([\[*?])", r"[\1]", str(path))


def table_name(path: Path) -> str:
    """The file's name as an identifier."""
    words = re.sub(r"\W+", "_", path.name.split(".")[0]).strip("_").lower() or "data"
    return f"t_{words}" if words[0].isdigit() else words
