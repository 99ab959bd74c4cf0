"""Reports: one model's table, and the plot of several models by size."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.report import Report
from .items import SURGE_KINDS
from .table import line


def one_model(result: Mapping[str, Any]) -> Report:
    """The report of one run of `paceline-apps surge run`."""
    found, usage = result["summary"], result["usage"]
    report = Report(
        f"SURGE: {result['model']}",
        f"{found['items']} programs, style {result['style']}: mean of all columns {found['mean']:.3f} "
        f"(floor {found['floor']:.3f}), {found['right']} predicted exactly, {found['unanswered']} without an answer.",
    )
    report.answers(usage)
    rows = [{"column": name, **row} for name, row in found["columns"].items()]
    report.table("Scores", rows, "The floor is what the truth of another program of the column scores.")
    report.figure("By column", lambda axes: bars(axes, found["columns"]), size=(8, 3.2))
    report.table(
        "Predict, then run when unsure",
        result["unsure"],
        "Predictions below the threshold of confidence are replaced by running: how many, and how much is right then.",
    )
    report.text("Kinds", "\n\n".join(f"{name}: {about}" for name, about in SURGE_KINDS.items()))
    report.facts("The engine's work", usage)
    return report


def bars(axes: Any, columns: Mapping[str, Mapping[str, float]]) -> None:
    names = list(columns)
    axes.bar(names, [columns[name]["score"] for name in names], color="#2a6f97")
    axes.plot(names, [columns[name]["floor"] for name in names], "o", color="#c8553d", markersize=4, label="floor")
    axes.set(ylim=(0, 1), ylabel="score")
    axes.tick_params(axis="x", rotation=60)
    axes.legend(frameon=False, fontsize=8)


def scaling(results: Sequence[Mapping[str, Any]]) -> Report:
    """Several models by size. Raises ValueError where one has no size, or answered other items than the first."""
    for result in results:
        if not result.get("size"):
            raise ValueError(
                f"The result of {result['model']} has no size; run it with --size, parameters in millions."
            )
        if items(result) != items(results[0]):
            raise ValueError(
                f"{results[0]['model']} and {result['model']} answered different items; give results of the same ones."
            )
    ordered = sorted(results, key=lambda result: float(result["size"]))
    fitted = line([row["size"] for row in ordered], [row["summary"]["mean"] for row in ordered])
    says = f"{fitted[0]:+.3f} a decade of parameters" if fitted else "one size, so no line"
    report = Report("SURGE: score by size", f"{len(ordered)} models: {says}.")
    report.figure("Scaling", lambda axes: by_size(axes, ordered, fitted), size=(6, 3.5))
    names = list(dict.fromkeys(name for row in ordered for name in row["summary"]["columns"]))
    rows = [
        {"column": name, **{row["model"]: row["summary"]["columns"].get(name, {}).get("score") for row in ordered}}
        for name in names
    ]
    for label, key in (("mean", "mean"), ("floor", "floor"), ("mean as published", "published_mean")):
        rows.append({"column": label, **{row["model"]: row["summary"][key] for row in ordered}})
    report.table("By column", rows)
    return report


def items(result: Mapping[str, Any]) -> set[str]:
    """The ids of what a model answered."""
    return {record["id"] for record in result["records"]}


def by_size(axes: Any, rows: Sequence[Mapping[str, Any]], fitted: tuple[float, float] | None) -> None:
    import numpy as np

    sizes = np.array([float(row["size"]) for row in rows])
    for row, size in zip(rows, sizes):
        axes.plot(size, row["summary"]["mean"], "o", color="#2a6f97")
        right = size > np.sqrt(sizes[0] * sizes[-1])
        place = {"ha": "right" if right else "left", "textcoords": "offset points", "fontsize": 8}
        axes.annotate(row["model"], (size, row["summary"]["mean"]), (-6 if right else 6, 4), **place)
    axes.plot(sizes, [row["summary"]["floor"] for row in rows], ":", color="#c8553d", label="floor")
    if fitted is not None:
        axes.plot(sizes, fitted[0] * np.log10(sizes) + fitted[1], "--", color="#888", label="least squares")
    most = max(max(row["summary"]["mean"], row["summary"]["floor"]) for row in rows)
    axes.set(xscale="log", xlabel="parameters, millions", ylabel="mean of all columns", ylim=(0, 1.15 * most or 1))
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
