"""`paceline-apps selfpico`: run fragments; compare predictors; record a table."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.cli import AppAsked, AppBar, AsJson, Out, UsageError, asks_server, errors, show
from ..common.sandbox import Job, SandboxError, unavailable
from ..common.sandbox import run as box
from .cut import PICO_SCRIPTS, SEEDED, CutError, Fragment, bodies, scripts
from .emit import standalone
from .fragment import PICO_LIMITS, Ran
from .predict import Nothing, Ordered, Predictor, Types, usual_order
from .predict import PicoModel as ModelPredictor
from .show import report
from .sources import fragments, gathered
from .study import Study
from .table import SHIPPED, RecordError, Subject, Table, record

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
PICO_ALONE = "without the model"
"""SelfPiCo as it is where every call fails: the same search, its words always in the same order."""
PICO_OBJECT = "object"
"""An unknown object for everything, and one run."""
PREDICTORS = ("nothing", PICO_OBJECT, "table", PICO_ALONE, "selfpico")
EVERY = ",".join(PREDICTORS)
Rounds = Annotated[int, typer.Option(min=1, max=9, help="Runs of a fragment at most, each mending the last.")]
Predictors = Annotated[str, typer.Option(help=f"Predictors of values: {', '.join(PREDICTORS)}; several with commas.")]
Calls = Annotated[bool, typer.Option("--call/--no-call", help="Call functions that nobody calls, at the end.")]
Width = Annotated[int, typer.Option(min=1, help="Fragments at once.")]


@app.command()
@asks_server()
def run(
    asked: AppAsked,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Python, notebooks, sessions with >>>, Markdown; folders of them; - is stdin.",
            exists=True,
            allow_dash=True,
        ),
    ],
    emit: Annotated[
        Path | None, typer.Option(help="Write the fragment with what was put in, so that it runs by itself.")
    ] = None,
    out: Out = Path("selfpico-report"),
    json: AsJson = False,
    predictors: Predictors = "selfpico",
    rounds: Rounds = 8,
    width: Width = 8,
    call: Calls = True,
) -> None:
    """Run fragments of files: what is missing is supplied, what ran and what failed is reported."""
    with errors():
        chosen = read(files)
        if emit is not None and len(chosen) != 1:
            raise UsageError(f"--emit writes one fragment, but {len(chosen)} are given; give one.")
        if emit is not None and emit.resolve() in {path.resolve() for path in files}:
            raise UsageError(f"--emit would overwrite {emit}, which is read; give another file.")
        studied(asked, chosen, predictors, rounds, width, out, json, emit, call)


@app.command()
@asks_server()
def study(
    asked: AppAsked,
    packages: Annotated[str, typer.Option(help="Packages to cut bodies of functions from, with commas.")] = "",
    bodies_each: Annotated[int, typer.Option(min=1, help="Bodies of each package.")] = 50,
    with_scripts: Annotated[int, typer.Option(min=0, help="Number of the 100 scripts to run.")] = 100,
    with_seeded: Annotated[bool, typer.Option(help="The 20 scripts with a seeded type error.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the choice of bodies.")] = 0,
    out: Out = Path("selfpico-study"),
    json: AsJson = False,
    predictors: Predictors = EVERY,
    rounds: Rounds = 8,
    width: Width = 8,
    call: Calls = False,
) -> None:
    """Compare predictors on bodies of functions, on short scripts, and on seeded type errors."""
    with errors():
        try:
            chosen = [f for name in packages.split(",") if name for f in bodies(name, bodies_each, seed)]
        except CutError as error:
            raise UsageError(str(error)) from error
        chosen += scripts(PICO_SCRIPTS)[:with_scripts] + (scripts(SEEDED) if with_seeded else [])
        studied(asked, chosen, predictors, rounds, width, out, json, calls=call)


@app.command(name="record")
def record_(
    scripts_: Annotated[list[Path] | None, typer.Argument(metavar="SCRIPTS", help="Programs that run whole.")] = None,
    modules: Annotated[str, typer.Option(help="Modules of the standard library, run by their own tests.")] = "",
    out: Annotated[Path, typer.Option(help="The table that is written.")] = Path("table.json"),
    least: Annotated[int, typer.Option(min=1, help="Leave out words seen less often.")] = 2,
) -> None:
    """Make a table of types by running whole programs in the sandbox; no server is asked."""
    with errors():
        subjects = [Subject.script(path) for path in scripts_ or []]
        table, sites = Table(), 0
        try:
            subjects += [Subject.tested(name) for name in modules.split(",") if name]
            for subject in subjects:
                sites += asyncio.run(record(subject, table))
        except (RecordError, SandboxError) as error:
            raise UsageError(str(error)) from error
        table.write(out, least)
        typer.echo(f"{sites} sites of {len(subjects)} programs; {out}")


def read(paths: list[Path]) -> list[Fragment]:
    """Raises UsageError."""
    try:
        found = gathered([path for path in paths if str(path) != "-"])
        if any(str(path) == "-" for path in paths):
            found += fragments("-", typer.get_text_stream("stdin").read())
    except CutError as error:
        raise UsageError(str(error)) from error
    if not found:
        raise UsageError(f"{paths[0]} holds no Python file and no notebook; give some.")
    return found


def studied(
    asked: AppAsked,
    fragments: list[Fragment],
    names: str,
    rounds: int,
    width: int,
    out: Path,
    json: bool,
    emit: Path | None = None,
    calls: bool = False,
) -> None:
    """Run, write the report, say the figures."""
    wanted = names.split(",")
    if unknown := [name for name in wanted if name not in PREDICTORS]:
        raise UsageError(f"There is no predictor {unknown[0]!r}; give some of {', '.join(PREDICTORS)}.")
    if not fragments:
        raise UsageError("There is nothing to run; give fragments, packages or scripts.")
    if why := unavailable():
        raise UsageError(why)
    result, facts = asyncio.run(compared(asked, fragments, wanted, rounds, width, calls))
    rows, ran = result.rows(), result.ran[wanted[-1]]
    study_of = len(wanted) > 1 or any(f.seeded is not None for f in fragments)
    page = report("What ran", ran, facts, rows if study_of else ()).write(out)
    answer = {
        "predictors": rows,
        "server": facts,
        "report": str(page),
        "fragments": [r.as_dict() for r in ran],
    }
    lines = [
        f"{row['predictor']:<17} {row['group']:<8} {row['mean_share']:.1%} of a fragment's lines ran, "
        f"{row['to_the_end']} of {row['fragments']} to the end"
        + (f", {row['seeded_found']} of {row['seeded']} seeded type errors found" if row["seeded"] else "")
        + (
            f", {row['sure_right']} of {row['sure']} sure findings at a seeded error"
            if row["sure"] and row["seeded"]
            else ""
        )
        for row in rows
    ]
    if not study_of:
        lines += [line for each in ran for line in said_of(each)]
    if emit is not None:
        lines.append(emitted(ran[0], emit))
    show(answer, json, [*lines, str(page)], facts or None)


def said_of(ran: Ran) -> list[str]:
    """A fragment on the terminal: its share of lines and its errors, those that are sure first."""
    if ran.problem and not ran.lines:
        return [f"{ran.name}: {ran.problem}"]
    errors = [f"  line {f.line}: {f.error}: {f.message}" + (" (the fragment's own)" if f.sure else "")
              for f in sorted(ran.findings, key=lambda f: not f.sure)]  # fmt: skip
    stopped = f"; stopped: {ran.stopped}" if ran.stopped else ""
    why = [f"  {ran.problem}"] if ran.problem else []
    return [f"{ran.name}: {len(ran.ran)} of {len(ran.lines)} lines ran{stopped}", *why, *errors]


def emitted(ran: Ran, path: Path) -> str:
    """Write the fragment so that it runs by itself, try it in the sandbox, and print the result. Raises UsageError
    for one that is no Python."""
    if ran.problem and not ran.lines:
        raise UsageError(f"{ran.name} cannot be written out. {ran.problem}")
    text = standalone(ran)
    path.write_text(text, encoding="utf-8")
    outcome = asyncio.run(box(Job((sys.executable, "runnable.py"), {"runnable.py": text}, limits=PICO_LIMITS)))
    if outcome.status == "ok":
        return f"{path} runs to its end by itself."
    if outcome.status == "stopped":
        return f"{path} was written; by itself it is stopped by a limit ({outcome.limit})."
    last = outcome.errors.strip().splitlines()[-1:] or [outcome.status]
    return f"{path} was written; by itself it ends with: {last[0][:200]}"


def predictor(name: str) -> Predictor:
    """A predictor that asks no model."""
    if name == "nothing":
        return Nothing()
    if name == PICO_OBJECT:
        return Types(lambda hole, fragment: "Object", name)
    return Ordered(Table.read(SHIPPED).order if name == "table" else usual_order, name)


async def compared(
    asked: AppAsked, fragments: list[Fragment], names: list[str], rounds: int, width: int, calls: bool
) -> tuple[Study, dict[str, Any]]:
    result = Study(fragments, calls=calls)
    with AppBar("fragments", len(fragments) * len(names)) as bar:
        for name in (n for n in names if n != "selfpico"):
            await result.run(predictor(name), rounds, width, bar.step)
        if "selfpico" not in names:
            return result, {}
        async with asked.client() as client:
            began = time.monotonic()
            await result.run(ModelPredictor(client), rounds, width, bar.step)
            client.tally.wall = time.monotonic() - began
            return result, {"model": client.model, **client.tally.as_dict()}
