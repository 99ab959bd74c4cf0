"""The page of a comparison of heads, from the rows that it has so far: what each brings, and the papers' ratios.

    python recipes/workbench/page.py --out OUT --to docs/heads.md --steps 150 --nodes 7

`OUT` is that of recipes/workbench/heads.py; `--steps` and `--nodes` are what it was given, and are printed.
"""

import csv
import json
from pathlib import Path
from typing import Annotated

import typer
from entries import RATIOS, PaperRatio
from heads import paired

from paceline.train.compare import TABLE_FILE, ComparedRow, read_row, tau_of
from paceline.train.files import whole_lines

INTRODUCTION = """# Heads beside their papers

Does each training method bring what its paper says? One small target (60 million parameters, 12 layers), one set of
texts that it wrote itself, the same number of training steps for every method, and prompts that no head was trained on.
What counts is the ratio of two methods, for the papers' models are a hundred times larger. Ratios are paired by prompt,
with intervals (95 %, a bootstrap over the prompts); a ratio counts only where its interval leaves 1. Tau is tokens per
pass of the target; nothing was timed.
"""
LIMITS = {
    "eagle-3": "EAGLE-3 gains from data: its paper trains on eight times the texts of EAGLE-1, here both have the same",
    "hydra++": "Hydra++ has four times the layers of Hydra to train with the same tokens",
    "clover-2": "Clover-2 has two layers and a gate for each depth to train with the same tokens",
    "falcon": "the paper's glancing helps a trained head; here the share falls to nothing while it still learns fast",
    "ppd": "PPD trains some rows of embeddings alone, and its prompts share the nodes of a pass with its guesses",
}
"""What differs from the paper where a ratio does not come, by the first name."""


def tables(rows: list[ComparedRow]) -> str:
    """What each drafter brings, in Markdown."""
    kinds = [*rows[0].asked]
    lines = [["drafter", "trained on", "tau", *(f"tau, {kind}" for kind in kinds), "texts"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        trained = f"{row.trained_tokens:,} tokens" if row.trained_tokens else "-"
        whole = [str(tau_of(row)), *(str(tau_of(row, kind)) for kind in kinds)]
        lines.append([f"`{row.name}`", trained, *whole, "equal" if row.same else "DIFFER"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def judged(ratio: PaperRatio, named: dict[str, ComparedRow]) -> list[str]:
    """One ratio as cells."""
    ours = paired(ratio, named)
    wanted = (ratio.paper > 1) - (ratio.paper < 1)
    if ours.sign == 0:
        verdict = "open"
    elif ours.sign == wanted:
        verdict = "as in the paper"
    else:
        verdict = "other than in the paper" if wanted else ("more" if ours.sign > 0 else "less")
    of = "drafts kept on code" if ratio.kind == "code" else "tau"
    return [f"`{ratio.one}` / `{ratio.other}`", of, str(ours), f"{ratio.paper:.2f}", verdict]


def curve(out: Path, name: str) -> str:
    """Simulated tau over the training, at some steps; empty where it was not logged."""
    file = out / name / "log.csv"
    if not file.is_file():
        return ""
    with file.open(encoding="utf-8") as handle:
        lines = [line for line in csv.DictReader(handle) if line.get("simulated_tau")]
    picked = lines[:: max(1, len(lines) // 5)][:5] + lines[-1:]
    seen = {line["step"]: f"{float(line['simulated_tau']):.2f}" for line in picked}
    return ", ".join(f"{tau} at step {step}" for step, tau in seen.items())


def main(
    out: Annotated[Path, typer.Option()], to: Annotated[Path, typer.Option()], steps: int = 1500, nodes: int = 15
) -> None:
    rows = [read_row(json.loads(line)) for line in whole_lines(out / TABLE_FILE)]
    if not rows:
        raise typer.BadParameter(f"{out / TABLE_FILE} has no row yet.")
    named = {row.name: row for row in rows}
    known = [ratio for ratio in RATIOS if ratio.one in named and ratio.other in named]
    lines = [["ratio", "of", "here [95 %]", "paper", "verdict"], ["---"] * 5, *(judged(it, named) for it in known)]
    asked = sum(len(them) for them in rows[0].asked.values())
    parts = [
        INTRODUCTION,
        f"{asked} prompts (GSM8K's test part and HumanEval), 96 tokens each, greedy, {nodes} drafted tokens a pass, "
        f"{steps} steps a method:\n",
        "```\npython recipes/workbench/heads.py --target TARGET --draft DRAFT --data DATA --out OUT --rounds 0 "
        f"--steps {steps} --nodes {nodes}\npython recipes/workbench/page.py --out OUT --to docs/heads.md "
        f"--steps {steps} --nodes {nodes}\n```\n",
        f"{tables(rows)}\n",
        "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n",
    ]
    notes = list[str]()
    for ratio, line in zip(known, lines[2:]):
        if line[-1] in ("open", "other than in the paper"):
            curves = "; ".join(f"`{name}` {text}" for name in (ratio.one, ratio.other) if (text := curve(out, name)))
            why = LIMITS.get(ratio.one)
            notes.append(
                f"- {line[0]}: {why or 'no cause is known'}." + (f" Simulated tau: {curves}." if curves else "")
            )
    if notes:
        parts.append("Where the sign of a paper does not come, or is not sure:\n\n" + "\n".join(notes) + "\n")
    missing = [f"`{it.one}` / `{it.other}`" for it in RATIOS if it not in known]
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.\n")
    to.write_text("\n".join(parts), encoding="utf-8")
    typer.echo(f"{len(rows)} rows, {len(known)} ratios: {to}")


if __name__ == "__main__":
    typer.run(main)
