"""Every drafter for one target with equal training tokens, and what each brings next to its paper's ratio.

    python recipes/workbench/heads.py --target TARGET --draft DRAFT --data DATA --out OUT

`DATA` has gsm8k_train.jsonl, gsm8k_test.jsonl, humaneval.jsonl and codealpaca.json. Training, measuring and the page
are those of `paceline train all`; what lies in OUT already is not done again.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from entries import RATIOS, PaperRatio, entries

from paceline.train.compare import ComparedRow, ComparisonPlan, Estimate, compare, estimated, tau_ratio
from paceline.train.compare_page import table, write_page
from paceline.train.data import read_lines
from paceline.train.loop import TrainingProgress


def write(data: Path, out: Path, count: int, seed: int) -> None:
    """Prompts to answer, as many of GSM8K as of code; and the texts of both as they are."""
    maths, code = read_lines(data / "gsm8k_train.jsonl"), read_lines(data / "codealpaca.json")
    rng, half = random.Random(seed), count // 2
    asked = [{"question": line["question"]} for line in maths]
    given = [{"instruction": line["instruction"], "input": line.get("input") or ""} for line in code]
    prompts = [*rng.sample(asked, half), *rng.sample(given, count - half)]
    tests = {
        "test-gsm8k": [{"prompt": line["question"]} for line in read_lines(data / "gsm8k_test.jsonl")],
        "test-code": [{"prompt": line["prompt"]} for line in read_lines(data / "humaneval.jsonl")],
    }
    for name, lines in {"prompts": prompts, "maths": maths, "code": code, **tests}.items():
        (out / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    steps: int = 1500,
    count: int = 1600,
    depth: int = 4,
    nodes: int | None = None,
    each: int = 40,
    answer: int = 96,
    rounds: int = 3,
    only: str = "",
    seed: int = 0,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write(data, out, count, seed)
    known = {entry.name: entry for entry in entries(out)}
    wanted = [name for name in only.split(",") if name] or [*known]
    if unknown := [name for name in wanted if name not in known]:
        raise typer.BadParameter(f"--only names {', '.join(unknown)}; known are {', '.join(known)}.")
    plan = ComparisonPlan(
        target=target, draft=draft, data=(out / "prompts.jsonl",), out=out, steps=steps, depth=depth, nodes=nodes,
        candidates=tuple(known[name] for name in wanted), each=each,
        tests={"gsm8k": (out / "test-gsm8k.jsonl",), "code": (out / "test-code.jsonl",)}, answer=answer, rounds=rounds,
        prompts=count, seed=seed, cache_bytes=4 << 30,
    )  # fmt: skip
    rows = compare(plan, say)
    typer.echo(table(rows))
    typer.echo(ratios(rows))
    typer.echo(f"Page: {write_page(plan, rows)}")


def say(name: str, now: TrainingProgress) -> None:
    if now.step % 100 == 0:
        typer.echo(
            f"{name}: step {now.step}, loss {now.loss:.3f}, {now.tokens:,} tokens, {now.seconds:.0f} s", err=True
        )


def paired(ratio: PaperRatio, named: Mapping[str, ComparedRow]) -> Estimate:
    """Ours, paired by prompt."""
    one, other = named[ratio.one], named[ratio.other]
    if ratio.kind != "code":
        return tau_ratio(one, other)
    over, under = ([(it.tokens - it.passes, it.passes) for it in row.pairs("code")] for row in (one, other))
    return estimated(over, under)  # drafts alone, as the paper counts them


def ratios(rows: Sequence[ComparedRow]) -> str:
    """Each of the papers' ratios with ours, and a verdict where its interval leaves 1."""
    named = {row.name: row for row in rows}
    lines = ["| ratio | of | ours [95 %] | paper | verdict |", "|---|---|---|---|---|"]
    for ratio in RATIOS:
        if ratio.one not in named or ratio.other not in named:
            continue
        ours = paired(ratio, named)
        verdict = {1: "more", -1: "less", 0: "open: the interval holds 1"}[ours.sign]
        lines.append(f"| {ratio.one} / {ratio.other} | {ratio.kind} | {ours} | {ratio.paper:.2f} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
