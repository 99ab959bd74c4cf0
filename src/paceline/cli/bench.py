"""`paceline bench`: words of the command line to `paceline.bench.run`, and its report to the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from paceline.cli.options import EngineArgs
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.bench.report import BenchReport

T = TypeVar("T")


def bench(
    engine: EngineArgs,
    prompts: Path | None,
    methods: str,
    batch: str,
    temperature: str,
    json: Path | None,
    *,
    max_tokens: int,
    num_prompts: int,
    repeat: int,
    seed: int,
    synthetic_acceptance: float | None,
    profile: bool,
    plot: Path | None,
) -> None:
    """Measure and report; the arguments are the command's."""
    if engine.drafter is not None:
        raise InputError("bench takes drafters by --methods, not by --drafter; use --methods none,NAME.")
    batches, temperatures = split(batch, int, "batch"), split(temperature, float, "temperature")
    names = split(methods, str, "methods")
    if prompts is None and profile:
        time_parts(engine, temperatures[0], seed, plot, json, None)
        return
    from rich.console import Console

    from paceline.bench.run import Bench
    from paceline.bench.run import bench as measure

    wish = Bench(
        needed(prompts), names, batches, temperatures, max_tokens, num_prompts, repeat, seed, synthetic_acceptance
    )
    with progress() as tell:
        report = measure(engine.options(), wish, tell)
    if json is not None:
        report.write(json)
    if plot is not None and not profile:
        from paceline.bench.picture import draw

        draw(report, plot)
    Console().print(report.table())
    typer.echo(report.summary())
    if synthetic_acceptance is not None:
        typer.echo(f"user: a draft that costs nothing, each token right with chance {synthetic_acceptance:g}.")
    for warning in report.warnings:
        typer.echo(f"paceline: warning: {warning}", err=True)
    if profile:
        time_parts(engine, temperatures[0], seed, plot, json, report)
    if not report.passed:
        raise typer.Exit(1)


def compare(
    engine: EngineArgs,
    prompts: Path,
    root: Path,
    methods: str,
    batch: str,
    temperature: str,
    json: Path | None,
    *,
    max_tokens: int,
    num_prompts: int,
    repeat: int,
) -> None:
    """`--peers`: measure the tools of `root` and report. The model and draft are those that `root` was set up for."""
    unlike = replace(EngineArgs(), model=engine.model, draft=engine.draft, threads=engine.threads)
    changed = [f.name for f in fields(engine) if getattr(engine, f.name) != getattr(unlike, f.name)]
    changed += ["methods"] * (methods != "all") + ["temperature"] * (split(temperature, float, "temperature") != [0.0])
    if changed:
        name = changed[0].replace("_", "-")
        raise InputError(f"--peers compares greedy decoding with Paceline at its defaults; leave out --{name}.")
    model, draft = (None if path is None else Path(path) for path in (engine.model, engine.draft))
    batches = split(batch, int, "batch")
    from rich.console import Console

    from paceline.bench import peers

    wish = peers.PeerWish(root, prompts, model, draft, batches, max_tokens, num_prompts, repeat, engine.threads)
    with progress() as tell:
        report = peers.compare(wish, tell)
    if json is not None:
        report.write(json)
    Console().print(report.table())
    for note in report.notes:
        typer.echo(note)
    for warning in report.warnings:
        typer.echo(f"paceline: warning: {warning}", err=True)


def time_parts(
    engine: EngineArgs,
    temperature: float,
    seed: int,
    plot: Path | None,
    json: Path | None,
    report: "BenchReport | None",
) -> None:
    """`--profile`: time a step by part, print it, draw it, and write it to `json` together with the report."""
    from rich.console import Console

    from paceline.bench.files import versions
    from paceline.bench.profile import profile
    from paceline.bench.report import machine
    from paceline.core.params import SamplingParams

    options = engine.options()
    params = SamplingParams(temperature=temperature, seed=seed, verifier=options.verifier)
    with progress() as tell:
        found = profile(options, params, tell)
    Console().print(found.table())
    typer.echo(found.summary())
    for warning in found.warnings:
        typer.echo(f"paceline: warning: {warning}", err=True)
    if plot is not None:
        found.plot(plot)
    if json is not None:
        args = {**asdict(options), "token": None, "temperature": temperature, "seed": seed}
        own = {"machine": machine(options.device), "versions": dict(versions()), "args": args}
        found.write(json, own if report is None else asdict(report))


def quality(engine: EngineArgs, prompts: Path | None, num_prompts: int, json: Path | None) -> None:
    """`--perplexity`: measure the perplexity, print it, and write it to `json`."""
    if prompts is None:
        raise InputError("--perplexity reads its texts from a file; give --prompts FILE.jsonl.")
    from paceline.bench.perplexity import perplexity

    options = engine.options()
    with progress() as tell:
        found = perplexity(options, prompts, num_prompts, tell)
    typer.echo(found.summary())
    if json is not None:
        found.write(json, options)


def time_kernels(context: typer.Context, json: Path | None) -> None:
    """`--kernels`: time the kernels, print the figures, and write them to `json`."""
    for name in given(context):
        if name not in ("kernels", "json", "threads"):
            raise InputError(f"--kernels is a measurement of its own; leave out --{name.replace('_', '-')}.")
    import torch
    from rich.console import Console

    from paceline.bench.kernels import measure_kernels

    if context.params.get("threads") is not None:
        torch.set_num_threads(context.params["threads"])
    found = measure_kernels()
    Console(width=160).print(found.table())
    typer.echo(found.summary())
    if json is not None:
        found.write(json)


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """Progress bar on stderr, if that is a terminal; called with (done, total, what)."""
    from rich.console import Console
    from rich.progress import Progress

    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def alone(context: typer.Context) -> None:
    """Raise InputError for an option that was given with --perplexity and has no effect on it."""
    for name in given(context):
        if name not in QUALITY:
            raise InputError(f"--perplexity is a measurement of its own; leave out --{name.replace('_', '-')}.")


def unused(context: typer.Context, command: str) -> None:
    """Raise InputError for an option that was given before the name of a sub-command."""
    for name in given(context):
        raise InputError(f"--{name.replace('_', '-')} stands before {command}; give the options of {command} after it.")


def given(context: typer.Context) -> Iterator[str]:
    """The parameters that the user set."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            yield name


def check(profile: bool, plot: Path | None, peers: Path | None, prompts: Path | None, synthetic: bool) -> None:
    """Raise InputError for options that do not go together."""
    if synthetic and (peers is not None or prompts is None):
        raise InputError("--synthetic-acceptance adds a drafter to a run over --prompts, and has no part in --peers.")
    if plot is not None and peers is not None:
        raise InputError("--plot draws what --methods or --profile measures, and has no part in --peers; leave it out.")
    if plot is not None and profile and plot.suffix != ".svg":
        raise InputError(f"--plot is {str(plot)!r}, but it draws what --profile measures to a file that ends in .svg.")
    if plot is not None and not profile:
        from paceline.bench.picture import check as drawable

        drawable(plot)
    if profile and peers is not None:
        raise InputError("--profile and --peers are separate measurements; give one of them.")


def needed(prompts: Path | None) -> Path:
    if prompts is None:
        raise InputError("bench compares drafters on your prompts; give --prompts FILE.jsonl, or --profile alone.")
    return prompts


def split(words: str, kind: Callable[[str], T], name: str) -> list[T]:
    """The values of "1,8". Raises InputError for an empty list or a word that is not of this kind."""
    try:
        values = [kind(word.strip()) for word in words.split(",") if word.strip()]
    except ValueError:
        values = []
    if not values:
        raise InputError(f"--{name} is {words!r}, but it must be a list such as {OPTION_EXAMPLES[name]}.")
    return list(dict.fromkeys(values))


OPTION_EXAMPLES = {
    "batch": "1,8", "temperature": "0,1", "methods": "none,ngram", "rate": "1,2,4", "speed": "1,2", "clients": "1,8",
}  # fmt: skip
QUALITY = {
    "perplexity", "prompts", "num_prompts", "json", "model", "dtype", "quantize", "kv_dtype", "device", "threads",
    "max_model_len", "memory", "blocks", "revision", "token",
}  # fmt: skip
"""Options that --perplexity uses."""
