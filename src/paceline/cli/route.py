"""`paceline route`: plan the calls of workflows over several servers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from paceline.cli.options import option
from paceline.core.errors import InputError
from paceline.serve.settings import CLUSTER_SETTINGS, Settings

if TYPE_CHECKING:
    from paceline.cluster.workflow.policies import MakeOrder


def _route(help: str, *names: str, **more: Any) -> Any:
    return option(help, "Planning", *names, **more)


@dataclass(frozen=True, slots=True)
class RouteArgs:
    """How calls are planned."""

    planner: Annotated[
        str,
        _route("hexgen, hexgen+fcfs, shortest+fcfs, heft, learned, ...", "--planner", "--policy", show_default=True),
    ] = "hexgen"
    slots: Annotated[int, _route("Calls at once on each engine.", show_default=True)] = 4
    alpha: Annotated[
        float, _route("Weight of speed against balance in hexgen, 0 to 1; tuned while it runs.", show_default=True)
    ] = 0.3
    patience: Annotated[float, _route("Seconds after which a call that waits goes first.", show_default=True)] = 120.0
    order: Annotated[
        Path | None, _route("Weights for planner learned, from paceline train workflow-order. Default: those shipped.")
    ] = None
    tune: Annotated[int, _route("Number of workflows after which alpha is tuned; 0: never.", show_default=True)] = 50
    log: Annotated[Path | None, _route("Write what came and what was decided, one JSON object a line.")] = None
    engine_key: Annotated[str | None, _route("Bearer token of the engines.")] = None
    most_losses: Annotated[int, _route("Engines that one call may lose before it is given up.", show_default=True)] = 3


NOT_ROUTED = {
    "served_model_name", "models", "index", "index_encoder", "pooling", "decision_log", "kv_events_config",
    "max_prompt_tokens",
    "max_output_tokens", "max_choices", "response_store_bytes", "max_nodes", "log_prompts", "stall_timeout", "port",
    "cluster", "lora_root", "datastore", *CLUSTER_SETTINGS,
}  # fmt: skip
"""Settings of a server that are the engines' own here."""
_SHARED = [
    (f.name, get_type_hints(Settings, include_extras=True)[f.name], field(default=f.default))
    for f in fields(Settings)
    if f.name not in NOT_ROUTED
]
Shell = make_dataclass("Shell", _SHARED, frozen=True, slots=True)
"""The server's settings of keys, hosts, bodies, connections and logs, which a router has too."""


def route(urls: Sequence[str], args: RouteArgs, shell: Any, port: int) -> None:
    """The command; `shell` is a `Shell`."""
    from paceline.cluster.control.controller import Controller
    from paceline.cluster.control.engines import HttpEngine
    from paceline.cluster.control.router import create
    from paceline.cluster.workflow.hexgen import HexGen
    from paceline.cluster.workflow.log import WorkflowRecorder, write
    from paceline.cluster.workflow.policies import DispatcherSetup
    from paceline.cluster.workflow.tune import Tuner
    from paceline.serve import logs
    from paceline.serve.run import bind, serve_app

    settings = Settings(port=port, **{f.name: _whole(getattr(shell, f.name)) for f in fields(shell)})
    settings.keys()
    if args.most_losses < 1:
        raise InputError(f"most_losses is {args.most_losses}, but a call may lose at least 1 engine.")
    if args.slots < 1 or args.tune < 0 or not args.patience > 0:
        raise InputError("slots must be at least 1, tune at least 0 and patience a positive number.")
    if args.order is not None and args.planner != "learned":
        raise InputError(
            f"order is given, but planner {args.planner} takes none; leave it out, or give --planner learned."
        )
    if len(set(urls)) < len(urls):
        raise InputError("An engine is named twice; give each address once.")
    instances = tuple((url, url, args.slots) for url in urls)
    prior = dict.fromkeys(urls, (0.05, 0.5, 20.0))
    setup = DispatcherSetup(args.planner, instances, prior, args.alpha, args.patience)
    dispatcher = setup.dispatcher(_order(args.order) if args.planner == "learned" else None)
    controller = Controller(dispatcher, {url: HttpEngine(url, args.engine_key) for url in urls})
    controller.most_losses = args.most_losses
    if args.tune and isinstance(dispatcher.planner, HexGen):
        controller.tuner = Tuner(dispatcher.planner, every=args.tune)
        dispatcher.watchers.append(WorkflowRecorder(setup, controller.tuner.sink))
    if args.log is not None:
        try:
            dispatcher.watchers.append(WorkflowRecorder(setup, write(args.log)))
        except OSError as error:
            raise InputError(f"log {args.log} cannot be written ({error.strerror}); give another.") from error
    logs.configure(settings)
    sock = bind(settings.host, settings.port)
    app = create(controller, settings)

    def announce(address: str) -> None:
        typer.echo(f"Routing to {len(urls)} engines at {address}/v1")

    raise typer.Exit(serve_app(app, settings, sock, announce))


def _whole(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _order(path: Path | None) -> "MakeOrder":
    from paceline.cluster.learn.order import LearnedOrder, load

    network = load() if path is None else load(path)
    return lambda predictor: LearnedOrder(network, predictor)
