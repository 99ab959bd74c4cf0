"""`paceline cluster`: several engines behind one HTTP API, and words to those who run one."""

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.options import command, option
from paceline.cli.serve import ServingArgs, serve
from paceline.core.errors import InputError
from paceline.serve.settings import Settings

app = typer.Typer(name="cluster", help="Several engines behind one HTTP API, on Ray.", no_args_is_help=True)
Url = Annotated[str, option("The cluster's address.", "Cluster", show_default=True)]
Engines = Annotated[int, option("Number of engines.", "Cluster", show_default=True)]
HERE = "http://127.0.0.1:8000"
SLOW_S = 3600.0
"""Longest wait for a cluster that drains or starts engines."""


@app.command(epilog="Example: paceline cluster up Qwen/Qwen2.5-7B-Instruct --engines 3 --port 8000")
@command
def up(
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="As --model. Default: the demo pair.")] = None,
    *,
    context: typer.Context,
    engine: ServingArgs,
    server: Settings,
    config: Annotated[Path | None, option("TOML file with settings, named as here with _ for -.", "HTTP")] = None,
) -> None:
    """Serve a model by several engines, each in a process of its own: paceline serve --cluster.

    When an engine dies, its answers go on elsewhere with the same text, in the same connection, and a new engine is
    started. Each engine has the options given here, its memory included.
    """
    serve(context, name, engine, server, config, clustered=True)


@app.command(epilog="Example: paceline cluster status")
@command
def status(*, url: Url = HERE) -> None:
    """The engines of a cluster, and what each has."""
    show(asked(url, "/cluster", None))


@app.command(epilog="Example: paceline cluster scale --engines 4")
@command
def scale(*, engines: Engines, url: Url = HERE) -> None:
    """Change the number of engines. Ends when they are there, or those that are too many are gone."""
    show(asked(url, "/cluster/scale", {"engines": engines}))


@app.command(epilog="Example: paceline cluster drain engine-2")
@command
def drain(name: Annotated[str, typer.Argument(metavar="ENGINE", help="Its name.")], *, url: Url = HERE) -> None:
    """Take an engine out; what it decodes goes to the others. Ends when it is gone."""
    show(asked(url, "/cluster/drain", {"engine": name}))


@app.command(epilog="Example: paceline cluster renew")
@command
def renew(*, url: Url = HERE) -> None:
    """A new engine in place of each, one after the other. Ends when all are new."""
    show(asked(url, "/cluster/renew", {}))


def asked(url: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """What a cluster answers; it may want the key of $PACELINE_API_KEY. InputError for a refusal."""
    key = os.environ.get("PACELINE_API_KEY")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        at = url if "://" in url else f"http://{url}"
        call = urllib.request.Request(at.rstrip("/").removesuffix("/v1") + path, data, headers)
        with urllib.request.urlopen(call, timeout=SLOW_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        try:
            why = json.load(error)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            why = f"{url} is no cluster ({error}); start one with paceline cluster up."
        raise InputError(why) from None
    except (OSError, HTTPException, ValueError) as error:
        raise InputError(f"No cluster answers at {url} ({error}); start one with paceline cluster up.") from None


def show(state: dict[str, Any]) -> None:
    """A line for each engine."""
    for each in state["engines"]:
        kv = each["kv"]
        doing = "draining" if each["draining"] else "silent" if each["silent"] else "serving"
        typer.echo(
            f"{each['name']:12} {doing:9} {each['running']} running, "
            f"{each['waiting']} waiting, K/V {kv['used']} of {kv['blocks']} blocks, {each['generated']} tokens"
        )
    typer.echo(f"{state['lost']} engines lost, {state['moved']} requests moved")
