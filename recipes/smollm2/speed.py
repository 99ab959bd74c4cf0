"""Tokens/s of the head, prompt lookup, both in one tree, and the planner's choice, over plain decoding, on held-out
prompts, in turns.

python recipes/smollm2/speed.py --target SMOLLM2 --head HEAD --prompts OUT
"""

from pathlib import Path
from typing import Annotated

import typer

from paceline import LLM, SamplingParams
from paceline.bench.harness import PLAIN_METHOD, BenchCell, BenchPlan, measure
from paceline.bench.prompts import encode, read_prompts
from paceline.bench.report import BenchRow
from paceline.draft.head import method_of

KINDS = ("sums", "programs", "documentation")


def main(
    target: Annotated[Path, typer.Option()],
    head: Annotated[Path, typer.Option()],
    prompts: Annotated[Path, typer.Option()],
    nodes: Annotated[list[int] | None, typer.Option(help="Drafted tokens a pass; may be repeated.")] = None,
    answer: int = 64,
    each: int = 10,
    repeat: int = 1,
    quantize: str | None = None,
) -> None:
    drafter = method_of(head) or ""
    with LLM(target, head, max_requests=1, prefix_cache=False, quantize=quantize) as llm:
        for size in nodes or [7]:
            params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, max_nodes=size)
            plan = BenchPlan(
                (PLAIN_METHOD, "ngram", drafter, f"ngram+{drafter}", "auto"),
                (1,),
                (0.0,),
                "exact",
                params.resolve(llm.text.defaults),
                repeat,
            )
            for kind in KINDS:
                ids = [encode(llm.text, prompt) for prompt in read_prompts(prompts / f"{kind}.jsonl", each)]
                found = measure(llm.engine, ids, plan, lambda what: None)
                plain = found[BenchCell(PLAIN_METHOD, 1, 0.0)]
                for name in plan.methods:
                    runs = found[BenchCell(name, 1, 0.0)]
                    same = all(run.outputs == plain[0].outputs for run in runs)
                    row = BenchRow.of(BenchCell(name, 1, 0.0), "exact", runs, plain, same, 0)
                    typer.echo(
                        f"{kind:14} {size} nodes {name:12} {row.tokens_per_second:6.1f} tokens/s  {row.speedup:.2f}x  "
                        f"tau {row.tau:.2f}{'' if same else '  TEXT DIFFERS'}"
                    )


if __name__ == "__main__":
    typer.run(main)
