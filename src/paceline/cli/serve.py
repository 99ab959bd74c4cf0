"""`paceline serve`: flags, environment and settings file to an engine and a server around it."""

import difflib
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TextIO

import typer

from paceline.cli.options import EngineArgs, fail
from paceline.core.errors import InputError
from paceline.core.help import Help
from paceline.core.system import starting
from paceline.engine.options import PANEL_NAME
from paceline.serve.settings import CLUSTER_SETTINGS, ENV_PREFIX, FEWEST_ENGINES, Settings, layered, load, read_toml

if TYPE_CHECKING:
    from paceline.serve.kv_events import KvEvents

LAST_STEP_S = 10.0
"""How long the end waits for the step that the engine is at."""


@dataclass(frozen=True, slots=True)
class ServingArgs(EngineArgs):
    """What shapes an engine that serves many."""

    serves: ClassVar[bool] = True
    small: Annotated[
        str | None, Help("A second, small model that writes with the model, for requests with reasoning.", PANEL_NAME)
    ] = None
    order: Annotated[
        str,
        Help("Order in which requests are served: fcfs, priority, deadline, fair between API keys, else users, or "
             "auto: fair where there are several keys, else fcfs.", PANEL_NAME, commands=False),
    ] = "auto"  # fmt: skip


NOT_CLUSTERED = ("small", "kv_disk")
"""Options of an engine that a cluster does not serve."""
NOT_SHARED = ("models", "index", "datastore", "decision_log", "kv_events_config")
"""Settings of a server that a cluster does not serve."""


def serve(
    context: typer.Context,
    model: str | None,
    engine: ServingArgs,
    server: Settings,
    path: Path | None,
    clustered: bool = False,
) -> None:
    """Load, listen, serve; the arguments are the command's. Ends with the server's exit code. `clustered`: as with
    the setting `cluster`."""
    args, settings = gathered(context, model, engine, server, path)
    if clustered or settings.cluster:
        raise typer.Exit(cluster(args, settings))
    plain = Settings()
    if wish := next((each for each in CLUSTER_SETTINGS if getattr(settings, each) != getattr(plain, each)), None):
        raise InputError(f"{wish} is of a cluster; add cluster, or leave it out.")
    with starting():
        from paceline.serve.run import bind

        sock = bind(settings.host, settings.port)
        from paceline.reason.ensemble import load as load_models
        from paceline.serve import logs
        from paceline.serve.encoders import encoder_at
        from paceline.serve.retrieval import datastore_of, knowledge_of
        from paceline.serve.run import run
        from paceline.serve.server import served_name
        from paceline.simulate.record import LogFile, record

    logs.configure(settings)
    knowledge_of(settings)  # a bad index or datastore is found before a model is loaded
    datastore_of(settings)
    decisions = None if settings.decision_log is None else LogFile(settings.decision_log)
    if settings.models is not None:
        raise typer.Exit(several(args, settings, sock))
    if encoder_at(args.model):
        raise typer.Exit(vectors(args, settings, sock))
    with ExitStack() as ending:
        if decisions is not None:
            ending.callback(decisions.close)
        if (events := publisher(settings)) is not None:
            ending.callback(events.close)
        with starting():
            llm = load_models(**args.arguments())
        ending.callback(llm.close, LAST_STEP_S)
        if decisions is not None:
            record(llm.llm.engine, decisions)
        if events is not None:
            events.attach(llm.llm.engine)
        name = served_name(llm, settings)
        code = run(llm, settings, sock, lambda address: announce(address, name))
    raise typer.Exit(code)


def cluster(args: ServingArgs, settings: Settings) -> int:
    """Serve a model by several engines: the same HTTP API with another engine behind it."""
    for of, banned in ((args, NOT_CLUSTERED), (settings, NOT_SHARED)):
        if wish := next((each for each in banned if getattr(of, each) not in (None, (), [], {})), None):
            raise InputError(f"A cluster does not serve {wish}; leave it out, or serve without cluster.")
    from paceline.cluster.live.aside import heeding_ctrl_c, set_aside

    with ExitStack() as ending:
        with heeding_ctrl_c():
            from paceline.cluster.live.actors import ActorLink, join
            from paceline.cluster.live.engines import Engines
            from paceline.cluster.live.freeness import ScaleRule
            from paceline.cluster.live.serve import run
            from paceline.engine.pair import found
            from paceline.serve import logs
            from paceline.serve.run import bind

            found(args.options())  # says what is wrong with a model before any process is started
            sock = bind(settings.host, settings.port)
            count, most = settings.engines or FEWEST_ENGINES, settings.max_engines
            options = {key: value for key, value in args.arguments().items() if key not in NOT_CLUSTERED}
            if settings.ray_address is None and args.threads is None:
                options["threads"] = max(1, len(os.sched_getaffinity(0)) // (most or count))
            threads = {"OMP_NUM_THREADS": str(options["threads"])} if options.get("threads") else {}
            model = "demo" if args.model is None else Path(args.model).name
            aside = ending.enter_context(set_aside())
            logs.configure(settings, aside.stderr)
            session = join(settings.ray_address)
            session.check_room(most or count, settings.engine_cpus)
            aside.keep(session.logs)
            live = Engines(lambda called: ActorLink(called, options, settings.engine_cpus, threads, session))
            live.check_room = lambda engines: session.check_room(engines, settings.engine_cpus)
            if most is not None:
                live.rule = ScaleRule(fewest=count, most=most)

        def ready(at: str) -> None:
            announce(at, f"{model} by {count} engines", aside.stdout)

        return run(live, count, args.options(), settings, sock, ready, session.watch)


def publisher(settings: Settings) -> "KvEvents | None":
    """What publishes K/V events, if they are wanted. InputError before a model is loaded."""
    if settings.kv_events_config is None:
        return None
    from paceline.serve.kv_events import KvEvents, events_config

    config = events_config(settings.kv_events_config)
    if not config.on:
        return None
    if len(settings.keys()) > 1 and not settings.shared_cache and (where := config.open_to_all):
        raise InputError(
            f"kv_events_config publishes the tokens of all keys' prompts to anyone who can reach {where}, but several "
            "keys are kept apart; bind it to loopback or ipc://, or give --shared-cache."
        )
    return KvEvents(config)


def gathered(
    context: typer.Context, model: str | None, engine: ServingArgs, server: Settings, path: Path | None
) -> tuple[ServingArgs, Settings]:
    """The command's settings from all their layers, with the order that is meant by `auto`."""
    args, settings = gather(given(context), model, engine, server, path)
    if args.order == "auto":
        args = replace(args, order="fair" if len(settings.keys()) > 1 or settings.router_keys else "fcfs")
    if not settings.keys() and os.environ.get(CLIENT_KEY):
        raise InputError(
            f"The environment has {CLIENT_KEY}, the key that clients send, but no key for the server; give "
            f"{CLIENT_KEY}S, or unset it."
        )
    return args, settings


def vectors(args: ServingArgs, settings: Settings, sock: socket) -> int:
    """Serve an encoder: vectors and scores of texts."""
    from paceline.serve.encoders import EncoderHost
    from paceline.serve.run import run

    plain = ServingArgs(model=args.model, order=args.order)
    if changed := sorted(f.name for f in fields(args) if getattr(args, f.name) != getattr(plain, f.name)):
        raise InputError(f"{args.model} is an encoder, which writes no text: {changed[0]} means nothing; leave it out.")
    given = (settings.decision_log, settings.index, settings.kv_events_config)
    if any(each is not None for each in given):
        raise InputError(
            f"{args.model} is an encoder, which writes no text; leave out decision_log, index and kv_events_config."
        )
    host = EncoderHost(Path(str(args.model)), settings)
    return run(host, settings, sock, lambda address: announce(address, host.model))


def several(args: ServingArgs, settings: Settings, sock: socket) -> int:
    """Serve the models of a file; `args` are the options of those that do not say otherwise."""
    from paceline.serve.fleet import Fleet, check_members
    from paceline.serve.run import run

    given = (settings.decision_log, settings.kv_events_config, args.model, args.draft)
    if any(each is not None for each in given):
        raise InputError("models names several models; leave out model, draft, decision_log and kv_events_config.")
    assert settings.models is not None
    table = read_toml(settings.models)
    fleet = Fleet(**fleet_of(table, args, settings.models), settings=settings)
    check_members(fleet)
    try:
        return run(fleet, settings, sock, lambda address: announce(address, ", ".join(fleet.members)))
    finally:
        fleet.close()


def fleet_of(table: Mapping[str, Any], args: ServingArgs, path: Path) -> dict[str, Any]:
    """Arguments of `Fleet` from its file. InputError for what it does not know."""
    if unknown := sorted(table.keys() - {"memory", "idle_s", "models"}):
        raise InputError(f"Unknown setting {unknown[0]!r} in {path}; known are idle_s, memory and models.")
    models, memory, idle = table.get("models"), table.get("memory"), table.get("idle_s", 0.0)
    if not isinstance(models, dict) or not all(isinstance(options, dict) for options in models.values()):
        raise InputError(f"{path} has no tables [models.NAME]; write one for each model.")
    if not models or not all(name.strip() for name in models):
        raise InputError(f"{path} must name at least one model, and no name may be empty; write [models.NAME].")
    numbers = not isinstance(memory, bool) and not isinstance(idle, bool) and isinstance(idle, int | float)
    if not isinstance(memory, int | str | None) or not numbers or not 0 <= idle < math.inf:
        raise InputError(f"{path}: memory must be bytes such as 4G, and idle_s a number of seconds.")
    made = {}
    for name, options in models.items():
        if unknown := sorted(options.keys() - names(ServingArgs)):
            known = ", ".join(sorted(names(ServingArgs)))
            raise InputError(f"Unknown option {unknown[0]!r} of model {name!r} in {path}; known are {known}.")
        own = layered(ServingArgs, {}, {}, options).arguments()
        made[name] = {**args.arguments(), **{option: own[option] for option in options}}
    return {"models": made, "memory": memory, "idle_s": float(idle)}


def gather(
    flags: set[str], model: str | None, engine: ServingArgs, server: Settings, path: Path | None
) -> tuple[ServingArgs, Settings]:
    """The engine's and the server's settings from all their layers; `flags` names what the command line gave."""
    if model is not None and "model" in flags:
        raise InputError("The model is given twice, as MODEL and by --model; give it once.")
    path = path or (Path(env) if (env := os.environ.get(f"{ENV_PREFIX}CONFIG")) else None)
    words: Mapping[str, Any] = {name: getattr(engine, name) for name in flags & names(ServingArgs)}
    if model is not None:
        words = {**words, "model": model}
    args = load(ServingArgs, words, path, (Settings,))
    wishes = {name: getattr(server, name) for name in flags & names(Settings)}
    return args, load(Settings, wishes, path, (ServingArgs,))


CLIENT_KEY = ENV_PREFIX + "API_KEY"
"""The variable with the key that clients' commands send."""
OTHER_VARIABLES = ("CACHE", "CONFIG", "NATIVE", "API_KEY", "FUZZ", "REAL", "SHARED", "SOAK_S")
"""Variables that are no settings: of the cache directory, the settings file, the native library, a client's key, and of
the tests."""


def check_environment(environ: Mapping[str, str]) -> None:
    """End with one sentence where a variable looks like a setting and is none: a slip would be ignored."""
    known = [ENV_PREFIX + name.upper() for name in sorted(names(Settings) | names(ServingArgs))]
    known += [ENV_PREFIX + name for name in OTHER_VARIABLES]
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = (
                f"; {near[0]} is meant?" if near else "; known are those of paceline serve --help and PACELINE_CACHE."
            )
            fail(f"The environment has {name}, which is not a setting{hint} Unset or rename it.")


def names(cls: type) -> set[str]:
    return {f.name for f in fields(cls)}


def given(context: typer.Context) -> set[str]:
    """Parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def announce(address: str, name: str, to: TextIO | None = None) -> None:
    typer.echo(f"Paceline serves {name} at {address}/v1; playground: {address}/", to)
