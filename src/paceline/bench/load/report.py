"""Report of a load run: a table, warnings, and JSON from which every figure can be recomputed."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.files import host, number, save, save_json, versions
from paceline.bench.load.answer import TimedAnswer
from paceline.bench.load.plot import PlotPanel, svg
from paceline.bench.load.stats import Slo, Spread, Summary

if TYPE_CHECKING:
    from rich.table import Table

LATE_MS = 1.0
"""Milliseconds: a timer of an event loop is no finer."""
BUSY_CPU_SHARE = 0.8
DRAIN = 1 / 3
"""Share of a run after its last arrival that distorts rates."""
QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
METRIC_TITLES = {
    "ttft": "TTFT", "tpot": "TPOT", "tbt": "TBT", "e2e": "E2E", "ttft_sent": "TTFT from sending",
    "e2e_sent": "E2E from sending",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Generator:
    """How well this program kept time: it may not be what is measured."""

    late: Spread | None
    """From the intended arrival until this program woke for it."""
    stall: Spread | None
    """By how much its event loop was late for a timer, every 20 ms: as late it may have read a token."""
    busy: float
    """Share of one core."""

    @classmethod
    def of(cls, answers: Sequence[TimedAnswer], stalls: Iterable[float], busy: float) -> "Generator":
        return cls(Spread.of(a.fired - a.intended for a in answers), Spread.of(stalls), busy)


@dataclass(frozen=True, slots=True)
class LoadCell:
    """Answers and figures of one load of a sweep."""

    name: str
    value: float
    closed: bool
    summary: Summary
    generator: Generator
    answers: Sequence[TimedAnswer]
    interrupted: bool = False


@dataclass(slots=True)
class LoadReport:
    url: str
    model: str
    endpoint: str
    slo: Slo | None
    cells: list[LoadCell] = field(default_factory=list)
    repeated: int = 0
    """Requests whose prompt had been sent before."""

    @property
    def interrupted(self) -> bool:
        return any(cell.interrupted for cell in self.cells)

    def warnings(self) -> list[str]:
        """What a reader must know before believing a figure."""
        found = [f"{cell.name}: {said}" for cell in self.cells for said in doubts(cell)]
        if self.repeated:
            cached = max((cell.summary.cached or 0.0 for cell in self.cells), default=0.0)
            found.append(
                f"{self.repeated} requests had a prompt that was sent before, which a prefix cache answers sooner "
                f"(at most {cached:.0%} of prompt tokens were cached); give a file with more prompts."
            )
        return found

    def write(self, path: Path, args: dict[str, Any]) -> None:
        """As JSON, with every request. Raises InputError when the file cannot be written."""
        head = {f: getattr(self, f) for f in ("url", "model", "endpoint", "slo", "repeated")}
        own = {"machine": host(), "versions": dict(versions()), "args": args, "warnings": self.warnings()}
        save_json(path, {**head, "cells": [as_json(cell) for cell in self.cells], **own})

    def plot(self, path: Path) -> None:
        """The sweep: latencies and throughput against load. Raises InputError when the file cannot be written."""
        save(path, svg(f"{self.model} under load", self._x_label(), [c.value for c in self.cells], self._panels()))

    def _x_label(self) -> str:
        if self.cells[0].closed:
            return "clients (closed loop)"
        return "speed of the recording" if self.cells[0].name.startswith("recorded") else "requests/s offered"

    def _panels(self) -> list[PlotPanel]:
        def series(metric: str, quantile: str) -> list[float | None]:
            spreads = [getattr(cell.summary, metric) for cell in self.cells]
            return [None if spread is None else getattr(spread, quantile) for spread in spreads]

        latency = [
            PlotPanel(f"{METRIC_TITLES[m]}, ms", {q: series(m, q) for q in ("p50", "p99")}, log=True)
            for m in ("ttft", "tpot")
        ]
        lines: dict[str, list[float | None]] = {"completed": [c.summary.requests_per_second for c in self.cells]}
        if self.slo:
            lines["goodput"] = [c.summary.goodput for c in self.cells]
        return [*latency, PlotPanel("requests/s", lines)]

    def tables(self) -> "list[Table]":
        """For a terminal: one line a load, and below it the percentiles where there is one load."""
        return [sweep(self.cells), *([detail(self.cells[0].summary)] if len(self.cells) == 1 else [])]

    def notes(self) -> list[str]:
        """Remarks on each load: what the table leaves out."""
        baseline = "closed loop: a baseline. A slow server is asked less often, so the waiting of others is left out."
        found = [baseline] if any(cell.closed for cell in self.cells) else []
        return found + [remark(cell, self.slo) for cell in self.cells]


def doubts(cell: LoadCell) -> list[str]:
    """Why the figures of one load may mislead."""
    summary, generator, found = cell.summary, cell.generator, list[str]()
    late = max(
        (own for spread in (generator.late, generator.stall) if (own := excess(spread, summary.ttft))), default=0
    )
    if late:
        found.append(f"this program itself was up to {late:.1f} ms late (p99), more than a tenth of TTFT, which is in "
                     "the latencies; use an idler machine, or less load.")  # fmt: skip
    if generator.busy > BUSY_CPU_SHARE:
        found.append(f"this program used {generator.busy:.0%} of a core; it may be what limits the figures.")
    last = max((a.intended for a in cell.answers), default=0.0)
    if not cell.closed and last > 0 and summary.seconds - last > DRAIN * summary.seconds:
        found.append(f"the last {summary.seconds - last:.1f} of {summary.seconds:.1f} s had no arrivals, which lowers "
                     "req/s, tok/s and goodput; send for longer, unless the server is overloaded.")  # fmt: skip
    if not summary.counted:
        found.append("the server reported no usage, so chunks are counted as tokens.")
    found += [f"{count} x {kind}: {summary.examples.get(kind, '')}" for kind, count in summary.errors.items()]
    return found


def excess(late: Spread | None, ttft: Spread | None) -> float:
    """p99 of a lateness, where at the median or at p99 it is more than a tenth of TTFT; else 0."""
    if late is None or ttft is None:
        return 0.0
    pairs = ((late.p50, ttft.p50), (late.p99, ttft.p99))
    return late.p99 if any(own > max(LATE_MS, 0.1 * whole) for own, whole in pairs) else 0.0


def remark(cell: LoadCell, slo: Slo | None) -> str:
    """What the table of one load leaves out."""
    s = cell.summary
    words = [f"{s.completed} of {s.requests} requests in {s.seconds:.1f} s", f"in flight {s.in_flight:.1f} on average"]
    words.append(f"{s.in_flight_max} at most")
    if s.tau is not None:
        words += [f"tau {s.tau:.2f}", f"{number(s.acceptance, '.0%')} of drafts kept"]
    words += [f"{number(s.tokens_per_chunk, '.2f')} tokens a chunk", f"{number(s.cached, '.0%')} of prompts cached"]
    if slo is not None:
        words.append(f"{number(s.within, '.0%')} within {', '.join(f'{n} {bound:g} ms' for n, bound in slo.items())}")
    return f"{cell.name}: {', '.join(words)}."


LOAD_COLUMNS = ("load", "req/s", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "goodput", "failed")
"""Narrow enough for 80 characters."""


def sweep(cells: Sequence[LoadCell]) -> "Table":
    """One line a load; milliseconds."""
    table = _table(LOAD_COLUMNS)
    for cell in cells:
        s = cell.summary
        latencies = [
            "-" if spread is None else f"{getattr(spread, q):.1f}"
            for spread in (s.ttft, s.tpot)
            for q in ("p50", "p99")
        ]
        rates = [f"{s.requests_per_second:.2f}", f"{s.tokens_per_second:.1f}"]
        table.add_row(cell.name, *rates, *latencies, number(s.goodput, ".2f"), str(s.requests - s.completed))
    return table


def detail(summary: Summary) -> "Table":
    """All percentiles of one load; milliseconds."""
    table = _table(("ms", *QUANTILES))
    for name, title in METRIC_TITLES.items():
        spread = getattr(summary, name)
        table.add_row(title, *("-" if spread is None else f"{getattr(spread, q):.2f}" for q in QUANTILES))
    return table


def _table(columns: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name == columns[0] else "right", no_wrap=True)
    return table


def as_json(cell: LoadCell) -> dict[str, Any]:
    """A load with its requests; times of requests are seconds from its start."""
    value = cell.value if cell.value != float("inf") else None
    return {
        "load": cell.name,
        "value": value,
        "closed": cell.closed,
        "interrupted": cell.interrupted,
        "summary": asdict(cell.summary),
        "generator": asdict(cell.generator),
        "requests": [
            {**{f: getattr(a, f) for f in TIMELINE_FIELDS}, "tokens": a.tokens, "gaps": a.gaps.tolist()}
            for a in cell.answers
        ],
    }


TIMELINE_FIELDS = ("prompt", "intended", "fired", "sent", "first", "last", "ended", "error", "detail")
