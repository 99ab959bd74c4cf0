"""Options that every application has, progress on stderr, results on stdout.

app = typer.Typer(...)

@app.command()
@asks_server()
def run(asked: AppAsked, files: list[Path], json: AsJson = False) -> None:
    with errors():
        result = asyncio.run(main(asked, files))
        show(result, json)
"""

import inspect
import json as json_
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .address import without_secret
from .client import AppClient, CallError
from .own import own_server, serves
from .tape import Tape, TapeError
from .usage import mostly_stand_ins, told

URL = "http://127.0.0.1:8000"
SERVER, OUTPUT = "Server", "Output"

AsJson = Annotated[bool, typer.Option("--json", help="Results on stdout as one JSON object.", rich_help_panel=OUTPUT)]
Out = Annotated[Path, typer.Option("--out", help="Folder of the report; made if need be.", rich_help_panel=OUTPUT)]


class UsageError(Exception):
    """Something that the user gave cannot be used; its text is one sentence that says what to do."""


def _server(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=SERVER, **more)


def _output(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=OUTPUT, **more)


@dataclass(frozen=True, slots=True)
class AppAsked:
    """The options of the server and of the log, each written once: `asks_server` makes options of these fields."""

    url: Annotated[
        str | None, _server(f"The server, with or without /v1. Default: {URL}, or one that --model starts.")
    ] = None
    model: Annotated[
        str | None,
        _server("Its name for the model; without --url a model such as smollm2 is served for this run where need be."),
    ] = None
    api_key: Annotated[str | None, _server("Bearer token.", envvar="OPENAI_API_KEY")] = None
    drafter: Annotated[str | None, _server("Drafter of a Paceline server; none decodes plainly.")] = None
    concurrency: Annotated[int, _server("Requests at once.", min=1)] = 16
    timeout: Annotated[float, _server("Seconds for one request.", min=0.1)] = 600.0
    log: Annotated[Path | None, _output("Write every call here, one JSON object a line.")] = None
    replay: Annotated[Path | None, _output("Answer calls from such a log, without a server.")] = None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AppClient]:
        """The client that was asked for, with its tape; with a server of its own where no --url is given and nobody
        serves the model. Raises UsageError, CallError, TapeError."""
        if self.log is not None and self.replay is not None:
            raise UsageError("--log and --replay are both given; a replay has nothing new to log, so give one.")
        tape = Tape.replay(self.replay) if self.replay else Tape.record(self.log) if self.log else None
        try:
            async with AsyncExitStack() as stack:
                url, model = self.url or URL, self.model
                if self.url is None and self.replay is None and not await serves(url, model):
                    if model is None:
                        raise UsageError(f"Nobody answers at {URL}; give --url, or --model smollm2 to start a server.")
                    typer.echo(f"Nobody serves {model} at {URL}; a server is started for this run.", err=True)
                    url, model = await stack.enter_async_context(own_server(model)), None
                yield await stack.enter_async_context(
                    AppClient(url, model, self.api_key, self.drafter, False, self.concurrency, self.timeout, tape)
                )
        finally:
            if tape is not None:
                tape.close()


def asks_server(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make one option for each field of `AppAsked` of a command's first parameter, `asked`. `defaults` replaces those
    of some fields."""

    def made(function: Callable[..., None]) -> Callable[..., None]:
        signature, hints = inspect.signature(function), get_type_hints(AppAsked, include_extras=True)
        given = [it.replace(kind=it.KEYWORD_ONLY) for it in signature.parameters.values() if it.name != "asked"]
        p = inspect.Parameter
        own = [
            p(f.name, p.KEYWORD_ONLY, default=defaults.get(f.name, f.default), annotation=hints[f.name])
            for f in fields(AppAsked)
        ]

        @wraps(function)
        def run(**values: Any) -> None:
            asked = AppAsked(**{f.name: values.pop(f.name) for f in fields(AppAsked)})
            function(asked=asked, **values)

        run.__signature__ = signature.replace(parameters=[*given, *own])  # type: ignore[attr-defined]
        return run

    return made


@contextmanager
def errors() -> Iterator[None]:
    """Turn what a user can mend into one sentence on stderr and exit code 2; Ctrl-C into 130."""
    try:
        yield
    except (UsageError, CallError, TapeError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from error
    except ExceptionGroup as group:
        known = [e for e in flat(group) if isinstance(e, UsageError | CallError | TapeError)]
        if not known:
            raise
        typer.echo(f"Error: {known[0]}", err=True)
        raise typer.Exit(2) from group
    except OSError as error:
        if error.filename is None:
            raise
        place = without_secret(error.filename)
        typer.echo(f"Error: {place}: {error.strerror}; give a place that can be read and written.", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def flat(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from flat(error)
        else:
            yield error


class AppBar:
    """A progress bar on stderr, where stderr is a terminal."""

    def __init__(self, label: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not sys.stderr.isatty())
        self._task = self._progress.add_task(label, total=total)

    def __enter__(self) -> "AppBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, label: str | None = None) -> None:
        """One more is done."""
        self._progress.update(self._task, advance=1, description=label)


def show(result: dict[str, Any], as_json: bool, lines: list[str], usage: Mapping[str, Any] | None = None) -> None:
    """The result on stdout: as one JSON object, or as the given lines. `usage`: of the answers that it is made from,
    which is said; where more than half of them were not the model's, the program ends with exit code 1."""
    if usage is None:
        typer.echo(json_.dumps(result, ensure_ascii=False, default=str) if as_json else "\n".join(lines))
        return
    said = told(usage)
    counts = {name: usage.get(name, 0) for name in ("answers", "answers_of_the_model")}
    whole = {**result, **counts}
    typer.echo(json_.dumps(whole, ensure_ascii=False, default=str) if as_json else "\n".join([*lines, said]))
    if mostly_stand_ins(usage):
        typer.echo(
            f"Error: {said} The rest are stand-ins, so this result is not the model's; see the report.", err=True
        )
        raise typer.Exit(1)
