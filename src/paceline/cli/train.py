"""`paceline train`: drafters by the methods of train/, each by its name; and one subcommand for each planner that can
be trained, a function in the table below."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from paceline.cli.options import INTERRUPTED, command, option
from paceline.core.errors import InputError
from paceline.engine.options import Dtype

TRAINING = "Training"
Curve = Mapping[str, Sequence[tuple[float, float]]]
Minutes = Annotated[float, option("Minutes to train.", TRAINING, show_default=True)]
Seed = Annotated[int, option("Seed of weights, problems and draws.", TRAINING, show_default=True)]
Output = Annotated[Path, option("Write the weights (safetensors) to this file.", TRAINING, "--output", "-o")]


@command
def workflow_order(*, output: Output, minutes: Minutes = 10.0, seed: Seed = 0) -> None:
    """Train an order of ready calls for graphs of model calls, for the planner `learned` (DeepSoCS).

    A graph network of some hundred parameters learns by REINFORCE on random graphs, on this machine's CPU. Prints mean
    completion over HEFT's on each tenth update's graphs, and at the end what training cost. The run is kept in
    OUTPUT.state: the same command goes on from there.
    """
    from paceline.cluster.learn import reinforce
    from paceline.cluster.learn.order import save

    points = list[tuple[float, float]]()

    def report(now: reinforce.ReinforcementProgress) -> None:
        points.append((now.update, now.ratio))
        if now.update % 10 == 0:
            held = f"{now.ratio:.3f} of HEFT's mean completion, held out {now.held:.4f} at best"
            typer.echo(f"update {now.update}: {held}, {now.seconds:.0f} s", err=True)

    check(output, minutes)
    network, updates = reinforce.train(reinforce.ReinforcementPlan(minutes=minutes, seed=seed), report, _state(output))
    save(network, output)
    _state(output).unlink(missing_ok=True)
    done(output, network, updates, minutes, {"mean completion over HEFT's": points})


@command
def jssp(
    *,
    output: Output,
    minutes: Minutes = 20.0,
    seed: Seed = 0,
    solver_seconds: Annotated[
        float, option("Seconds of CP-SAT for each completion.", TRAINING, show_default=True)
    ] = 1.0,
) -> None:
    """Train a dispatching rule for job shops against CP-SAT's completions; needs OR-tools.

    First the solver's schedules are imitated; then prints the mean makespan of the rule's draws over the solver's
    completions, and what training cost. The run is kept in OUTPUT.state: the same command goes on from there.
    """
    from paceline.cluster.learn import imitate
    from paceline.cluster.learn.dispatcher import save

    points = list[tuple[float, float]]()

    def report(now: imitate.ImitationProgress) -> None:
        points.append((now.update, now.ratio))
        if now.update % 5 == 0:
            spent = f"{now.seconds:.0f} s, {now.solving:.0f} of them CP-SAT's"
            typer.echo(f"update {now.update}: {now.ratio:.3f} of the completions' makespan, {spent}", err=True)

    check(output, minutes)
    if not 0 < solver_seconds < float("inf"):
        raise InputError(f"solver_seconds is {solver_seconds}, but it must be a positive number.")
    plan = imitate.ImitationPlan(minutes=minutes, seed=seed, solver_seconds=solver_seconds)
    network, updates = imitate.train(plan, report, _state(output))
    save(network, output)
    _state(output).unlink(missing_ok=True)
    done(output, network, updates, minutes, {"mean makespan over the solver's": points})


def _state(output: Path) -> Path:
    return output.with_name(output.name + ".state")


@command
def methods() -> None:
    """Show the methods that train a drafter."""
    from rich.console import Console
    from rich.table import Table

    from paceline.train import TRAINERS

    table = Table(box=None, pad_edge=False)
    for name in ("method", "what it makes", "learns from"):
        table.add_column(name)
    for name, card in TRAINERS.items():
        table.add_row(name, card.summary, "the target's answers" if card.data == "answers" else "texts as they are")
    Console(soft_wrap=True).print(table)


@command
def fit(
    *,
    target: Annotated[str, option("The model to draft for: a directory, or a hub id.", TRAINING)],
    milliseconds: Annotated[
        float, option("Milliseconds of a pass of the draft model over one row.", TRAINING, show_default=True)
    ] = 1.0,
    layers: Annotated[int, option("Maximum number of layers.", TRAINING, show_default=True)] = 8,
) -> None:
    """Choose the shape of a small draft model for a model's vocabulary, by measured times of its layers.

    Measures matrices of several widths on this machine, as it is now, and prints the largest model whose pass over one
    row fits the time: settings for paceline train fastdraft.
    """
    from paceline.model.checkpoint import read_config, resolve
    from paceline.train.fastdraft import fit as fitted

    if not 0 < milliseconds < float("inf") or layers < 1:
        raise InputError(f"milliseconds is {milliseconds} and layers {layers}; give more than 0, and at least 1.")
    made = fitted(read_config(resolve(target)).vocab, milliseconds / 1000, most=layers)
    typer.echo(f"{made.parameters:,} weights, {1000 * made.seconds:.2f} ms a pass, by the times of its parts:")
    typer.echo(" ".join(f"--set {key}={value}" for key, value in made.settings.items()))


@command
def drafter(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A name of paceline train list.")],
    *,
    target: Annotated[str, option("The model to draft for: a directory, or a hub id.", TRAINING)],
    data: Annotated[list[Path], option("JSON lines of texts, chats or prompts; may be repeated.", TRAINING)],
    out: Annotated[Path, option("Write the drafter, checkpoints and the log to this directory.", TRAINING)],
    minutes: Annotated[float | None, option("Minutes to train. Default: 10, or what --steps take.", TRAINING)] = None,
    steps: Annotated[int | None, option("Number of training steps.", TRAINING)] = None,
    set: Annotated[list[str] | None, option("Setting of the method, as depth=5; may be repeated.", TRAINING)] = None,
    answers: Annotated[
        bool | None,
        option("Let the target answer the prompts and learn from that. Default: as the method says.", TRAINING,
               "--answers/--as-given"),
    ] = None,
    prompts: Annotated[int, option("Maximum prompts that the target answers.", TRAINING, show_default=True)] = 2000,
    answer: Annotated[int, option("Maximum tokens of an answer.", TRAINING, show_default=True)] = 160,
    temperature: Annotated[float, option("Temperature of the answers.", TRAINING, show_default=True)] = 0.0,
    length: Annotated[int, option("Maximum tokens of a text.", TRAINING, show_default=True)] = 512,
    whole: Annotated[bool, option("Learn from the tokens of the prompts, too.", TRAINING, "--whole/--answers-only",
                                  show_default=True)] = False,
    tokens: Annotated[int, option("Tokens of a batch.", TRAINING, show_default=True)] = 1024,
    accumulate: Annotated[int, option("Batches of a step.", TRAINING, show_default=True)] = 1,
    optimizer: Annotated[str, option("adamw, or muon: for matrices alone.", TRAINING, show_default=True)] = "adamw",
    lr: Annotated[
        float | None,
        option("Learning rate; Muon's is 20/3 of it. Default: the method's, 0.01 for ppd, else 0.001.", TRAINING),
    ] = None,
    seed: Seed = 0,
    dtype: Annotated[Dtype, option("Data type of the target in serving.", TRAINING, show_default=True)] = "bfloat16",
    cache: Annotated[Path | None, option("Keep answers and hidden states in this directory.", TRAINING)] = None,
    cache_size: Annotated[str, option("Maximum bytes of hidden states there.", TRAINING, show_default=True)] = "2G",
) -> None:  # fmt: skip
    """Train a drafter for a model.

    A run that was stopped goes on when the same command is given again; it loses at most a minute. Prints loss,
    accuracy by depth and simulated tau (tokens per pass of the model) as it goes, writes them to log.csv and draws
    them in curve.svg. Serve what it made with paceline serve MODEL --draft DIRECTORY.
    """
    from paceline.cli.progress import Bar
    from paceline.engine.budget import parse_bytes
    from paceline.train import TRAINERS
    from paceline.train.evaluate import engine_tau
    from paceline.train.loop import STATE, TrainingPlan, train

    TRAINERS.card(method)
    minutes = 10.0 if minutes is None and steps is None else minutes
    plan = TrainingPlan(
        method=method, target=target, data=tuple(data), out=out, minutes=minutes, steps=steps,
        settings=settings(set or []), answers=answers, prompts=prompts, answer=answer, temperature=temperature,
        length=length, whole=whole, tokens=tokens, accumulate=accumulate, optimizer=optimizer, lr=lr, seed=seed,
        dtype=dtype, cache=cache, cache_bytes=parse_bytes(cache_size),
    )  # fmt: skip
    try:
        with Bar() as bar:
            made = train(plan, bar.show)
    except KeyboardInterrupt:
        there = (out / STATE).is_file()
        first = "starts from the beginning: there was no checkpoint yet"
        how = f"goes on from the last checkpoint in {out}" if there else first
        typer.echo(f"\nStopped. The same command {how}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{out}: {made.steps} steps, {made.tokens:,} tokens in {made.seconds:.0f} s.")
    if made.scores is not None:
        rates = " ".join(f"{rate:.2f}" for rate in made.scores.conditional)
        taus = f"{made.scores.tau:.2f} with a chain, {made.scores.tree:.2f} with a tree"
        count = len(made.held)
        few = f" Too few texts to tell drafters apart: {FEW_TEXTS} are the least." if count < FEW_TEXTS else ""
        typer.echo(f"On {count} held-out texts: accuracy by depth {rates}; simulated tau {taus}.{few}")
    card = TRAINERS.card(method)
    serves = card.drafter or method
    model, draft = (out, None) if card.model else (target, out)
    measured = engine_tau(model, draft, made.held[:MEASURED], [serves], None, answer, dtype)
    same = "the same text as" if measured.same[serves] else "ANOTHER TEXT than"
    typer.echo(
        f"The engine's tau on {len(made.held[:MEASURED])} of them: {measured.tau[serves]:.2f}, {same} plain decoding."
    )
    if not measured.drafted[serves]:
        typer.echo("It drafted nothing there: no draft of it was expected to pay. Train it longer, or on more texts.")


@command
def every(
    *,
    target: Annotated[str, option("The model to draft for: a directory, or a hub id.", TRAINING)],
    data: Annotated[list[Path], option("JSON lines of texts, chats or prompts; may be repeated.", TRAINING)],
    out: Annotated[Path, option("Write drafters, table and page to this directory.", TRAINING)],
    budget: Annotated[float | None, option("Hours for everything. Default: 1, or what --steps take.", TRAINING)] = None,
    steps: Annotated[int | None, option("Training steps of each: equal tokens, not equal time.", TRAINING)] = None,
    methods: Annotated[str | None, option("Only these, such as medusa,eagle-3. Default: all heads.", TRAINING)] = None,
    draft: Annotated[Path | None, option("A draft model that is measured, too.", TRAINING)] = None,
    test: Annotated[list[Path] | None, option("Prompts to measure on. Default: held-out texts.", TRAINING)] = None,
    each: Annotated[int, option("Number of prompts to measure on.", TRAINING, show_default=True)] = 40,
    answer: Annotated[int, option("Tokens of a measured answer.", TRAINING, show_default=True)] = 96,
    prompts: Annotated[int, option("Maximum prompts that the target answers.", TRAINING, show_default=True)] = 2000,
    seed: Seed = 0,
    dtype: Annotated[Dtype, option("Data type of the target in serving.", TRAINING, show_default=True)] = "bfloat16",
    cache_size: Annotated[str, option("Maximum bytes of hidden states to keep.", TRAINING, show_default=True)] = "2G",
) -> None:  # fmt: skip
    """Train every head for a model within a time, and say which drafter to serve it with.

    The target answers the prompts once and its hidden states are kept for all. Then each head is trained, and measured
    on held-out prompts in turns with plain decoding. Prints the table, and writes it with a plot to index.html. A
    comparison that was stopped goes on when the same command is given again.
    """
    from paceline.cli.progress import Bar
    from paceline.engine.budget import parse_bytes
    from paceline.train.compare import HEAD_CANDIDATES, ComparisonPlan, compare
    from paceline.train.compare_page import advice, table, write_page

    named = {candidate.name: candidate for candidate in HEAD_CANDIDATES}
    wanted = [*named] if methods is None else [name.strip() for name in methods.split(",")]
    if unknown := [name for name in wanted if name not in named]:
        raise InputError(f"methods has {', '.join(map(repr, unknown))}; known are {', '.join(named)}.")
    plan = ComparisonPlan(
        target=target, data=tuple(data), out=out, candidates=tuple(named[name] for name in wanted), steps=steps,
        hours=1.0 if budget is None and steps is None else budget, draft=draft,
        tests={"test": tuple(test)} if test else {}, each=each, answer=answer, prompts=prompts, seed=seed, dtype=dtype,
        cache_bytes=parse_bytes(cache_size),
    )  # fmt: skip
    try:
        with Bar() as bar:
            rows = compare(plan, bar.show_of)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. The same command goes on with what is in {out}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(table(rows))
    typer.echo(advice(plan, rows))
    typer.echo(f"Page: {write_page(plan, rows)}")


def settings(given: list[str]) -> dict[str, str]:
    """{key: value} of texts key=value. Raises InputError."""
    for each in given:
        if "=" not in each:
            raise InputError(f"--set {each!r} is not KEY=VALUE; write for example --set depth=5.")
    return {key: value for key, _, value in (each.partition("=") for each in given)}


DRAFTER = "drafter"
FEW_TEXTS = 10
"""Held-out texts below which the figures are called uncertain."""
MEASURED = 12
"""Held-out prompts that the engine answers at the end."""
COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {
    DRAFTER: (drafter, "Example: paceline train medusa --target MODEL --data prompts.jsonl --out my-head --minutes 10"),
    "all": (every, "Example: paceline train all --target MODEL --data prompts.jsonl --out heads --budget 2"),
    "list": (methods, ""),
    "fit": (fit, "Example: paceline train fit --target MODEL --milliseconds 0.5"),
    "workflow-order": (workflow_order, "Example: paceline train workflow-order --minutes 10 -o order.safetensors"),
    "jssp": (jssp, "Example: paceline train jssp --minutes 20 -o jssp.safetensors"),
}
"""Name: (function, epilog of its help)."""


class Methods(TyperGroup):
    """Names that are no subcommand are methods of train/, which are not imported to show help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return DRAFTER, self.commands[DRAFTER], args
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Methods,
    help=(
        "Train a drafter for your model, or the small networks that planners use.\n\n"
        "[bold]paceline train METHOD --target M --data F --out D[/bold] trains a drafter; [bold]paceline train "
        "list[/bold] names the methods, [bold]paceline train drafter --help[/bold] the options."
    ),
    epilog="Example: paceline train medusa --target Qwen/Qwen2.5-1.5B-Instruct --data prompts.jsonl --out my-head",
    rich_markup_mode="rich",
    no_args_is_help=True,
)
for name, (function, epilog) in COMMANDS.items():
    app.command(name, epilog=epilog)(function)


def check(output: Path, minutes: float) -> None:
    """InputError for what would fail only after the training."""
    if not 0 < minutes < float("inf"):
        raise InputError(f"minutes is {minutes}, but it must be a positive number.")
    if output.is_dir() or not output.resolve().parent.is_dir():
        raise InputError(f"output {output} cannot be written; give a file in a folder that exists.")


def done(output: Path, network: Any, updates: int, minutes: float, curve: Curve) -> None:
    """Draw the curve next to the weights, and say what was made."""
    from paceline.train.curve import draw

    picture = output.with_suffix(".svg")
    draw(picture, output.stem, "update", curve)
    count = sum(weights.numel() for weights in network.parameters())
    typer.echo(f"{output}: {count} parameters after {updates} updates in {minutes:g} minutes; curve: {picture}.")
