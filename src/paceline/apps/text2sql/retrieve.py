"""The columns and stored values that a question speaks of: an index of trigrams over a database's texts."""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .database import Database, QueryError, SqlLimits
from .schema import Column, SqlSchema

VALUES = 300
"""Distinct values a column that are indexed, at most."""
SQL_RETRIEVE_LONGEST = 80
"""Characters of an indexed value."""
SQL_EXAMPLES = 3
"""Values of a column that a prompt shows."""
COLUMNS_AT_ONCE = 100
VALUES_S = 2.0
"""Seconds for a query for values of one column, and for each further ten."""
INDEX_S = 30.0
"""Seconds for the values of all columns."""
BYTES_TYPE = re.compile(r"blob|bytea|binary", re.IGNORECASE)
NEAR = 0.45
"""Share of trigrams in common from which a value counts as mentioned."""


@dataclass(slots=True)
class Index:
    """Index of one database."""

    schema: SqlSchema
    values: dict[str, list[str]] = field(default_factory=dict)
    """By column: some of its values."""
    _grams: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _texts: list[tuple[str, str, int]] = field(default_factory=list)
    """(column, value, number of its trigrams)."""

    def add(self, column: str, value: str) -> None:
        grams = trigrams(value)
        self.values.setdefault(column, []).append(value)
        self._texts.append((column, value, len(grams)))
        for gram in grams:
            self._grams[gram].append(len(self._texts) - 1)

    def near(self, phrases: Iterable[str], most: int = 12) -> list[tuple[str, str]]:
        """(column, value) of the values nearest to any of the phrases, the nearest first."""
        best: dict[int, float] = {}
        for phrase in phrases:
            grams, shared = trigrams(phrase), defaultdict[int, int](int)
            for gram in grams:
                for number in self._grams.get(gram, ()):
                    shared[number] += 1
            for number, count in shared.items():
                near = count / (len(grams) + self._texts[number][2] - count)
                if near >= NEAR:
                    best[number] = max(best.get(number, 0.0), near)
        ordered = sorted(best, key=lambda number: (-best[number], self._texts[number]))
        return [self._texts[number][:2] for number in ordered[:most]]

    def columns(self, words: Sequence[str], most: int = 24) -> list[Column]:
        """Columns whose names are nearest to the words; all columns, if there are no more than `most`."""
        if len(self.schema.columns) <= most:
            return list(self.schema.columns)
        asked = [trigrams(word) for word in words]

        def score(column: Column) -> float:
            own = [trigrams(part) for part in (*parts(column.name), *parts(column.table))]
            return sum(max((len(a & b) / len(a | b) for b in own if a | b), default=0.0) for a in asked)

        return sorted(self.schema.columns, key=lambda column: -score(column))[:most]

    def examples(self, found: Iterable[tuple[str, str]], most: int = SQL_EXAMPLES) -> dict[str, list[str]]:
        """Values to show by column: those found first, then some others."""
        out: dict[str, list[str]] = defaultdict(list)
        for column, value in found:
            if len(out[column]) < most:
                out[column].append(value)
        for column, values in self.values.items():
            out[column] += [value for value in values if value not in out[column]][: most - len(out[column])]
        return dict(out)


def build(database: Database, schema: SqlSchema) -> Index:
    """Reads some values of each column, those of many columns in one query; a column that cannot be read has none, nor
    one that INDEX_S leaves no time for."""
    index, ends = Index(schema), time.monotonic() + INDEX_S
    texts = [column for column in schema.columns if not BYTES_TYPE.search(column.type)]
    for begin in range(0, len(texts), COLUMNS_AT_ONCE):
        add_values(index, database, texts[begin : begin + COLUMNS_AT_ONCE], ends)
    return index


def add_values(index: Index, database: Database, columns: Sequence[Column], ends: float) -> None:
    """The values of some columns; where the query fails, those of each half."""
    if time.monotonic() > ends or not columns:
        return
    sql = " UNION ALL ".join(some_values(index.schema, at, column) for at, column in enumerate(columns))
    seconds = VALUES_S * (1 + len(columns) // 10)
    try:
        rows = database.run(sql, SqlLimits(seconds, VALUES * len(columns))).rows
    except QueryError:
        half = len(columns) // 2
        for part in (columns[:half], columns[half:]) if half else ():
            add_values(index, database, part, ends)
        return
    for at, value in rows:
        text = str(value)
        if 0 < len(text) <= SQL_RETRIEVE_LONGEST:
            index.add(columns[at].full, text)


def some_values(schema: SqlSchema, number: int, column: Column) -> str:
    """A query for distinct values of a column next to the number: texts, except in SQLite, where no column has a
    type."""
    at, table = schema.name(column.name), schema.place(column)
    shown = at if schema.dialect == "sqlite" else f"CAST({at} AS {'CHAR' if schema.dialect == 'mysql' else 'VARCHAR'})"
    return (
        f"SELECT {number} AS n, v FROM (SELECT DISTINCT {shown} AS v FROM {table} WHERE {at} IS NOT NULL "
        f"LIMIT {VALUES}) AS q{number}"
    )


def parts(text: str) -> list[str]:
    """Words of an identifier."""
    return [word.lower() for word in re.findall(r"[A-Za-z][a-z]*|\d+", text)]


def phrases(question: str) -> list[str]:
    """What a question may mean as a value: quoted texts, words, and pairs and triples of them."""
    quoted = [a or b for a, b in re.findall(r"\"([^\"]+)\"|'([^']+)'", question)]
    words = re.findall(r"[\w.&-]+", question)
    return quoted + [" ".join(words[i : i + n]) for n in (3, 2, 1) for i in range(len(words) - n + 1)]


def trigrams(text: str) -> frozenset[str]:
    padded = f"  {text.lower()} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))
