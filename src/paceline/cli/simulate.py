"""`paceline simulate`: check that a decision log replays, or run its requests on a virtual clock."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import option
from paceline.core.errors import InputError

if TYPE_CHECKING:
    from paceline.simulate.figures import Figures
    from paceline.simulate.log import Event
    from paceline.simulate.workload import Workload


def _change(help: str, **more: Any) -> Any:
    return option(help, "What to change", **more)


@dataclass(frozen=True, slots=True)
class ChangeArgs:
    """What a simulated engine or its load has other than the recorded one."""

    rate_scale: Annotated[float, _change("Factor by which requests arrive more often.", show_default=True)] = 1.0
    clients: Annotated[
        int | None,
        _change("Number of clients; each sends its next request once the last is answered, not by the clock."),
    ] = None
    blocks: Annotated[int | None, _change("Blocks of the K/V cache.")] = None
    max_requests: Annotated[int | None, _change("Samples decoded at once.")] = None
    row_budget: Annotated[int | None, _change("Maximum rows of one pass.")] = None
    eviction: Annotated[str | None, _change("Which cached prefix to forget first.")] = None
    schedule: Annotated[str | None, _change("chunked, layered, prefill_first or decode_first.")] = None
    order: Annotated[str | None, _change("fcfs, priority, deadline or fair.")] = None
    tbt_target_ms: Annotated[float | None, _change("Maximum step time while a request decodes, for chunked.")] = None
    group_size: Annotated[int | None, _change("Maximum number of requests that decode in a step.")] = None
    layer_groups: Annotated[int | None, _change("Groups of layers by which a prompt advances, for layered.")] = None
    seed: Annotated[int, _change("Seed of the draws of what is accepted.", show_default=True)] = 0

    def config(self) -> dict[str, Any]:
        """Changed values that are fields of `EngineConfig`."""
        from paceline.engine.config import EngineConfig

        known = {f.name for f in fields(EngineConfig)}
        return {f.name: value for f in fields(self) if f.name in known and (value := getattr(self, f.name)) is not None}

    def check(self) -> None:
        for name in ("clients", "blocks", "max_requests", "row_budget"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} is {value}, but it must be at least 1.")
        if not 0 < self.rate_scale < float("inf"):
            raise InputError(f"rate_scale is {self.rate_scale}, but it must be a positive number.")
        if self.clients is not None and self.rate_scale != 1.0:
            raise InputError("rate_scale and clients exclude one another: clients ask when they are answered.")


def simulate(log: Path, change: ChangeArgs, *, replay: bool, output: Path | None) -> None:
    """The command."""
    from paceline.simulate.log import read

    change.check()
    events = list(read(log))
    if not events:
        raise InputError(f"{log} is empty; record one with `paceline serve --decision-log FILE`.")
    if replay:
        _replay(events)
        return
    from paceline.simulate.figures import figures
    from paceline.simulate.simulator import simulate
    from paceline.simulate.workload import Workload

    workload = changed(Workload.of(events), change)
    simulated = simulate(workload, clients=change.clients, seed=change.seed)
    _write(simulated, output)
    _show(figures(events), figures(simulated))


def changed(workload: "Workload", change: ChangeArgs) -> "Workload":
    """A workload with the changes. InputError where they contradict each other."""
    from paceline.cache.policies import policy
    from paceline.schedule import policies as schedules

    config = replace(workload.setup.config, **change.config())
    policy(config.eviction)
    schedules.check(config.schedule, config.order, config.tbt_target_ms, config.group_size, config.layer_groups)
    if config.row_budget < config.max_requests:
        raise InputError(f"row_budget {config.row_budget} is below max_requests {config.max_requests}; raise it.")
    jobs = [replace(job, at=job.at / change.rate_scale) for job in workload.jobs]
    return replace(workload, setup=replace(workload.setup, config=config), jobs=jobs)


def _replay(events: "Sequence[Event]") -> None:
    from paceline.simulate.replay import replay

    done = replay(events)
    if done.difference is not None:
        typer.echo(done.difference)
        raise typer.Exit(1)
    typer.echo(f"{done.steps} steps replay to identical decisions.")


def _write(events: "Sequence[Event]", path: Path | None) -> None:
    if path is not None:
        from paceline.simulate.record import LogFile

        file = LogFile(path)
        for event in events:
            file(event)
        file.close()


def _show(recorded: "Figures", simulated: "Figures") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("", "recorded", "simulated", "ratio", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, a, b in rows(recorded, simulated):
        table.add_row(name, f"{a:,.1f}", f"{b:,.1f}", f"{b / a:.3f}" if a else "")
    for drafter in sorted({*recorded.drafters, *simulated.drafters}):
        a, b = (100 * each.drafters[drafter] / max(each.tokens, 1) for each in (recorded, simulated))
        table.add_row(f"% of tokens, {drafter}", f"{a:.1f}", f"{b:.1f}", "")
    Console().print(table)


def rows(recorded: "Figures", simulated: "Figures") -> list[tuple[str, float, float]]:
    """What is printed of time: milliseconds, and tokens per second."""
    from paceline.simulate.figures import mean, percentile

    out = [("requests", float(len(recorded.latency)), float(len(simulated.latency)))]
    out.append(("tokens/s", recorded.throughput, simulated.throughput))
    for name in ("ttft", "tbt", "latency"):
        a, b = ([1e3 * s for s in getattr(each, name)] for each in (recorded, simulated))
        out.append((f"{name} mean ms", mean(a), mean(b)))
        out += [(f"{name} p{q} ms", percentile(a, q / 100), percentile(b, q / 100)) for q in (50, 95, 99)]
    return out
