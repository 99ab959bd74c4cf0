"""The report of a study, or of one window."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..common.report import Report
from .agents import NOTE, QuantDecision
from .bars import Bars
from .picture import png
from .trend import trend


def of_study(result: Mapping[str, Any]) -> Report:
    """Scores with intervals, the sum of gains, and the engine's work."""
    ours = [row for row in result["scores"] if row["name"] == "QuantAgent"]
    says = "; ".join(f"{row['asset']}: {row['share']:.1%} of {row['count']}, {row['says']}" for row in ours)
    report = Report(f"QuantAgent on {len(result['trades'])} windows", f"Directions that were right: {says}. {NOTE}")
    report.answers(result["usage"])
    rows = [
        {
            "asset": row["asset"],
            "who": row["name"],
            "right": f"{row['hits']} of {row['count']}",
            "share": row["share"],
            "95 % interval": f"{row['low']:.3f} to {row['high']:.3f}",
            "interval says": row["says"],
            "mean return, %": row["gain"],
        }
        for row in result["scores"]
    ]
    report.table(
        "Directions",
        rows,
        "The interval is the exact binomial one; flat moves and windows without a trade count for nobody.",
    )
    report.facts("McNemar's p that QuantAgent and always-long are right equally often", result["against_always_long"])
    report.figure(
        "Sum of returns", lambda axes: curve(axes, result), "After costs, over all windows; stops are taken first."
    )
    report.facts(
        "Decisions",
        {
            "windows": len(result["trades"]),
            "long": f"{result['long_share']:.0%}",
            "no trade": result["no_trade"],
            "the model's leaning to LONG, taken out": result["leaning"],
        },
    )
    report.facts("The engine's work", result["usage"])
    return report


def curve(axes: Any, result: Mapping[str, Any]) -> None:
    for name, gains in result["gains"].items():
        axes.plot(100 * np.cumsum(gains), label=name, linewidth=2 if name == "QuantAgent" else 1)
    axes.axhline(0, color="#888", linewidth=0.8)
    axes.set(xlabel="window", ylabel="per cent")
    axes.legend(frameon=False, fontsize=8)


def of_window(asset: str, bars: Bars, decision: QuantDecision, usage: Mapping[str, Any]) -> Report:
    """One window: the chart, the reports, the decision and its stops."""
    names = {1: "LONG", -1: "SHORT", 0: "no trade"}
    report = Report(f"QuantAgent: {asset}", f"{names[decision.side]} ({decision.why}). {NOTE}")
    report.answers(usage)
    price = float(bars.close[-1])
    stop, target = (price * (1 - decision.side * decision.distance * times) for times in (1.0, -decision.ratio))
    marked = (
        {"stop": (stop, "#a4161a"), "price": (price, "#444"), "target": (target, "#2a9d8f")} if decision.side else {}
    )
    report.sections.append(_chart(asset, bars, marked))
    report.table("Reports", [{"analyst": name, **view} for name, view in decision.views.items()])
    if decision.side:
        facts = {
            "price": price,
            "stop": stop,
            "target": target,
            "risk_reward_ratio": decision.ratio,
            "horizon in bars": decision.horizon,
            "probability among LONG and SHORT": decision.probability,
            "the model's leaning to LONG, taken out": decision.leaning,
        }
        report.facts("Decision", facts, decision.risk)
    return report


def _chart(asset: str, bars: Bars, levels: Mapping[str, tuple[float, str]]) -> Any:
    from ..common.report import Section

    said = "Support and resistance, and the decision's stop and target." if levels else "Support and resistance."
    return Section("figure", "Chart", said, png=png(bars, trend(bars), asset, levels))
