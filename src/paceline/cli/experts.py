"""`paceline experts`: a table of routes from texts."""

from collections.abc import Sequence
from pathlib import Path

import typer

from paceline.core.errors import InputError

HELD_OUT = 5
"""Parts of the text of which one is kept apart, for measuring."""
BATCH_ROWS = 64
"""Rows of a pass for which the figures are printed."""


def experts(model: str, texts: Sequence[Path], out: Path, processes: int, capacity: float, limit: int) -> None:
    """The command."""
    from paceline.cluster.experts.cocluster import in_turn
    from paceline.cluster.experts.profile import account, table_of
    from paceline.cluster.experts.routes import record
    from paceline.model.spread.table import MAX_DEVICES, RouteTable

    if not 2 <= processes <= MAX_DEVICES:
        raise InputError(f"--processes is {processes}, but it must be 2 to {MAX_DEVICES}.")
    if not capacity >= 1:
        raise InputError(f"--capacity is {capacity:g}, but rows fit only where it is at least 1.")
    if limit < 100:
        raise InputError(f"--tokens is {limit}, but a table needs at least 100.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"There is no directory {out.absolute().parent} for {out.name}.")
    routes, llm = record(model, [read(path) for path in texts], limit)
    with llm:
        vocab = llm.engine.model.vocab_size
    if any(count < processes for count in routes.counts.values()):
        raise InputError(f"--processes is {processes}, but a layer has only {min(routes.counts.values())} experts.")
    cut = len(routes.tokens) * (HELD_OUT - 1) // HELD_OUT
    learned, apart = routes.cut(0, cut), routes.cut(cut, len(routes.tokens))
    table = table_of(learned, vocab, processes, capacity)
    places = {layer: in_turn(count, processes) for layer, count in routes.counts.items()}
    found, plain = (account(apart, it, BATCH_ROWS) for it in (table, RouteTable(processes, 1.0, places)))
    typer.echo("layer  experts  at home  in turn  right home")
    for layer, it in found.items():
        right = it.right / it.rows
        typer.echo(f"{layer:5}  {routes.counts[layer]:7}  {it.share:7.1%}  {plain[layer].share:7.1%}  {right:10.1%}")
    table.save(out)
    typer.echo(
        f"{out}: {cut:,} tokens for {processes} processes; shares are of {len(apart.tokens):,} tokens kept apart."
    )


def read(path: Path) -> str:
    """A text file. InputError where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}.") from None
