"""`paceline-apps tsci`: forecast a column of a CSV file, or study how good such forecasts are."""

import asyncio
import csv
import json as json_
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.ask import AppSettings
from ..common.cli import AppAsked, AppBar, AsJson, Out, UsageError, asks_server, errors, show
from ..common.dag import Dag, NodeError
from .agents import summarise
from .generate import MAKERS
from .invented import honest
from .pipeline import TsciPipeline, TsciPlan
from .report import as_text, forecast_as_text, of_forecast, of_study
from .series import Series, read_series, windows
from .study import TSCI_COLUMNS, study

app = typer.Typer(
    help="Forecast a time series of a CSV file; models are chosen, weighed and reported. Both ask a server (--url).",
    no_args_is_help=True,
    add_completion=False,
)
Column = Annotated[
    str | None, typer.Option("--column", help="The column to forecast; default the last that holds numbers.")
]
OneOf = Annotated[str | None, typer.Option("--series", help="Which one of a long table; default the first.")]
Horizon = Annotated[int, typer.Option("--horizon", min=1, help="Steps to forecast.")]
History = Annotated[int, typer.Option("--history", min=20, help="Values that a forecast may use.")]
Candidates = Annotated[int, typer.Option("--models", min=1, max=20, help="Models that the planner chooses.")]
Deadline = Annotated[float | None, typer.Option("--deadline", min=0.1, help="Seconds for one call; later: a fallback.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes that fit models.")]
CORES = os.cpu_count() or 1


def loaded(file: Path, column: str | None, one: str | None = None) -> Series:
    """Raises UsageError."""
    try:
        series = read_series(file, column, one)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    for note in series.notes:
        typer.echo(note, err=True)
    return series


def planned(horizon: int, candidates: int, deadline: float | None) -> TsciPlan:
    return TsciPlan(horizon, candidates, settings=AppSettings(max_tokens=220, deadline_s=deadline))


@app.command()
@asks_server(concurrency=8)
def forecast(
    asked: AppAsked,
    file: Annotated[Path, typer.Argument(help="CSV: a column of times and one of numbers.")],
    column: Column = None,
    series: OneOf = None,
    horizon: Horizon = 24,
    history: History = 512,
    models: Candidates = 3,
    workers: Workers = CORES,
    deadline: Deadline = None,
    out: Out = Path("tsci"),
    json: AsJson = False,
) -> None:
    """Forecast what comes after the file's last row; forecast.csv, the report and result.json go to --out."""
    with errors():
        given = loaded(file, column, series)
        row, usage = asyncio.run(ahead(asked, given, history, planned(horizon, models, deadline), workers))
        page = of_forecast(row, usage).write(out)
        written(out, row)
        (out / "result.json").write_text(json_.dumps({**row, "usage": usage}), encoding="utf-8")
        lines = [f"{at} {value:.6g}" for at, value in zip(row["ahead"], row["values"], strict=True)]
        show({**row, "usage": usage}, json, [*lines, f"Report: {page}"], usage)


async def ahead(
    asked: AppAsked, series: Series, history: int, plan: TsciPlan, workers: int
) -> tuple[dict[str, Any], Any]:
    """The forecast beyond the end, and usage. Raises UsageError where none can be made."""
    start = max(0, len(series) - history)
    async with asked.client() as client:
        began = time.monotonic()
        async with Dag(workers=workers, width=100) as dag:
            node = TsciPipeline(dag, client, plan).start(series.name, start, series.values[start:], series.period)
            try:
                made = await node
            except NodeError as error:
                raise UsageError(str(error)) from error
        times = series.following(plan.horizon) or [str(len(series) + n) for n in range(plan.horizon)]
        row = {
            **made.row(), "history": series.values[start:].tolist(), "notes": list(series.notes), "ahead": times,
            "time": list(series.time[start:]),
        }  # fmt: skip
        said, told = await summarise(client, forecast_as_text(row), plan.settings)
        row["summary"], row["left_out"] = honest(said, forecast_as_text(row))
        row["told"].append(told.row())
        client.tally.wall = time.monotonic() - began
        return row, client.tally.as_dict()


def written(out: Path, row: dict[str, Any]) -> None:
    with (out / "forecast.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "forecast", "low_80", "high_80", "low_95", "high_95"])
        bands = [row["bands"][level][side] for level in ("80", "95") for side in (0, 1)]
        for at, *values in zip(row["ahead"], row["values"], *bands, strict=True):
            writer.writerow([at, *(f"{value:.10g}" for value in values)])


@app.command("study")
@asks_server(concurrency=8)
def study_windows(
    asked: AppAsked,
    files: Annotated[list[Path] | None, typer.Argument(help="CSV files, one series each.")] = None,
    made: Annotated[str, typer.Option("--made", help=f"Generated series, by commas: {', '.join(MAKERS)}.")] = "",
    column: Column = None,
    horizon: Horizon = 96,
    history: History = 512,
    count: Annotated[int, typer.Option("--windows", min=1, help="Windows of each series.")] = 10,
    models: Candidates = 3,
    workers: Workers = CORES,
    deadline: Deadline = None,
    out: Out = Path("tsci"),
    json: AsJson = False,
) -> None:
    """Forecast many windows whose future is known but sealed, and score them against seasonal naive."""
    with errors():
        series = sources(files or [], column, made)
        try:
            total = sum(len(windows(one, history, horizon, count)) for one in series)
        except ValueError as error:
            raise UsageError(str(error)) from error
        plan = planned(horizon, models, deadline)
        result = asyncio.run(studied(asked, series, history, count, plan, workers, total))
        page = result.pop("report").write(out)
        (out / "result.json").write_text(json_.dumps(result), encoding="utf-8")
        lines = [
            f"{row['series']:<16} " + "  ".join(f"{name} {row[name]:.4g}" for name in TSCI_COLUMNS)
            for row in result["table"]
        ]
        show(result, json, [*lines, f"Report: {page}"], result["usage"])


def sources(files: list[Path], column: str | None, made: str) -> list[Series]:
    """The series of files and makers. Raises UsageError."""
    names = [name.strip() for name in made.split(",") if name.strip()]
    unknown = [name for name in names if name not in MAKERS]
    if unknown:
        raise UsageError(f"There is no generated series {unknown[0]}; there are {', '.join(MAKERS)}.")
    found = [*(loaded(file, column) for file in files), *(MAKERS[name]() for name in names)]
    if not found:
        raise UsageError("There is nothing to forecast; give a CSV file, or --made.")
    return found


async def studied(
    asked: AppAsked, series: list[Series], history: int, count: int, plan: TsciPlan, workers: int, total: int
) -> dict[str, Any]:
    """The study's result with its report."""
    async with asked.client() as client:
        began = time.monotonic()
        with AppBar("windows", total) as bar:
            result = await study(client, series, history, count, plan, workers, bar.step)
        said, told = await summarise(client, as_text(result), plan.settings)
        client.tally.wall = time.monotonic() - began
        result = {"model": client.model, **result, "usage": client.tally.as_dict()}
        summary, left_out = honest(said, [result["table"], result["horizon"], len(result["lost"])])
        result.update(summary=summary, left_out=left_out)
        return {**result, "report": of_study(result, summary, left_out, told)}
