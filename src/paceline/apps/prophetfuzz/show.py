"""The reports: what was predicted, what crashed and how to see it again, and how strategies compare."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.report import Report
from .assemble import INPUT, Assembled, FuzzCommand
from .campaign import PLANTED_BUGS, FuzzComparison, FuzzResult
from .combine import Risky
from .constraints import Constraints
from .manual import Manual


def prediction(
    manual: Manual, constraints: Constraints, risky: Sequence[Risky], made: Assembled, facts: dict[str, Any]
) -> Report:
    """Constraints with their votes, combinations with their counts, commands."""
    kept = set(constraints.relations)
    lead = (
        f"{len(manual.options)} options, {len(kept)} constraints, {len(risky)} combinations, "
        f"{len(made.commands)} commands."
    )
    report = Report(f"Risky combinations of {manual.program}", lead)
    report.answers(facts)
    votes = [
        {"relation": r.sentence(), "right votes": right, "votes": cast, "kept": "yes" if r in kept else ""}
        for r, (right, cast) in constraints.votes.items()
    ]
    stated = [{"relation": r.sentence()} for r in constraints.relations if r not in constraints.votes]
    report.table("Stated constraints", stated, "The manual says these word for word; the model was not asked.")
    report.table(
        "Voted constraints",
        votes,
        "The model proposed these. Each was asked about both ways; at least half must answer both rightly.",
    )
    report.table("Combinations", [{"options": r.options, "samples": r.count} for r in risky])
    report.table("Commands", [{"command": c.text(manual.program), "problem": c.problem} for c in made.commands])
    seeds = [{"name": n, "bytes": len(d), "begins": repr(d[:40])} for n, d in made.seeds.items()]
    report.table("Seeds", seeds, "\n\n".join(made.problems))
    report.facts("Use of the server", facts)
    return report


def refused(report: Report, program: str, dropped: Mapping[FuzzCommand, str]) -> None:
    """Commands that the target refused in the dry run."""
    rows = [{"command": command.text(program), "it said": why} for command, why in dropped.items()]
    report.table("Left out: the program refuses them", rows, "" if rows else "None.")


def campaign(program: str, result: FuzzResult, folder: Path, dropped: Mapping[FuzzCommand, str]) -> Report:
    """Crashes with reproducers, which are written into `folder`, and figures per command."""
    report = Report(
        f"Fuzzing {program}",
        f"{len(result.crashes)} kinds of crash in {result.seconds:.0f} s, {result.execs_per_second:g} runs a second.",
    )
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for crash in sorted(result.crashes, key=lambda c: c.seconds):
        file = folder / f"crash-{crash.hash}"
        file.write_bytes(crash.input)
        again = crash.command.text(program)
        again = again.replace(INPUT, str(file)) if INPUT in crash.command.args else f"{again} < {file}"
        rows.append({"kind": crash.kind, "frames": crash.frames, "after s": crash.seconds, "inputs": crash.count,
                     "see it again": again})  # fmt: skip
    report.table("Crashes", rows, "" if rows else "None was found.")
    report.table("Commands", [{"command": " ".join(r["args"]), **{k: v for k, v in r.items() if k != "args"}}
                              for r in result.rows])  # fmt: skip
    if len(result.curve) > 1:
        report.figure("Coverage", lambda axes: covered(axes, result), "Edges that all commands together have reached.")
    refused(report, program, dropped)
    if result.limit:
        report.text("Limit", f"The sandbox ended the campaign: {result.limit}.")
    return report


def covered(axes: Any, result: FuzzResult) -> None:
    """Edges over seconds, as steps, and a mark where a kind of crash was first seen."""
    seconds, edges = zip(*result.curve)
    axes.step(seconds, edges, where="post")
    for crash in result.crashes:
        axes.axvline(crash.seconds, color="black", linewidth=0.5)
    axes.set_xlabel("seconds")
    axes.set_ylabel("edges")


def comparison(
    result: FuzzComparison,
    seconds: float,
    facts: dict[str, Any],
    commands: Sequence[str],
    dropped: Mapping[FuzzCommand, str],
) -> Report:
    """Planted bugs found by each strategy in equal time."""
    rows = result.rows()
    report = Report("Planted bugs found", f"Of {PLANTED_BUGS}, in {seconds:g} s for each strategy and seed.")
    report.answers(facts)
    report.table("By strategy", rows)
    report.figure("Bugs found", lambda axes: bars(axes, rows), "Means over seeds; dots are seeds.", (6, 2.4))
    report.code("Predicted commands", "\n".join(commands))
    refused(report, "inkpress", dropped)
    report.facts("Use of the server", facts)
    return report


def bars(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    axes.barh([r["strategy"] for r in rows], [r["mean"] for r in rows], alpha=0.6)
    for number, row in enumerate(rows):
        axes.plot(row["found"], [number] * len(row["found"]), "o", color="black", markersize=4)
    axes.set_xlim(0, PLANTED_BUGS)
