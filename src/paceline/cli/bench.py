"""`paceline bench`: words of the command line to `paceline.bench.run`, and its report to the terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

from paceline.cli.options import EngineArgs
from paceline.core.errors import InputError

T = TypeVar("T")


def bench(
    engine: EngineArgs,
    prompts: Path,
    methods: str,
    batch: str,
    temperature: str,
    json: Path | None,
    *,
    max_tokens: int,
    num_prompts: int,
    repeat: int,
    seed: int,
) -> None:
    """Measure and report; the arguments are the command's."""
    if engine.drafter is not None:
        raise InputError("bench takes drafters by --methods, not by --drafter; use --methods none,NAME.")
    batches, temperatures = split(batch, int, "batch"), split(temperature, float, "temperature")
    names = split(methods, str, "methods")
    from rich.console import Console
    from rich.progress import Progress

    from paceline.bench.run import Bench
    from paceline.bench.run import bench as measure

    wish = Bench(prompts, names, batches, temperatures, max_tokens, num_prompts, repeat, seed)
    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        report = measure(
            engine.options(),
            wish,
            lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    if json is not None:
        report.write(json)
    Console().print(report.table())
    typer.echo(report.summary())
    for warning in report.warnings:
        typer.echo(f"paceline: warning: {warning}", err=True)
    if not report.passed:
        raise typer.Exit(1)


def split(words: str, kind: Callable[[str], T], name: str) -> list[T]:
    """The values of "1,8". Raises InputError for an empty list or a word that is not of this kind."""
    try:
        values = [kind(word.strip()) for word in words.split(",") if word.strip()]
    except ValueError:
        values = []
    if not values:
        raise InputError(f"--{name} is {words!r}, but it must be a list such as {EXAMPLES[name]}.")
    return list(dict.fromkeys(values))


EXAMPLES = {"batch": "1,8", "temperature": "0,1", "methods": "none,ngram"}
