"""`python -m paceline.apps.text2sql`: a question, a page, or an evaluation."""

import asyncio
import csv
import io
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ..common.address import without_secret
from ..common.cli import OUTPUT, AppAsked, AppBar, AsJson, UsageError, asks_server, errors, show
from ..common.client import AppClient, Nobody
from ..common.report import Report
from .chart import chart
from .database import QueryError, SqlLimits, SqlResult, open_database
from .example import example
from .pipeline import SQL_SINGLE, Answered, SqlPipeline, SqlPlan, SqlStep
from .prompts import table
from .retrieve import build
from .schema import described, read_descriptions, read_schema
from .tables import imported, is_table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
PIPE = "Pipeline"
SQL_SHOWN = 100
"""Rows of a report's table."""


def _option(help: str, panel: str = PIPE, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, **more)


@app.command(
    epilog="Example: python -m paceline.apps.text2sql 'Which singers are from France?' --db concert_singer.sqlite"
)
@asks_server()
def text2sql(
    asked: AppAsked,
    question: Annotated[str | None, typer.Argument(help="What you want to know.")] = None,
    *,
    then: Annotated[
        list[str] | None, _option("A second question that corrects or continues the first; several in their order.")
    ] = None,
    db: Annotated[
        list[str] | None,
        _option(
            "SQLite or DuckDB file, opened read-only; CSV, Parquet or JSON files, each a table: several --db; or "
            "postgres://USER:PASSWORD@HOST/NAME, mysql://..."
        ),
    ] = None,
    describe: Annotated[
        Path | None, _option("Table of descriptions: table.column in the first column, its meaning in the last.")
    ] = None,
    sample: Annotated[bool, _option("Instead of --db: a small database of singers, made for the occasion.")] = False,
    page: Annotated[bool, _option("Show a web page instead of answering one question.", "Page")] = False,
    port: Annotated[int, _option("Port of the page, on this machine.", "Page")] = 8080,
    evaluate: Annotated[
        Path | None, _option("Measure instead: JSON lines with db_id, question and query.", "Evaluation")
    ] = None,
    databases: Annotated[Path | None, _option("Folder of their SQLite files.", "Evaluation")] = None,
    questions: Annotated[int | None, _option("Number of questions, spread over the file.", "Evaluation", min=1)] = None,
    minutes: Annotated[
        float | None, _option("Minutes after which no further question begins.", "Evaluation", min=0)
    ] = None,
    at_once: Annotated[int, _option("Questions at once.", "Evaluation", min=1)] = 2,
    single: Annotated[bool, _option("One candidate, no revision, no tests.")] = False,
    candidates: Annotated[int, _option("Queries drafted in parallel.", min=1, max=16)] = 3,
    rounds: Annotated[int, _option("Rounds of revision, at most.", min=0, max=10)] = 2,
    seconds: Annotated[float, _option("A query runs, at most.", min=0.01)] = 5.0,
    rows: Annotated[int, _option("Rows of a result, at most.", min=1)] = 1000,
    deadline: Annotated[
        float | None, _option("Seconds for a question, sent to a server that plans workflows (paceline route).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of a report, if one is wanted.", rich_help_panel=OUTPUT)
    ] = None,
    json: AsJson = False,
) -> None:
    """Answer a question about a database: the query, its table, and how it came about.

    Only one SELECT ever runs, on a read-only connection, within the limits of seconds and rows.
    """
    with errors():
        base = SQL_SINGLE if single else SqlPlan(candidates, rounds)
        plan = replace(base, limits=SqlLimits(seconds, rows), deadline_s=deadline)
        if sum((question is not None, page, evaluate is not None)) != 1:
            raise UsageError("Give one of QUESTION, --page and --evaluate FILE.")
        if out is not None and question is None:
            raise UsageError("--out is the folder of one answer's report; give it with a QUESTION.")
        if then and question is None:
            raise UsageError("--then continues a QUESTION; give one.")
        if evaluate is not None:
            if describe is not None:
                raise UsageError("--describe is of one database's columns; leave it out with --evaluate.")
            if db or sample:
                raise UsageError("--evaluate takes its databases from --databases; leave --db and --sample out.")
            if databases is None:
                raise UsageError("--evaluate needs --databases, the folder of the SQLite files.")
            result = asyncio.run(_evaluate(asked, plan, evaluate, databases, questions, minutes, at_once))
            show(result, json, [f"{name}: {value}" for name, value in result.items()], result)
            return
        if (not db) != sample:
            raise UsageError("Give one of --db, an SQLite, DuckDB, CSV or Parquet file or a server, and --sample.")
        with TemporaryDirectory() as folder:
            file = whole(db or [str(example(Path(folder)))], Path(folder))
            if page:
                from .page import serve

                asyncio.run(serve(asked, plan, file, port, describe))
                return
            answered, usage = asyncio.run(_answer(asked, plan, file, [question or "", *(then or ())], describe))
        more = []
        if out is not None:
            more = ["", f"Report: {report(answered, usage).write(out)}"]
            if answered.result is not None:
                (out / "result.csv").write_text(as_csv(answered.result), encoding="utf-8")
                more.append(f"Table: {out / 'result.csv'}")
        show(as_dict(answered), json, [*lines(answered), *more], usage)
        if answered.result is None:
            raise typer.Exit(1)


def whole(given: list[str], folder: Path) -> Path | str:
    """One database of what was given. Raises UsageError."""
    if any("://" in each for each in given):
        if len(given) > 1:
            raise UsageError("A database's server is given alone; leave the other --db out.")
        return given[0]
    paths = [Path(each) for each in given]
    tables = [path for path in paths if is_table(path)]
    if not tables and len(paths) == 1:
        return paths[0]
    if len(tables) < len(paths):
        raise UsageError("Several --db must all be tables (CSV, Parquet, JSON); a database is given alone.")
    try:
        made, notes = imported(tables, folder)
    except QueryError as error:
        raise UsageError(str(error)) from error
    for note in notes:
        typer.echo(note, err=True)
    return made


def pipeline(client: AppClient, plan: SqlPlan, db: Path | str, describe: Path | None = None) -> SqlPipeline:
    """Raises UsageError."""
    try:
        database = open_database(db)
        schema = read_schema(database)
        for note in schema.left_out:
            typer.echo(note, err=True)
        schema = described(schema, read_descriptions(describe)) if describe is not None else schema
        return SqlPipeline(client, database, build(database, schema), plan)
    except QueryError as error:
        raise UsageError(f"{without_secret(db)}: {error}" if error.kind == "error" else str(error)) from error


async def _answer(
    asked: AppAsked, plan: SqlPlan, db: Path | str, questions: list[str], describe: Path | None
) -> tuple[Answered, dict[str, Any]]:
    """The answer to the last of the questions, each of which continues the one before, and what all cost."""
    if not all(question.strip() for question in questions):
        raise UsageError("The question is empty; ask one.")
    async with asked.client() as client:
        sql, began = pipeline(client, plan, db, describe), time.monotonic()
        answered = await sql.answer(questions[0])
        for question in questions[1:]:
            answered = await sql.answer(question, (answered.question, answered.sql))
        client.tally.wall = time.monotonic() - began
        return answered, client.tally.as_dict()


async def _evaluate(
    asked: AppAsked, plan: SqlPlan, path: Path, folder: Path, most: int | None, minutes: float | None, at_once: int
) -> dict[str, Any]:
    from .evaluate import Evaluation, read_questions, summary

    chosen = read_questions(path, most)
    async with asked.client() as client:
        began = time.monotonic()
        with AppBar("questions", len(chosen)) as bar:
            evaluation = Evaluation(client, folder, plan, at_once, minutes)
            scored = await evaluation.run(chosen, lambda each: bar.step())
        client.tally.wall = time.monotonic() - began
        same = [each.question for each in scored]
        alone = await Evaluation(Nobody(), folder, plan, at_once).run(same, lambda each: None)
        out = summary(scored) | {"accuracy without the model": summary(alone)["accuracy"]} | client.tally.as_dict()
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in out.items()}


def as_dict(answered: Answered) -> dict[str, Any]:
    """For JSON."""
    result = answered.result
    rows = result.rows if result else ()
    return {
        "question": answered.question,
        "sql": answered.sql,
        "columns": list(result.columns) if result else [],
        "rows": [[v if isinstance(v, int | float | None) else str(v) for v in row] for row in rows],
        "more": bool(result and result.more),
        "chart": found.as_dict() if result and (found := chart(result)) else None,
        "problem": answered.problem,
        "seconds": round(answered.seconds, 3),
        "trace": [stage(step) for step in answered.trace],
    }


def report(answered: Answered, usage: Mapping[str, Any]) -> Report:
    """The question, the query, its table, the stages and the server's use."""
    shown = Report(answered.question, answered.problem)
    shown.answers(usage)
    shown.code("Query", answered.sql or "(none)")
    if answered.result is not None:
        columns = answered.result.columns
        shown.table(
            "Table", [dict(zip(columns, map(str, row))) for row in answered.result.rows[:SQL_SHOWN]],
            f"{len(answered.result.rows)} rows; all of them are in result.csv.",
        )  # fmt: skip
        if (found := chart(answered.result)) is not None:
            shown.figure("Chart", found.draw, f"{found.value} by {found.label}.", (7, max(3, 0.25 * len(found.labels)))
                         if not found.line else (7, 3))  # fmt: skip
    shown.table("Stages", [{**stage(step), "notes": " · ".join(step.notes)[:300]} for step in answered.trace])
    shown.facts("Server", usage)
    return shown


def as_csv(result: SqlResult) -> str:
    """The table as CSV; nothing for NULL."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(result.columns)
    writer.writerows(["" if value is None else value for value in row] for row in result.rows)
    return out.getvalue()


def stage(s: SqlStep) -> dict[str, Any]:
    times = {"began": round(s.began, 3), "seconds": round(s.seconds, 3)}
    return {"stage": s.name, **times, "calls": s.calls, "notes": s.notes}


def lines(answered: Answered) -> list[str]:
    """For a terminal."""
    head = ["Stages:"]
    for step in answered.trace:
        head.append(f"  {step.name:<12} {step.seconds:7.2f} s  {step.calls} calls")
        head += [f"      {' '.join(note.split())[:200]}" for note in step.notes]
    shown = table(answered.result) if answered.result else f"No table: {answered.problem}"
    return [*head, "", answered.sql or "(no query)", "", shown]
