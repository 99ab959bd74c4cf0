"""Execution accuracy over a set of questions: a query is right if its table equals the reference's."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common.cli import UsageError
from ..common.client import AppClient
from .database import Database, QueryError, SqlLimits, SqlResult, open_database
from .pipeline import Answered, SqlPipeline, SqlPlan
from .retrieve import Index, build
from .schema import read_schema

SQL_WIDE = SqlLimits(30.0, 10_000)


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    database: str
    text: str
    query: str


@dataclass(frozen=True, slots=True)
class Scored:
    """Score of one question."""

    question: SqlQuestion
    answered: Answered
    right: bool
    late: bool


def read_questions(path: Path, most: int | None = None) -> list[SqlQuestion]:
    """Lines with db_id, question and query; of those with a `rows` count of 0, or `empty`, none (every wrong query with
    an empty table would be right). A subset is spread over the whole. Raises UsageError."""
    out = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("rows") != 0 and not row.get("empty"):
                out.append(SqlQuestion(row["db_id"], row["question"], row["query"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a file of questions (JSON lines with db_id, question and query): {error}."
        ) from error
    if most is None or most >= len(out):
        return out
    return [out[i * len(out) // most] for i in range(most)]


def same(result: SqlResult | None, reference: SqlResult, ordered: bool) -> bool:
    """Equal tables: rows as a multiset (in order where the reference orders), columns in their order, whatever their
    names; numbers to six digits."""
    if result is None or result.more or len(result.rows) != len(reference.rows):
        return False
    a, b = ([tuple(map(_plain, row)) for row in each.rows] for each in (result, reference))
    return a == b if ordered else Counter(a) == Counter(b)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return int(value) if value == int(value) else float(f"{value:.6g}")
    return value


@dataclass(slots=True)
class Evaluation:
    """Questions over databases in a folder, a given number at once, until `minutes` have passed."""

    client: AppClient
    folder: Path
    plan: SqlPlan
    concurrency: int = 2
    minutes: float | None = None

    async def run(self, questions: Sequence[SqlQuestion], on_end: Callable[[Scored], None]) -> list[Scored]:
        open_databases = {name: self._open(name) for name in dict.fromkeys(q.database for q in questions)}
        gate, began = asyncio.Semaphore(self.concurrency), time.monotonic()

        async def one(question: SqlQuestion) -> Scored | None:
            async with gate:
                if self.minutes is not None and time.monotonic() - began > 60 * self.minutes:
                    return None
                scored = await self._one(question, *open_databases[question.database])
                on_end(scored)
                return scored

        done = await asyncio.gather(*(one(question) for question in questions))
        return [each for each in done if each is not None]

    def _open(self, name: str) -> tuple[Database, Index]:
        try:
            database = open_database(self.folder / f"{name}.sqlite")
            return database, build(database, read_schema(database))
        except QueryError as error:
            raise UsageError(str(error)) from error

    async def _one(self, question: SqlQuestion, database: Database, index: Index) -> Scored:
        plan = replace(self.plan, limits=SQL_WIDE)
        answered = await SqlPipeline(self.client, database, index, plan).answer(question.text)
        try:
            reference = await asyncio.to_thread(database.run, question.query, SQL_WIDE)
            right = same(answered.result, reference, "order by" in question.query.lower())
        except QueryError:
            right = False
        late = plan.deadline_s is not None and answered.seconds > plan.deadline_s
        return Scored(question, answered, right, late)


def summary(scored: Sequence[Scored]) -> dict[str, Any]:
    """Figures of an evaluation."""
    seconds = sorted(each.answered.seconds for each in scored)
    count = len(scored)
    calls = sum(step.calls for each in scored for step in each.answered.trace)
    return {
        "questions": count,
        "accuracy": sum(each.right for each in scored) / count if count else 0.0,
        "ran": sum(each.answered.result is not None for each in scored),
        "in time": sum(not each.late for each in scored) / count if count else 0.0,
        "mean s": sum(seconds) / count if count else 0.0,
        "p95 s": seconds[min(count - 1, int(0.95 * count))] if count else 0.0,
        "calls a question": calls / count if count else 0.0,
    }
