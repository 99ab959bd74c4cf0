"""What the drafters that `heads.py` trained bring in time: tokens/s over plain decoding in turns, prompt by prompt.

    python recipes/workbench/speed.py --target TARGET --draft DRAFT --data DATA --out OUT [--only medusa,hydra]

A line goes to OUT/speed-NODES.jsonl as soon as it is known; entries that have one are not measured again, so that a
table may come of several short jobs (`--seconds`: begin no entry after this time). It is printed at the end of each.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from entries import ENTRIES

from paceline import LLM, SamplingParams
from paceline.bench.harness import PLAIN_METHOD, BenchCell, BenchPlan, measure
from paceline.bench.prompts import encode
from paceline.bench.report import BenchRow
from paceline.train.data import read_lines

PAIR = ("ngram", "model", "topk", "sequoia")
"""Drafters of the untrained pair."""


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    nodes: int = 8,
    each: int = 2,
    answer: int = 64,
    repeat: int = 3,
    seconds: float = 330.0,
    only: str = "",
) -> None:
    begun, file = time.monotonic(), out / f"speed-{nodes}.jsonl"
    known = {line["method"]: line for line in read_lines(file)} if file.is_file() else {}
    lines = [*read_lines(data / "gsm8k_test.jsonl")[:each], *read_lines(data / "humaneval.jsonl")[:each]]
    prompts = [line.get("question") or line["prompt"] for line in lines]
    entries = [("", draft, PAIR), *((e.name, out / e.name, (e.serves,)) for e in ENTRIES)]
    for name, path, drafters in entries:
        wanted = [name or drafter for drafter in drafters if (name or drafter) not in known]
        if only and not set(wanted) & set(only.split(",")):
            continue
        if wanted and time.monotonic() - begun < seconds and (path / "config.json").is_file():
            rows = measured(target, path, drafters, prompts, nodes, answer, repeat)
            with file.open("a", encoding="utf-8") as handle:
                for row in rows:
                    line = {**asdict(row), "method": name or row.method}
                    known[line["method"]] = line
                    handle.write(f"{json.dumps(line)}\n")
    table(known, nodes, len(prompts), repeat)


def measured(
    target: Path, path: Path, drafters: tuple[str, ...], prompts: list[str], nodes: int, answer: int, repeat: int
) -> list[BenchRow]:
    """The drafters of one draft beside plain decoding of the same engine, without its line."""
    params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, max_nodes=nodes)
    with LLM(target, path, dtype="bfloat16", prefix_cache=False, max_requests=1) as llm:
        plan = BenchPlan((PLAIN_METHOD, *drafters), (1,), (0.0,), "exact", params.resolve(llm.text.defaults), repeat)
        results = measure(llm.engine, [encode(llm.text, prompt) for prompt in prompts], plan, lambda what: None)
    plain = results[BenchCell(PLAIN_METHOD, 1, 0.0)]
    rows = []
    for drafter in drafters:
        cell = BenchCell(drafter, 1, 0.0)
        same = all(run.outputs == plain[0].outputs for run in results[cell])
        rows.append(BenchRow.of(cell, "exact", results[cell], plain, same, 0))
    return rows


def table(known: dict[str, dict[str, Any]], nodes: int, prompts: int, repeat: int) -> None:
    typer.echo(f"{prompts} prompts, {nodes} drafted tokens a pass, batch 1, medians of {repeat}, one engine a line")
    for name, line in known.items():
        typer.echo(
            f"{name:12} {line['tokens_per_second']:7.1f} tokens/s  {line['speedup']:.2f}x "
            f"({line['speedup_min']:.2f}-{line['speedup_max']:.2f}) of plain, tau {line['tau']:.2f}"
            + ("" if line["identical"] else "  TEXT DIFFERS")
        )


if __name__ == "__main__":
    typer.run(main)
