"""`paceline-apps quantagent`: decide on one window of bars, or study many, compared with baselines. No advice."""

import asyncio
import json as json_
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.cli import AppAsked, AppBar, AsJson, Out, UsageError, asks_server, errors, show
from .agents import NOTE, QuantDecision, Rules, decide
from .bars import Bars, read_windows
from .cases import LOOKBACK, QUANT_HORIZON, WALK, QuantCase, cases, random_walk
from .report import of_study, of_window
from .study import decisions, results

app = typer.Typer(
    help=f"Analyse bars of prices, decide, back-test. Both commands ask a server (--url). {NOTE}",
    no_args_is_help=True,
    add_completion=False,
)
Deadline = Annotated[float | None, typer.Option("--deadline", min=0.1, help="Seconds for one window; later: no trade.")]
Stop = Annotated[
    float | None,
    typer.Option(
        "--stop", min=1e-5, max=0.5, help="Stop as a share of the price (the paper's is 0.0005); default: by ATR."
    ),
]
Pictures = Annotated[bool, typer.Option("--pictures", help="Show charts to a model that sees pictures.")]
Lookback = Annotated[int, typer.Option("--lookback", min=34, help="Bars that a decision sees.")]


def loaded(path: Path) -> dict[str, Bars]:
    """Windows of a file. Raises UsageError."""
    try:
        return read_windows(path)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


@app.command("decide")
@asks_server(concurrency=8)
def decide_one(
    asked: AppAsked,
    file: Annotated[Path, typer.Argument(help="Bars: CSV with datetime, open, high, low, close; .gz too.")],
    window: Annotated[str | None, typer.Option("--window", help="Which, if the file has several.")] = None,
    lookback: Lookback = LOOKBACK,
    deadline: Deadline = None,
    stop: Stop = None,
    pictures: Pictures = False,
    watch: Annotated[
        float | None,
        typer.Option("--watch", min=0.1, help="Seconds between two looks at the file; decide on each new bar."),
    ] = None,
    out: Out = Path("quantagent"),
    json: AsJson = False,
) -> None:
    """Decide on the end of one window."""
    with errors():
        asset, rules = file.name.split(".")[0], Rules(deadline, stop, pictures)
        bars = ending(file, window, lookback)
        noted(bars)
        if watch is not None:
            asyncio.run(watched(asked, file, window, lookback, rules, out, json, watch))
        made, usage = asyncio.run(one(asked, asset, bars, rules))
        page = of_window(asset, bars, made, usage).write(out)
        more = [made.risk] if made.risk else []
        show(made.row(), json, [f"{named(made)}: {made.why}", *more, NOTE, f"Report: {page}"], usage)


async def watched(
    asked: AppAsked, file: Path, window: str | None, lookback: int, rules: Rules, out: Path, json: bool, every_s: float
) -> None:
    """A decision for each new last bar, until it is interrupted; a file that cannot be read just now is waited for."""
    last, said = "", ""
    asset = file.name.split(".")[0]
    async with asked.client() as client:
        while True:
            try:
                bars = ending(file, window, lookback)
            except UsageError as error:
                if str(error) != said:
                    typer.echo(f"Waiting: {error}", err=True)
                said = str(error)
            else:
                said = ""
                if bars.time[-1] != last:
                    last = bars.time[-1]
                    made = await decide(client, asset, bars, rules)
                    of_window(asset, bars, made, client.tally.as_dict()).write(out)
                    row = {"time": last, **made.row()}
                    typer.echo(json_.dumps(row) if json else f"{last} {named(made)}: {made.risk or made.why}")
            await asyncio.sleep(every_s)


def ending(file: Path, window: str | None, lookback: int) -> Bars:
    """The last bars of a window of a file, the first window if none is named. Raises UsageError."""
    windows = loaded(file)
    name = window or next(iter(windows))
    if name not in windows:
        raise UsageError(f"{file} has no window {name}; it has {', '.join(list(windows)[:8])}.")
    bars = windows[name].last(lookback)
    if window is None and len(windows) > 1:
        listed = ", ".join(list(windows)[:5])
        said = f"{file} holds {len(windows)} windows ({listed}); {name} is read, --window names another."
        bars = replace(bars, notes=(*bars.notes, said))
    if len(bars) < 34:
        raise UsageError(f"{file}, window {name} has {len(bars)} bars; 34 or more are needed.")
    return bars


def noted(bars: Bars) -> None:
    """How a file was read, on stderr."""
    for note in bars.notes:
        typer.echo(note, err=True)


def named(made: QuantDecision) -> str:
    return {1: "LONG", -1: "SHORT", 0: "no trade"}[made.side]


async def one(asked: AppAsked, asset: str, bars: Bars, rules: Rules) -> tuple[QuantDecision, dict[str, Any]]:
    """The decision, and what it cost."""
    async with asked.client() as client:
        return await decide(client, asset, bars, rules), client.tally.as_dict()


@app.command()
@asks_server(concurrency=8)
def study(
    asked: AppAsked,
    files: Annotated[list[Path] | None, typer.Argument(help="One file of windows for each asset.")] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Windows of each asset; default all.")] = None,
    walk: Annotated[int, typer.Option("--walk", min=0, help="Windows of a random walk, as an asset of its own.")] = 0,
    lookback: Lookback = LOOKBACK,
    horizon: Annotated[int, typer.Option("--horizon", min=1, help="Bars that a trade may last.")] = QUANT_HORIZON,
    cost: Annotated[float, typer.Option("--cost", min=0, max=0.1, help="Share of the price paid a side.")] = 0.0002,
    seed: Annotated[int, typer.Option("--seed", help="Seed of coins and walks.")] = 0,
    deadline: Deadline = None,
    stop: Stop = None,
    pictures: Pictures = False,
    out: Out = Path("quantagent"),
    json: AsJson = False,
) -> None:
    """Decide, trade and score many windows, compared with always-long, coins and a rule without a model."""
    with errors():
        rows = gathered(files or [], count, walk, lookback, horizon, seed)
        result = asyncio.run(studied(asked, rows, Rules(deadline, stop, pictures), cost, seed))
        page = of_study(result).write(out)
        (out / "result.json").write_text(json_.dumps(result), encoding="utf-8")
        lines = [
            f"{row['asset']:<12} {row['name']:<12} {row['share']:.3f} in {row['low']:.3f} to {row['high']:.3f}"
            for row in result["scores"]
        ]
        show(result, json, [*lines, NOTE, f"Report: {page}"], result["usage"])


def gathered(
    files: list[Path], count: int | None, walk: int, lookback: int, horizon: int, seed: int
) -> list[QuantCase]:
    """All cases. Raises UsageError."""
    sources = {file.name.split(".")[0]: loaded(file) for file in files}
    for windows in sources.values():
        noted(next(iter(windows.values())))
    if walk:
        sources[WALK] = random_walk(walk, lookback + horizon, seed)
    if not sources:
        raise UsageError("There is nothing to decide on; give a file of windows, or --walk.")
    try:
        return [case for asset, windows in sources.items() for case in cases(asset, windows, count, lookback, horizon)]
    except ValueError as error:
        raise UsageError(str(error)) from error


async def studied(asked: AppAsked, rows: list[QuantCase], rules: Rules, cost: float, seed: int) -> dict[str, Any]:
    async with asked.client() as client:
        began = time.monotonic()
        with AppBar("windows", len(rows)) as bar:
            made = await decisions(client, rows, rules, max(1, asked.concurrency // 3), bar.step)
        client.tally.wall = time.monotonic() - began
        found = results(rows, made, cost, seed)
        return {"model": client.model, "note": NOTE, **found, "usage": client.tally.as_dict()}
