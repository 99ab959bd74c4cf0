"""`paceline train`: one subcommand for each thing that can be trained, a function in the table below."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.options import command, option
from paceline.core.errors import InputError

PANEL = "Training"
Minutes = Annotated[float, option("Train for so long.", PANEL, show_default=True)]
Seed = Annotated[int, option("Of weights, problems and draws.", PANEL, show_default=True)]
Output = Annotated[Path, option("Write the weights (safetensors) to this file.", PANEL, "--output", "-o")]


@command
def workflow_order(*, output: Output, minutes: Minutes = 10.0, seed: Seed = 0) -> None:
    """Train an order of ready calls for graphs of model calls, for the planner `learned` (DeepSoCS).

    A graph network of some hundred parameters learns by REINFORCE on random graphs, on this machine's CPU. Prints mean
    completion over HEFT's on each tenth update's graphs, and at the end what training cost.
    """
    from paceline.cluster.learn import reinforce
    from paceline.cluster.learn.order import save

    def report(now: reinforce.Progress) -> None:
        if now.update % 10 == 0:
            typer.echo(f"update {now.update}: {now.ratio:.3f} of HEFT's mean completion, {now.seconds:.0f} s", err=True)

    check(output, minutes)
    network, updates = reinforce.train(reinforce.Plan(minutes=minutes, seed=seed), report)
    save(network, output)
    done(output, network, updates, minutes)


@command
def jssp(
    *,
    output: Output,
    minutes: Minutes = 20.0,
    seed: Seed = 0,
    solver_seconds: Annotated[float, option("Of CP-SAT for each completion.", PANEL, show_default=True)] = 1.0,
) -> None:
    """Train a dispatching rule for job shops against CP-SAT's completions; needs OR-tools.

    Prints the mean makespan of the rule's draws over the solver's completions, and what training cost.
    """
    from paceline.cluster.learn import imitate
    from paceline.cluster.learn.dispatcher import save

    def report(now: imitate.Progress) -> None:
        if now.update % 5 == 0:
            spent = f"{now.seconds:.0f} s, {now.solving:.0f} of them CP-SAT's"
            typer.echo(f"update {now.update}: {now.ratio:.3f} of the completions' makespan, {spent}", err=True)

    check(output, minutes)
    if not 0 < solver_seconds < float("inf"):
        raise InputError(f"solver_seconds is {solver_seconds}, but it must be a positive number.")
    plan = imitate.Plan(minutes=minutes, seed=seed, solver_seconds=solver_seconds)
    network, updates = imitate.train(plan, report)
    save(network, output)
    done(output, network, updates, minutes)


COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {
    "workflow-order": (workflow_order, "Example: paceline train workflow-order --minutes 10 -o order.safetensors"),
    "jssp": (jssp, "Example: paceline train jssp --minutes 20 -o jssp.safetensors"),
}
"""Name: (function, epilog of its help)."""

app = typer.Typer(help="Train the small networks that planners use.", no_args_is_help=True)
for name, (function, epilog) in COMMANDS.items():
    app.command(name, epilog=epilog)(function)


def check(output: Path, minutes: float) -> None:
    """InputError for what would fail only after the training."""
    if not 0 < minutes < float("inf"):
        raise InputError(f"minutes is {minutes}, but it must be a positive number.")
    if output.is_dir() or not output.resolve().parent.is_dir():
        raise InputError(f"output {output} cannot be written; give a file in a folder that exists.")


def done(output: Path, network: Any, updates: int, minutes: float) -> None:
    count = sum(weights.numel() for weights in network.parameters())
    typer.echo(f"{output}: {count} parameters after {updates} updates in {minutes:g} minutes.")
