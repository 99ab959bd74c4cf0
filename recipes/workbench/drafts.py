"""SpecDec++'s head against fixed lengths, and the judge's rule without training against `exact`: tables of counts.

    python recipes/workbench/drafts.py --target TARGET --draft DIR --data DATA

`DIR` is what `paceline train specdec` made; `DATA` has gsm8k_test.jsonl and humaneval.jsonl. Nothing is timed.

verification: passes of the target for each token; discard: drafted tokens that were not kept, for each token.
"""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from paceline import LLM, SamplingParams
from paceline.core.errors import InputError
from paceline.draft.acceptance import Acceptance
from paceline.train.data import read_lines


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    each: int = 6,
    answer: int = 80,
) -> None:
    lines = [*read_lines(data / "gsm8k_test.jsonl")[:each], *read_lines(data / "humaneval.jsonl")[:each]]
    prompts = [line.get("question") or line["prompt"] for line in lines]
    with LLM(target, draft, drafter="specdec", length="specdec") as llm:
        head = cast(Acceptance, llm.engine.components.get("acceptance"))
        if head is None:
            raise InputError(f"{draft} has no acceptance head; make one with paceline train specdec.")

        def row(name: str, risk: float, least: int, most: int) -> Any:
            head.risk, head.least, head.most = risk, least, most
            params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer)
            outputs = llm.generate(prompts, params, progress=False)
            stats = [output.stats for output in outputs]
            tokens, passes = sum(s.generated for s in stats), sum(s.passes for s in stats)
            wasted = sum(sum(s.offered) - sum(s.kept) for s in stats)
            rates = f"verification {passes / tokens:.3f}  discard {wasted / tokens:.3f}"
            typer.echo(f"{name:14} {rates}  tau {tokens / passes:.2f}")
            return [output.token_ids for output in outputs]

        texts = [row(f"fixed {k}", 1.0, k, k) for k in (2, 3, 4, 6, 8, 12)]
        texts += [row(f"head {risk}", risk, 1, 20) for risk in (0.2, 0.4, 0.6, 0.7, 0.8, 0.9)]
        typer.echo("same texts" if all(text == texts[0] for text in texts) else "TEXTS DIFFER")


if __name__ == "__main__":
    typer.run(main)
