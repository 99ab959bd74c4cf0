"""`paceline bench serve` and `paceline bench record`: words of the command line to `paceline.bench.load`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli.options import INTERRUPTED, command, option
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.bench.load.report import LoadReport
    from paceline.bench.load.run import Load, LoadTarget, LoadTask

SERVE_EXAMPLE = (
    "Example: paceline bench serve --url http://127.0.0.1:8000 --prompts gsm8k_test.jsonl --rate 1,2,4 "
    "--slo ttft:200,tpot:50 --plot load.svg"
)
RECORD_EXAMPLE = "Example: paceline bench record traffic.jsonl --url http://127.0.0.1:8000 --port 8001"


@dataclass(frozen=True, slots=True)
class ServerArgs:
    """Options that say which server is asked."""

    url: Annotated[str, option("The server, with or without /v1.", "Server", show_default=True)] = (
        "http://127.0.0.1:8000"
    )
    model: Annotated[str | None, option("Its name for the model. Default: the first that it lists.", "Server")] = None
    api_key: Annotated[
        str | None, option("Sent as a bearer token.", "Server", envvar="OPENAI_API_KEY", show_envvar=True)
    ] = None
    endpoint: Annotated[Literal["chat", "completions"], option("Endpoint.", "Server", show_default=True)] = "chat"
    timeout: Annotated[float, option("Seconds that one request may take.", "Server", show_default=True)] = 600.0
    max_connections: Annotated[
        int | None,
        option("Maximum connections; the wait for a free one counts as latency. Default: no limit.", "Server"),
    ] = None


@dataclass(frozen=True, slots=True)
class RequestArgs:
    """What to ask."""

    prompts: Annotated[
        Path | None,
        option("JSON lines with prompt (HumanEval, yours), question (GSM8K) or turns (Spec-Bench).", "Requests"),
    ] = None
    requests: Annotated[
        int | None,
        option("Requests of each load. Default: 100, all of a recording, or what --duration holds.", "Requests"),
    ] = None
    duration: Annotated[float | None, option("Seconds to send for at each load.", "Requests")] = None
    warmup: Annotated[int, option("Requests before, not measured.", "Requests", show_default=True)] = 4
    max_tokens: Annotated[int, option("Maximum tokens per answer.", "Requests", show_default=True)] = 128
    temperature: Annotated[float | None, option("0 is greedy. Default: the server's.", "Requests")] = None
    seed: Annotated[
        int,
        option("Seed of the arrivals and of the first request; the next adds 1.", "Requests", show_default=True),
    ] = 0
    body: Annotated[str | None, option("JSON object of further fields, such as '{\"top_p\": 0.9}'.", "Requests")] = None


@dataclass(frozen=True, slots=True)
class ArrivalArgs:
    """When to ask. A list sweeps."""

    rate: Annotated[
        str | None, option("Open loop: requests a second, such as 1,2,4; inf: all at once.", "Arrivals")
    ] = None
    burstiness: Annotated[
        float,
        option("Shape of the gaps' gamma distribution: 1 Poisson, below burstier.", "Arrivals", show_default=True),
    ] = 1.0
    constant: Annotated[bool, option("Even gaps instead.", "Arrivals", "--constant")] = False
    recorded: Annotated[Path | None, option("Open loop: replay a recording (paceline bench record).", "Arrivals")] = (
        None
    )
    speed: Annotated[str, option("Factor over the recorded speed, such as 1,2.", "Arrivals", show_default=True)] = "1"
    clients: Annotated[str | None, option("Closed loop, a baseline: numbers of clients, such as 1,8.", "Arrivals")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class ReportArgs:
    """What to say."""

    slo: Annotated[str | None, option("Limits for goodput in ms, such as ttft:200,tpot:50,e2e:2000.", "Report")] = None
    plot: Annotated[Path | None, option("Draw latencies and rates against load to this SVG file.", "Report")] = None
    json: Annotated[Path | None, option("Write everything, each request too, to this file.", "Report")] = None


@command
def serve(server: ServerArgs, what: RequestArgs, when: ArrivalArgs, output: ReportArgs) -> None:
    """Measure a running OpenAI-compatible server under load.

    Open loop (--rate, --recorded): requests arrive when they arrive, however slow the server is, and latencies count
    from the intended arrival: no waiting is left out. With --clients each client waits for its answer first.

    TTFT: time to the first token. TPOT: mean time of each later token of a request. TBT: each wait between two chunks
    with tokens; after speculation a chunk holds several. E2E: to the end of the answer. goodput: requests a second
    that kept the --slo. Nothing is retried; a 429 is a failure.
    """
    from rich.console import Console

    from paceline.bench.load.run import load
    from paceline.cli.bench import progress

    if output.plot is not None and output.plot.suffix != ".svg":
        raise InputError(f"--plot is {str(output.plot)!r}, but it must end in .svg.")
    target, task = _target(server), _task(server, what, when, output)
    with progress() as tell:
        report = load(target, task, tell)
    if output.json is not None:
        report.write(output.json, _args(server, what, when, output))
    if output.plot is not None:
        report.plot(output.plot)
    _say(report, Console())
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


@command
def record(
    out: Annotated[Path, typer.Argument(help="A new file of JSON lines, for paceline bench serve --recorded.")],
    url: Annotated[str, option("The server behind.", "Server", show_default=True)] = "http://127.0.0.1:8000",
    host: Annotated[str, option("Where clients connect.", "Server", show_default=True)] = "127.0.0.1",
    port: Annotated[int, option("Where clients connect; 0: any that is free.", "Server", show_default=True)] = 8001,
) -> None:
    """Record live traffic: stand between clients and a server, until Ctrl-C.

    Point your clients to this port. Bytes pass through untouched; of each completion the time and the body are
    written, prompts included, headers and so keys not.
    """
    from paceline.bench.load.recorder import record

    def ready(port: int) -> None:
        typer.echo(f"Recording http://{host}:{port} to {out}; Ctrl-C ends.", err=True)

    typer.echo(f"{record(url, out, host, port, ready)} requests recorded.", err=True)


def _target(server: ServerArgs) -> "LoadTarget":
    from paceline.bench.load.run import LoadTarget

    if not server.timeout > 0 or (server.max_connections is not None and server.max_connections < 1):
        raise InputError("--timeout and --max-connections must be above 0.")
    return LoadTarget(server.url, server.api_key, server.timeout, server.max_connections)


def _task(server: ServerArgs, what: RequestArgs, when: ArrivalArgs, output: ReportArgs) -> "LoadTask":
    from paceline.bench.load import stats, workload
    from paceline.bench.load.run import LoadTask

    loads = _loads(when)
    if (what.prompts is None) == (when.recorded is None):
        raise InputError("Give either --prompts FILE.jsonl, or --recorded FILE.jsonl, which brings its own.")
    wish = workload.LoadWish(
        server.model or "", server.endpoint, what.max_tokens, what.temperature, what.seed, _extra(what.body)
    )
    few = 100 if what.duration is None and when.recorded is None else None
    lines = [] if when.recorded is None else workload.read_recording(when.recorded)
    requests = what.requests or few or (len(lines) or None)
    return LoadTask(
        wish,
        loads,
        [] if what.prompts is None else workload.from_prompts(what.prompts),
        lines,
        requests,
        what.duration,
        what.warmup,
        None if output.slo is None else stats.parse_slo(output.slo),
    )


def _loads(when: ArrivalArgs) -> list["Load"]:
    """The sweep. Raises InputError unless exactly one kind of arrivals is given."""
    from paceline.bench.load.run import Load
    from paceline.cli.bench import split

    given = [name for name in ("rate", "recorded", "clients") if getattr(when, name) is not None]
    if len(given) != 1:
        raise InputError("Give one of --rate, --recorded and --clients: it says when requests are sent.")
    if (when.rate is None and (when.constant or when.burstiness != 1)) or (when.constant and when.burstiness != 1):
        raise InputError("--burstiness and --constant shape the gaps of --rate; give at most one of them, with it.")
    if when.recorded is None and when.speed != "1":
        raise InputError("--speed plays a recording faster; give it with --recorded.")
    if when.clients is not None:
        return [Load(clients=n) for n in split(when.clients, int, "clients")]
    if when.recorded is not None:
        return [Load(speed=x) for x in split(when.speed, float, "speed")]
    shape = float("inf") if when.constant else when.burstiness
    return [Load(rate=x, burstiness=shape) for x in split(when.rate or "", float, "rate")]


def _extra(body: str | None) -> Mapping[str, Any]:
    import orjson

    from paceline.bench.load.workload import OWN_FIELDS

    try:
        extra = {} if body is None else orjson.loads(body)
    except ValueError as error:
        raise InputError(f"--body does not parse as JSON ({error}); give an object such as {{}}.") from None
    if not isinstance(extra, dict) or OWN_FIELDS & extra.keys():
        raise InputError(
            f"--body must be a JSON object without {', '.join(sorted(OWN_FIELDS))}, which are set by bench serve."
        )
    return extra


def _args(*groups: Any) -> dict[str, Any]:
    """Settings for the JSON file, without the API key."""
    return {name: value for group in groups for name, value in asdict(group).items() if name != "api_key"}


def _say(report: "LoadReport", console: Any) -> None:
    for table in report.tables():
        console.print(table)
    for note in report.notes():
        typer.echo(note)
    for warning in report.warnings():
        typer.echo(f"paceline: warning: {warning}", err=True)
