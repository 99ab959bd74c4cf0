"""SpecDec++'s head against fixed lengths: tokens/s over plain decoding in turns, and counts.

    python recipes/workbench/drafts.py --target TARGET --draft DIR --data DATA

`DIR` is what `paceline train specdec` made; `DATA` has gsm8k_test.jsonl and humaneval.jsonl.

verification: passes of the target for each token; discard: drafted tokens that were not kept, for each token.
"""

import time
from pathlib import Path
from statistics import median
from typing import Annotated, cast

import typer

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError
from paceline.draft.acceptance import AcceptanceHead
from paceline.train.data import read_lines

FIXED, RISKS = (2, 3, 4, 5, 6, 8, 12), (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PLAIN = "plain"


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    each: int = 6,
    answer: int = 80,
    repeat: int = 3,
    temperature: float = 0.0,
) -> None:
    lines = [*read_lines(data / "gsm8k_test.jsonl")[:each], *read_lines(data / "humaneval.jsonl")[:each]]
    prompts = [line.get("question") or line["prompt"] for line in lines]
    rows = {PLAIN: (1.0, 1, 1)} | {f"fixed {k}": (1.0, k, k) for k in FIXED}
    rows |= {f"head {risk}": (risk, 1, 20) for risk in RISKS}
    speeds: dict[str, list[float]] = {name: [] for name in rows}
    counts: dict[str, str] = {}
    texts = set[str]()
    with LLM(target, draft, drafter="specdec", length="specdec", max_requests=1, prefix_cache=False) as llm:
        head = cast(AcceptanceHead, llm.engine.components.get("acceptance"))
        if head is None:
            raise InputError(f"{draft} has no acceptance head; make one with paceline train specdec.")

        def run(name: str) -> None:
            head.risk, head.least, head.most = rows[name]
            drafter = "none" if name == PLAIN else "specdec"
            params = SamplingParams(temperature=temperature, seed=0, max_tokens=answer, drafter=drafter)
            begun = time.perf_counter()
            outputs = llm.generate(prompts, params, progress=False)
            seconds, stats = time.perf_counter() - begun, [output.stats for output in outputs]
            tokens, passes = sum(s.generated for s in stats), sum(s.passes for s in stats)
            wasted = sum(sum(s.offered) - sum(s.kept) for s in stats)
            speeds[name].append(tokens / seconds)
            counts[name] = (
                f"verification {passes / tokens:.3f}  discard {wasted / tokens:.3f}  tau {tokens / passes:.2f}"
            )
            texts.add(str([output.token_ids for output in outputs]))

        names = list(rows)
        for turn in range(1 + repeat):  # the first is not counted
            for name in names[turn:] + names[:turn]:
                run(name)
    for name, mine in speeds.items():
        ratios = [x / base for x, base in zip(mine[1:], speeds[PLAIN][1:], strict=True)]
        typer.echo(f"{name:10} {median(ratios):.3f}x ({min(ratios):.2f}-{max(ratios):.2f}) of plain  {counts[name]}")
    best = {kind: max(median(speeds[n][1:]) for n in names if n.startswith(kind)) for kind in ("fixed", "head")}
    typer.echo(f"best head / best fixed length: {best['head'] / best['fixed']:.3f} (paper 1.05 to 1.10)")
    typer.echo("same texts" if len(texts) == 1 else "TEXTS DIFFER")


if __name__ == "__main__":
    typer.run(main)
