"""`paceline-apps surge`: make items, predict and score them, plot models by size, predict one program."""

import asyncio
import json as json_
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.ask import AppSettings
from ..common.cli import AppAsked, AppBar, AsJson, Out, UsageError, asks_server, errors, flat, show
from ..common.sandbox import SandboxError
from ..common.usage import mostly_stand_ins
from ..common.usage import told as of_answers
from .ask import SURGE_STYLES, SurgeRecord, evaluate
from .items import SURGE_KINDS, SurgeItem, read, write
from .report import one_model, scaling
from .table import summary, threshold_for, unsure
from .tool import ProgramOutput, output

app = typer.Typer(
    help="Predict what programs print, and score it by running them. run and predict ask a server (--url).",
    no_args_is_help=True,
    add_completion=False,
)
Style = Annotated[str, typer.Option("--style", help=f"How it is asked: {', '.join(SURGE_STYLES)}.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer.")]
Samples = Annotated[
    int, typer.Option("--samples", min=0, max=32, help="Further answers; confidence is the share that says the same.")
]
Deadline = Annotated[float | None, typer.Option("--deadline", min=0.1, help="Seconds for one prediction.")]


def told(work: Any) -> Any:
    """Result of a coroutine; errors that a user can fix become a UsageError."""
    try:
        return asyncio.run(work)
    except (ValueError, OSError, SandboxError) as error:
        raise UsageError(str(error)) from error
    except ExceptionGroup as group:
        known = [error for error in flat(group) if isinstance(error, SandboxError)]
        if not known:
            raise
        raise UsageError(str(known[0])) from group


@app.command()
def generate(
    out: Annotated[Path, typer.Argument(help="The file of items to write, JSON lines.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Items of each kind.")] = 20,
    kinds: Annotated[str, typer.Option("--kinds", help="Which, by commas.")] = ",".join(SURGE_KINDS),
    seed: Annotated[int, typer.Option("--seed", help="Another seed, other items.")] = 0,
    json: AsJson = False,
) -> None:
    """Make fresh items with the toolchains of this machine; each truth is what two runs printed."""
    from .generate import generate as make

    names = [name.strip() for name in kinds.split(",") if name.strip()]
    with errors(), AppBar("running", count * len(names)) as bar:
        items, refused = told(make(names, count, seed, step=bar.step))
        write(items, out)
        lines = [f"{len(items)} items in {out}", *(f"{r.kind} {r.number}: {r.why}" for r in refused)]
        show({"items": len(items), "refused": [vars(r) for r in refused], "file": str(out)}, json, lines)


def made(count: int, seed: int) -> list[SurgeItem]:
    """`count` fresh items of each kind."""
    from .generate import generate as make

    if not count:
        return []
    with AppBar("running", count * len(SURGE_KINDS)) as bar:
        items, _ = told(make(list(SURGE_KINDS), count, seed, step=bar.step))
        return list(items)


def load(files: list[Path], count: int | None, none: bool = False) -> list[SurgeItem]:
    """The items of files, the first `count` of each kind. Raises UsageError, also for none at all unless `none`."""
    try:
        items = [item for file in files for item in read(file)]
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    kept: list[SurgeItem] = []
    for item in items:
        if count is None or sum(other.kind == item.kind for other in kept) < count:
            kept.append(item)
    if not kept and not none:
        raise UsageError("There is no item to predict; give files of paceline-apps surge generate, or --fresh 1.")
    return kept


async def score(
    asked: AppAsked, items: list[SurgeItem], style: str, settings: AppSettings, size: float | None, samples: int
) -> dict[str, Any]:
    """All items predicted and scored: the result that is written and shown."""
    async with asked.client() as client:
        began = time.monotonic()
        with AppBar("predicting", len(items)) as bar:
            records: list[SurgeRecord] = await evaluate(
                client, items, style, settings, asked.concurrency, samples, bar.step
            )
        client.tally.wall = time.monotonic() - began
        return {
            "model": client.model,
            "size": size,
            "style": style,
            "samples": samples,
            "summary": summary(records, items),
            "unsure": unsure(records),
            "usage": client.tally.as_dict(),
            "records": [record.row() for record in records],
        }


@app.command()
@asks_server(concurrency=8)
def run(
    asked: AppAsked,
    files: Annotated[list[Path] | None, typer.Argument(help="Items: files of generate, or the original's.")] = None,
    fresh: Annotated[int, typer.Option("--fresh", min=0, help="Number of items of each kind to make first.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of fresh items.")] = 0,
    style: Style = "zero",
    count: Annotated[int | None, typer.Option("--count", min=1, help="Items of each kind; default all.")] = None,
    size: Annotated[float | None, typer.Option("--size", help="The model's parameters in millions, for scale.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call the model in tables.")] = None,
    max_tokens: MaxTokens = 384,
    deadline: Deadline = None,
    samples: Samples = 0,
    out: Out = Path("surge"),
    json: AsJson = False,
) -> None:
    """Predict and score items; the report and result.json go to --out."""
    with errors():
        settings = AppSettings(max_tokens=max_tokens, deadline_s=deadline, retries=0)
        result = told(
            score(asked, [*made(fresh, seed), *load(files or [], count, fresh > 0)], style, settings, size, samples)
        )
        result["model"] = name or result["model"]
        page = one_model(result).write(out)
        (out / "result.json").write_text(json_.dumps(result, ensure_ascii=False), encoding="utf-8")
        found = result["summary"]
        rows = {**found["columns"], "mean": {**found, "score": found["mean"]}}
        lines = [
            f"{name:<16} {row['score']:.3f}  floor {row['floor']:.3f}  without the model {row['without the model']:.3f}"
            for name, row in rows.items()
        ]
        lines.append(f"Report: {page}")
        show(result, json, lines, result["usage"])


@app.command()
def scale(
    results: Annotated[list[Path], typer.Argument(help="result.json of several models, each run with --size.")],
    out: Out = Path("surge"),
    json: AsJson = False,
) -> None:
    """Plot scores by size of model."""
    with errors():
        try:
            rows = [json_.loads(path.read_text(encoding="utf-8")) for path in results]
            report = scaling(rows)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{error}") from error
        page = report.write(out, "scaling")
        means = {row["model"]: row["summary"]["mean"] for row in rows}
        show({"means": means}, json, [*(f"{name}: {mean:.3f}" for name, mean in means.items()), f"Report: {page}"])


async def predicted(
    asked: AppAsked, files: dict[str, str], command: str, sure: float | None, style: str, s: AppSettings, samples: int
) -> tuple[ProgramOutput, dict[str, Any]]:
    """The output, and what it cost."""
    async with asked.client() as client:
        return await output(client, files, command, sure, style, s, samples), client.tally.as_dict()


def threshold_of(path: Path, right: float, samples: int, style: str) -> float:
    """The confidence from which a run's predictions are right often enough. Raises UsageError."""
    try:
        found = json_.loads(path.read_text(encoding="utf-8"))
        if (found["samples"], found["style"]) != (samples, style):
            raise UsageError(
                f"{path} was measured with --samples {found['samples']} --style {found['style']}; give the same here."
            )
        least = threshold_for(found["records"], right)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no result of surge run that a threshold can be taken from: {error}") from error
    said = "no confidence was enough, so it is run" if least > 1 else f"kept from a confidence of {least:.3f}"
    typer.echo(f"By {path}: {said}.", err=True)
    return least


@app.command()
@asks_server(concurrency=1)
def predict(
    asked: AppAsked,
    files: Annotated[list[Path], typer.Argument(help="The program's files.")],
    command: Annotated[str, typer.Option("--command", help="The shell line that runs it, in their folder.")],
    style: Style = "cot",
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", help="Run it below this confidence; 0 never. Without it and --measured: always."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", help="result.json of a run with this model: the threshold is taken from it."),
    ] = None,
    right: Annotated[
        float, typer.Option("--right", min=0.5, max=1, help="With --measured: share of such predictions to be right.")
    ] = 0.9,
    max_tokens: MaxTokens = 512,
    deadline: Deadline = None,
    samples: Samples = 0,
    json: AsJson = False,
) -> None:
    """Say what a program prints: the model's prediction if a measured run or --threshold trusts it, else what it
    printed in the sandbox, with the prediction next to it."""
    with errors():
        try:
            texts = {path.name: path.read_text(encoding="utf-8") for path in files}
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(str(error)) from error
        settings = AppSettings(max_tokens=max_tokens, deadline_s=deadline, retries=0)
        threshold = threshold if measured is None else threshold_of(measured, right, samples, style)
        said, usage = told(predicted(asked, texts, command, threshold, style, settings, samples))
        typer.echo(f"{said.source}{': ' + said.why if said.why else ''}", err=True)
        if said.source == "run":
            typer.echo(f"predicted: {said.predicted}", err=True)
        typer.echo(of_answers(usage), err=True)
        show(said.row(), json, [said.output])
        if mostly_stand_ins(usage):
            raise typer.Exit(1)
