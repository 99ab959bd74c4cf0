"""`paceline ps`: the models of running servers."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import typer

from paceline.core.errors import InputError

LISTING_TIMEOUT_S = 5.0
COLUMNS = ("model", "state", "context", "address", "process")


def ps(url: str | None) -> None:
    """Print a line for each model; the argument is the command's."""
    places = running() if url is None else iter([(url.rstrip("/").removesuffix("/v1"), "")])
    lines, silent = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for address, process in places:
        try:
            cards = models(address)
        except (OSError, HTTPException, ValueError, KeyError) as error:
            if url is not None:
                raise InputError(f"No server answers at {url} ({error}); start one with paceline serve.") from None
            silent.append(("?", "does not answer", "", address, process))
            continue
        for card in cards:
            context = card.get("max_model_len")
            lines.append((str(card["id"]), card.get("state") or "loaded", f"{context or '':,}" if context else "",
                          address, process))  # fmt: skip
    answering = {line[-1] for line in lines}  # a cluster listens to its engines, too
    lines += [line for line in silent if line[-1] not in answering]
    if not lines:
        typer.echo("No server runs here; start one with paceline serve.", err=True)
        raise typer.Exit(1)
    widths = [max(len(line[at]) for line in (COLUMNS, *lines)) for at in range(len(COLUMNS))]
    for line in (COLUMNS, *lines):
        typer.echo("  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip())


def models(address: str) -> list[dict[str, Any]]:
    """`/v1/models` of a server, which may want the key of $PACELINE_API_KEY."""
    key = os.environ.get("PACELINE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(f"{address}/v1/models", headers=headers)
    with urllib.request.urlopen(asked, timeout=LISTING_TIMEOUT_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]
    return found


def running() -> Iterator[tuple[str, str]]:
    """Address and process id of each place where a `paceline serve` of this machine listens."""
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if not serves(words):
                continue
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    host, port = connection.laddr
                    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
                    yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", str(process.pid)
        except (psutil.Error, OSError):
            continue


def serves(words: list[str]) -> bool:
    """Is this the command line of a server? The command is `paceline`, or Python's module of that name."""
    if words and Path(words[0]).name.startswith("python"):
        words = words[2:] if words[1:2] == ["-m"] else words[1:]
    called = [Path(word).name for word in words[:3]]
    return called[:2] == ["paceline", "serve"] or called == ["paceline", "cluster", "up"]
