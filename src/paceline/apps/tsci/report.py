"""Reports: of a study over windows, and of one forecast."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from ..common.report import Report
from .agents import Told
from .study import OURS, TSCI_ALONE, TSCI_COLUMNS


def as_text(result: Mapping[str, Any]) -> str:
    """The results that the reporter is given: figures of the table, rounded as the report rounds them."""
    lines = [
        f"{row['series']}: {row['windows']} windows of {result['horizon']} steps. Mean absolute error: "
        + ", ".join(f"{name} {row[name]:.4g}" for name in TSCI_COLUMNS)
        + f". Better than seasonal naive in {row['won']} windows."
        for row in result["table"]
    ]
    return "\n".join([*lines, f"Windows without a forecast: {len(result['lost'])}."])


def of_study(result: Mapping[str, Any], summary: str, left_out: list[str], told: Told) -> Report:
    """The study's report; every number in it is in the result."""
    report = Report(
        "TimeSeriesScientist", "Forecasts over windows whose future was sealed until all of them were made."
    )
    report.answers(result["usage"])
    report.table(
        "Mean absolute error", result["table"], "to_naive: ours over seasonal naive; won: windows where ours is less."
    )
    report.text("Summary", summary or f"The reporter gave no summary ({told.problem or 'empty'}).")
    if left_out:
        report.text("Left out of the summary", "These sentences held numbers that no result has.")
        report.code("Left out", "\n".join(left_out))
    for name in dict.fromkeys(row["series"] for row in result["windows"]):
        row = next(row for row in reversed(result["windows"]) if row["series"] == name)
        report.figure(f"Last window of {name}", partial(fan, row=row))
    report.table("Windows", [_window(row) for row in result["windows"]])
    report.table("Models that failed", _failed(result), "They are left out; nothing is put in their place.")
    report.table("Windows without a forecast", result["lost"])
    report.table(
        "Calls", _calls(result), "Outcomes over all windows; a fallback is the program's choice, not the model's."
    )
    report.facts("The engine's work", result["usage"])
    return report


def _window(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "series": row["series"],
        "start": row["start"],
        "season": row["curation"]["season"],
        "models": ", ".join(f"{name} {weight:.2f}" for name, weight in row["weights"].items()),
        "way": row["way"],
        "seasonal naive": row["scores"]["seasonal naive"]["mae"],
        TSCI_ALONE: row["scores"][TSCI_ALONE]["mae"],
        OURS: row["scores"][OURS]["mae"],
    }


def _failed(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"series": row["series"], "start": row["start"], "model": one["name"], "why": one["why"]}
        for row in result["windows"]
        for one in row["failed"]
    ]


def _calls(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    counts: dict[tuple[str, str], int] = {}
    for row in result["windows"]:
        for one in row["told"]:
            key = (one["agent"], f"{one['outcome']}{': ' + one['problem'] if one['problem'] else ''}")
            counts[key] = counts.get(key, 0) + 1
    return [{"agent": agent, "outcome": outcome, "calls": count} for (agent, outcome), count in sorted(counts.items())]


def forecast_as_text(row: Mapping[str, Any]) -> str:
    """What the reporter is given of one forecast."""
    members = ", ".join(f"{name} {weight:.2f}" for name, weight in row["weights"].items())
    back = ", ".join(f"{one['mae']:.4g} (seasonal naive {one['naive']:.4g})" for one in row["back"])
    first, last, values = row["ahead"][0], row["ahead"][-1], row["values"]
    low, high = row["bands"]["95"]
    return (
        f"Forecast of {row['series']} for {len(values)} steps, {first} to {last}: {values[0]:.4g} at first, "
        f"{values[-1]:.4g} at last, mean {np.mean(values):.4g}. The 95 % band at the last step is {low[-1]:.4g} to "
        f"{high[-1]:.4g}. Last known value {next(v for v in reversed(row['history']) if v == v):.4g}. Season of "
        f"{row['curation']['season']}. Models and weights: {members}. Mean absolute errors of the back-test, oldest "
        f"first: {back}."
    )


def fan(axes: Any, row: Mapping[str, Any]) -> None:
    """The end of the history, the forecast with its bands, and the truth where it is known; dates where there are."""
    past = np.array(row["history"][-3 * len(row["values"]) :], np.float64)
    before, ahead = places(row, len(past))
    axes.plot(before, past, color="#888", linewidth=1, label="history")
    for level, shade in (("95", 0.15), ("80", 0.25)):
        low, high = row["bands"][level]
        axes.fill_between(ahead, low, high, color="#2a6f97", alpha=shade, linewidth=0, label=f"{level} %")
    axes.plot(ahead, row["values"], color="#2a6f97", label=f"forecast ({row['way']})")
    if row.get("truth"):
        axes.plot(ahead, row["truth"], color="#c8553d", linewidth=1, label="truth")
    axes.legend(frameon=False, fontsize=8)
    if isinstance(ahead[0], datetime):
        axes.tick_params(axis="x", labelrotation=20)
    else:
        axes.set(xlabel="step")


def places(row: Mapping[str, Any], count: int) -> tuple[list[Any], list[Any]]:
    """Where the past and the forecast stand on the axis: at times, evenly between those known, or at steps."""
    steps = list(range(-count, 0)), list(range(len(row["values"])))
    try:
        ahead = [datetime.fromisoformat(text) for text in row.get("ahead", ())]
    except ValueError:
        return steps
    if len(ahead) < 2:
        return steps
    gap = (ahead[-1] - ahead[0]) / (len(ahead) - 1)
    return [ahead[0] - gap * (count - at) for at in range(count)], list(ahead)


def back(axes: Any, row: Mapping[str, Any]) -> None:
    """Forecasts before each origin of the back-test, over what came."""
    history = np.array(row["history"], np.float64)
    first = max(0, row["back"][0]["origin"] - len(row["values"]))
    axes.plot(np.arange(first, len(history)), history[first:], color="#888", linewidth=1, label="what came")
    for one in row["back"]:
        axes.plot(np.arange(one["origin"], one["origin"] + len(one["forecast"])), one["forecast"], linewidth=1.2)
        axes.axvline(one["origin"], color="#bbb", linewidth=0.6)
    axes.set(xlabel="value of the history")
    axes.legend(frameon=False, fontsize=8)


def of_forecast(row: Mapping[str, Any], usage: Mapping[str, Any]) -> Report:
    """The report of one forecast beyond the end of a series."""
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in row["weights"].items())
    report = Report(f"Forecast of {row['series']}", f"{len(row['values'])} steps by {row['way']} of {weights}.")
    report.answers(usage)
    report.figure("Forecast", lambda axes: fan(axes, row), "The bands of 80 and 95 % come from errors in validation.")
    if row.get("summary"):
        report.text("Summary", row["summary"])
    rows = [{"time": at, "forecast": value} for at, value in zip(row["ahead"], row["values"], strict=True)]
    for level in ("80", "95"):
        for one, low, high in zip(rows, *row["bands"][level], strict=True):
            one[f"{level} %"] = f"{low:.4g} to {high:.4g}"
    report.table("Values", rows, "The same is in forecast.csv.")
    report.figure("Back-test", lambda axes: back(axes, row), "Each colour is a forecast made with what came before it.")
    report.table(
        "Back-test, mean absolute error",
        [{"origin": one["origin"], "forecast": one["mae"], "seasonal naive": one["naive"]} for one in row["back"]],
        "The way to combine was chosen on these origins, so its figures are a little better than what is to come.",
    )
    if row.get("notes"):
        report.text("The file", "\n\n".join(row["notes"]))
    report.text("Analysis", row["analysis"] or "The analyst gave none.")
    members = [{"model": name, **found, "weight": row["weights"][name]} for name, found in row["members"].items()]
    report.table("Models, by validation", members)
    report.table(
        "Ways to combine them, by validation", [{"way": name, "mae": mae} for name, mae in row["ways"].items()]
    )
    report.table("Models that failed", [{"model": one["name"], "why": one["why"]} for one in row["failed"]])
    report.table(
        "Calls", [{k: one[k] for k in ("agent", "outcome", "problem", "reason", "changed")} for one in row["told"]]
    )
    report.facts("Facts", row["facts"])
    report.facts("The engine's work", usage)
    return report
