"""Files of tables as a database: CSV, TSV, Parquet and JSON lines become tables of a DuckDB file, each by its name.

They are read here, before any question: a query of a model's never reads a file.
"""

import csv
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..common.tables import TableError, decimal_comma, decoded, numbers, separator
from .database import QueryError
from .schema import name

READERS = {".csv": "read_csv", ".tsv": "read_csv", ".txt": "read_csv", ".parquet": "read_parquet",
           ".json": "read_json", ".jsonl": "read_json", ".ndjson": "read_json"}  # fmt: skip
IMPORT_MEMORY = "1GiB"
LOOKED_AT_ROWS = 200


def is_table(path: Path) -> bool:
    return kind(path) in READERS


def kind(path: Path) -> str:
    """The ending, without that of compression."""
    return next((each.lower() for each in reversed(path.suffixes) if each.lower() not in (".gz", ".zst")), "")


def imported(paths: Sequence[Path], folder: Path) -> Path:
    """A DuckDB file with a table of each file. Raises QueryError("missing") that names the file."""
    import duckdb

    made = folder / "tables.duckdb"
    config: dict[str, Any] = {"memory_limit": IMPORT_MEMORY, "threads": "1", "autoinstall_known_extensions": "false"}
    used: dict[str, Path] = {}
    with duckdb.connect(str(made), config=config) as connection:
        for number, path in enumerate(paths):
            table = table_name(path)
            if table in used:
                raise QueryError("missing", f"{path} and {used[table]} would both be the table {table}; rename one.")
            used[table] = path
            try:
                reader, source, options = READERS[kind(path)], path, ""
                if reader == "read_csv":
                    source, options = plain_csv(path, folder / f"{number}.csv")
                connection.execute(
                    f"CREATE TABLE {name(table)} AS SELECT * FROM {reader}(?{options})", [no_pattern(source)]
                )
            except (duckdb.Error, OSError, TableError, csv.Error) as error:
                said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                raise QueryError("missing", f"{path} cannot be read as a table: {said}") from error
    return made


def plain_csv(path: Path, copy: Path) -> tuple[Path, str]:
    """The file, or a copy in UTF-8 where it is in another encoding: DuckDB reads that alone; and what to tell DuckDB of
    its decimal sign. What is packed with zstd is left to DuckDB."""
    if path.suffix.lower() == ".zst":
        return path, ""
    text, notes = decoded(path)
    options = ", decimal_separator=','" if with_commas(text.splitlines()[:LOOKED_AT_ROWS]) else ""
    if not notes and path.read_bytes()[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return path, options
    copy.write_text(text, encoding="utf-8")
    return copy, options


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
