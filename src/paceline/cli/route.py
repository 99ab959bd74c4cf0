"""`paceline route`: plan the calls of workflows over several servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import option
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.cluster.workflow.policies import MakeOrder


def _route(help: str, **more: Any) -> Any:
    return option(help, "Planning", **more)


@dataclass(frozen=True, slots=True)
class RouteArgs:
    """How calls are planned."""

    planner: Annotated[str, _route("hexgen, hexgen+fcfs, balanced+urgency, rr+fcfs, heft, ...", show_default=True)] = (
        "hexgen"
    )
    slots: Annotated[int, _route("Calls at once on each engine.", show_default=True)] = 4
    alpha: Annotated[float, _route("Of hexgen: speed against balance; tuned as it runs.", show_default=True)] = 0.3
    patience: Annotated[float, _route("Seconds after which a call that waits goes first.", show_default=True)] = 120.0
    order: Annotated[Path | None, _route("Weights for planner learned, from paceline train workflow-order.")] = None
    tune: Annotated[int, _route("Number of workflows after which alpha is tuned; 0: never.", show_default=True)] = 50
    log: Annotated[Path | None, _route("Write what came and what was decided, one JSON object a line.")] = None
    api_key: Annotated[str | None, _route("Bearer token of the engines.")] = None


def route(urls: Sequence[str], args: RouteArgs, host: str, port: int) -> None:
    """The command."""
    import uvicorn

    from paceline.cluster.control.controller import Controller
    from paceline.cluster.control.engines import HttpEngine
    from paceline.cluster.control.router import create
    from paceline.cluster.workflow.hexgen import HexGen
    from paceline.cluster.workflow.log import WorkflowRecorder, write
    from paceline.cluster.workflow.policies import DispatcherSetup
    from paceline.cluster.workflow.tune import Tuner

    if args.slots < 1 or args.tune < 0 or not args.patience > 0:
        raise InputError("slots must be at least 1, tune at least 0 and patience a positive number.")
    if len(set(urls)) < len(urls):
        raise InputError("An engine is named twice; give each address once.")
    instances = tuple((url, url, args.slots) for url in urls)
    prior = dict.fromkeys(urls, (0.05, 0.5, 20.0))
    setup = DispatcherSetup(args.planner, instances, prior, args.alpha, args.patience)
    dispatcher = setup.dispatcher(None if args.order is None else _order(args.order))
    controller = Controller(dispatcher, {url: HttpEngine(url, args.api_key) for url in urls})
    if args.tune and isinstance(dispatcher.planner, HexGen):
        controller.tuner = Tuner(dispatcher.planner, every=args.tune)
        dispatcher.watchers.append(WorkflowRecorder(setup, controller.tuner.sink))
    if args.log is not None:
        try:
            dispatcher.watchers.append(WorkflowRecorder(setup, write(args.log)))
        except OSError as error:
            raise InputError(f"log {args.log} cannot be written ({error.strerror}); give another.") from error
    typer.echo(f"Routing to {len(urls)} engines at http://{host}:{port}/v1")
    uvicorn.run(create(controller), host=host, port=port, log_level="warning")


def _order(path: Path) -> "MakeOrder":
    from paceline.cluster.learn.order import LearnedOrder, load

    network = load(path)
    return lambda predictor: LearnedOrder(network, predictor)
