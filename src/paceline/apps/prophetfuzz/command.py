"""`paceline-apps prophetfuzz`: predict risky combinations of a program's options, fuzz them, compare strategies.

Only for programs that are yours or that you may test."""

import asyncio
import json as json_
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.cli import AppAsked, AppBar, AsJson, Out, UsageError, asks_server, errors, show
from ..common.client import AppClient
from ..common.sandbox import SandboxError, unavailable
from . import show as pages
from .assemble import ALONE, Around, Assembled, FuzzCommand, FuzzPlan, assemble, own_name
from .campaign import (
    PLANTED,
    PLANTED_PAGE,
    FuzzBudget,
    FuzzComparison,
    FuzzError,
    build,
    default_plan,
    dry,
    fuzz,
    random_plan,
)
from .combine import Risky, predict
from .constraints import Constraints, extract
from .manual import Manual, ManualError, find_page, read_page
from .phrases import stated

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
Samples = Annotated[int, typer.Option(min=1, max=64, help="Samples of constraints, and of combinations.")]
Votes = Annotated[int, typer.Option(min=1, max=64, help="Votes on each constraint.")]
Commands = Annotated[int, typer.Option(min=1, help="Commands at most.")]
Page = Annotated[Path | None, typer.Option("--man", help="The man page. Default: what man finds.", exists=True)]
Seconds = Annotated[float, typer.Option(min=2, help="Seconds of each campaign.")]
Slice = Annotated[
    float, typer.Option("--slice", min=1, help="Seconds that a command has before it is the next one's turn.")
]
LARGEST_AUX_BYTES = 1 << 20
Deadline = Annotated[float | None, typer.Option(help="Seconds for each call of the model. Default: none.")]


@dataclass(frozen=True, slots=True)
class FuzzPredicted:
    """What prediction gives; `facts` is the server's use."""

    manual: Manual
    constraints: Constraints
    risky: list[Risky]
    made: Assembled
    facts: dict[str, Any]
    files: Mapping[str, bytes]

    @property
    def plan(self) -> FuzzPlan:
        return FuzzPlan(self.manual.program, self.made.commands, self.made.seeds, self.files)


async def predicted(
    client: AppClient, manual: Manual, samples: int, votes: int, commands: int, deadline_s: float | None,
    around: Around = ALONE,
) -> FuzzPredicted:  # fmt: skip
    """Constraints, combinations, commands: the whole way from a manual to a plan."""
    began = time.monotonic()
    with AppBar("constraints", 3) as bar:
        constraints = await extract(client, manual, samples, votes, deadline_s, stated(manual))
        bar.step("combinations")
        risky = await predict(client, manual, constraints, samples, deadline_s)
        bar.step("commands")
        made = await assemble(client, manual, risky[:commands], around, deadline_s=deadline_s)
        bar.step()
    client.tally.wall = time.monotonic() - began
    facts = {"model": client.model, **client.tally.as_dict()}
    return FuzzPredicted(manual, constraints, risky, made, facts, around.files)


@app.command(name="predict")
@asks_server()
def predict_(
    asked: AppAsked,
    program: Annotated[str, typer.Argument(help="The program, as its man page calls it.")],
    man: Page = None,
    samples: Samples = 10,
    votes: Votes = 10,
    commands: Commands = 20,
    values: Annotated[int, typer.Option(min=1, max=16, help="Sets of values for each combination.")] = 1,
    stdin: Annotated[bool, typer.Option(help="The program reads standard input, not a file that is named.")] = False,
    aux: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: a further file, such as a dictionary, that options can be given. Repeatable."),
    ] = None,
    deadline: Deadline = None,
    out: Out = Path("prophetfuzz-report"),
    json: AsJson = False,
) -> None:
    """From a man page to plan.json: commands with risky combinations, and seeds. Nothing is run but the seeds'
    maker."""
    with mended():
        manual = replace(read_page(man or find_page(program)), program=program)
        around = Around(dict(map(further, aux or ())), stdin, values)

        async def go() -> FuzzPredicted:
            async with asked.client() as client:
                return await predicted(client, manual, samples, votes, commands, deadline, around)

        done = asyncio.run(go())
        out.mkdir(parents=True, exist_ok=True)
        (out / "plan.json").write_text(json_.dumps(done.plan.as_dict(), indent=1))
        page = pages.prediction(manual, done.constraints, done.risky, done.made, done.facts).write(out, "prediction")
        lines = [c.text(program) for c in done.made.commands]
        answer = {
            **done.plan.as_dict(),
            "constraints": [r.sentence() for r in done.constraints.relations],
            "rejected": [r.sentence() for r in done.constraints.votes if r not in done.constraints.relations],
            "server": done.facts,
            "report": str(page),
        }
        show(answer, json, [*lines, str(out / "plan.json"), str(page)], done.facts)


def further(said: str) -> tuple[str, bytes]:
    """A further file as `--aux` names it. Raises UsageError."""
    name, _, path = said.partition("=")
    try:
        data = Path(path).read_bytes() if path else b""
        if not path or len(data) > LARGEST_AUX_BYTES:
            raise ValueError(f"--aux takes NAME=FILE, of at most {LARGEST_AUX_BYTES >> 20} MB.")
        return own_name(name), data
    except (OSError, ValueError) as error:
        raise UsageError(f"--aux {said}: {error}") from error


@app.command(name="fuzz")
def fuzz_(
    plan: Annotated[Path, typer.Argument(help="plan.json of predict.", exists=True)],
    target: Annotated[str, typer.Option(help="The program's file. Default: as found in PATH.")] = "",
    seconds: Seconds = 60.0,
    slice_: Slice = 3.0,
    seed: Annotated[int, typer.Option(help="Seed of afl-fuzz.")] = 0,
    blind: Annotated[bool, typer.Option(help="The target was not built by afl-clang-fast: no coverage.")] = False,
    out: Out = Path("prophetfuzz-report"),
    json: AsJson = False,
) -> None:
    """Run AFL++ over a plan's commands in the sandbox; crashes come with reproducers. No server is asked."""
    with mended():
        try:
            given = FuzzPlan.of(json_.loads(plan.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{plan} is not a plan ({error!r}); make one with predict.") from error
        path = shutil.which(target or given.program)
        if path is None:
            raise UsageError(f"There is no program {target or given.program!r}; give --target FILE.")
        given, dropped = asyncio.run(dry(given, Path(path)))
        if not given.commands:
            raise UsageError(f"{given.program} refuses every command of the plan; predict others.")
        result = asyncio.run(fuzz(given, Path(path), FuzzBudget(seconds, slice_, seed, blind)))
        page = pages.campaign(given.program, result, out, dropped).write(out, "campaign")
        crashes = [
            {"hash": c.hash, "kind": c.kind, "frames": c.frames, "command": c.command.text(given.program)}
            for c in result.crashes
        ]
        answer = {"crashes": crashes, "execs": result.execs, "execs_per_second": result.execs_per_second,
                  "dropped": [{"command": c.text(given.program), "said": why} for c, why in dropped.items()],
                  "seconds": result.seconds, "commands": result.rows, "coverage": result.curve,
                  "report": str(page)}  # fmt: skip
        said = f"{len(crashes)} kinds of crash, {result.execs} runs, {result.execs_per_second:g} a second"
        show(answer, json, [said, *(f"{c['kind']}: {c['command']}" for c in crashes), str(page)])


@app.command()
@asks_server()
def compare(
    asked: AppAsked,
    seconds: Seconds = 30.0,
    slice_: Slice = 2.0,
    seeds: Annotated[int, typer.Option(min=1, help="Campaigns of each strategy.")] = 5,
    samples: Samples = 10,
    votes: Votes = 10,
    commands: Commands = 12,
    deadline: Deadline = None,
    out: Out = Path("prophetfuzz-compare"),
    json: AsJson = False,
) -> None:
    """Compare predicted option combinations with random ones and none, on a program with ten planted bugs, in equal
    time."""
    with mended():
        manual = replace(read_page(PLANTED_PAGE), program="inkpress")
        budget = FuzzBudget(seconds, slice_, persistent=True)

        async def go() -> tuple[FuzzPredicted, FuzzComparison, FuzzPlan, dict[FuzzCommand, str]]:
            target = await build(PLANTED)
            async with asked.client() as client:
                done = await predicted(client, manual, samples, votes, commands, deadline)
            usable, dropped = await dry(done.plan, target)
            count = max(1, len(usable.commands))
            plans = {
                "no options": [default_plan(manual.program)],
                "without the model": [random_plan(manual, count, seed) for seed in range(seeds)],
                "predicted": [usable],
            }
            if not usable.commands:
                raise UsageError(
                    "The model named no combination that can be used; try another model or more --samples."
                )
            result = FuzzComparison()
            for name, each in plans.items():
                plans[name] = [each[i % len(each)] for i in range(seeds)]
            with AppBar("campaigns", seeds * len(plans)) as bar:
                await result.run(plans, target, budget, bar.step)
            return done, result, usable, dropped

        done, result, usable, dropped = asyncio.run(go())
        lines = [c.text(manual.program) for c in usable.commands]
        page = pages.comparison(result, seconds, done.facts, lines, dropped).write(out, "comparison")
        rows = result.rows()
        said = [f"{r['strategy']:<17} {r['mean']:g} of 10 bugs on average, {r['found']}" for r in rows]
        answer = {"strategies": rows, "commands": lines, "server": done.facts, "report": str(page)}
        show(answer, json, [*said, str(page)], done.facts)


@contextmanager
def mended() -> Iterator[None]:
    """`errors`, with this application's own errors as sentences, too, and the sandbox's absence said first."""
    with errors():
        if why := unavailable():
            raise UsageError(why)
        try:
            yield
        except (ManualError, FuzzError, SandboxError) as error:
            raise UsageError(str(error)) from error
