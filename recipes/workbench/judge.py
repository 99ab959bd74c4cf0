"""What the lossy verifier `judge` costs and brings: tokens a pass and final answers over thresholds, beside `exact`.

    python recipes/workbench/judge.py --target TARGET --draft DIR --data QUESTIONS

`DIR` is what `paceline train judge` made; QUESTIONS are JSON lines of GSM8K (question, answer) or SVAMP's JSON (Body,
Question, Answer) that it was not trained on. right: final answers that are the data's; kept: final answers that are
those of `exact`. Nothing is timed.
"""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode
from paceline.core.errors import InputError
from paceline.draft.correctness import Correctness
from paceline.train.data import read_lines
from paceline.train.judge import final

THRESHOLDS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
TOP = (2, 3, 5)
"""Ranks of the rule without training."""


def asked(line: dict[str, Any]) -> tuple[str, str | None]:
    """(question, its answer) of a line."""
    if "Body" in line:
        return f"{line['Body'].rstrip(' .')}. {line['Question']}", final(f"{line['Answer']:g}")
    return line["question"], final(line["answer"])


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    count: int = 200,
    answer: int = 160,
    nodes: int = 8,
    quantize: str | None = None,
) -> None:
    lines = [asked(line) for line in read_lines(data)[:count]]
    with LLM(target, draft, drafter="model", length="fixed", max_requests=32, quantize=quantize) as llm:
        head = cast(Correctness, llm.engine.components.get("judge"))
        if head is None:
            raise InputError(f"{draft} has no judge; make one with paceline train judge.")
        ids = [encode(llm.text, question) for question, _ in lines]

        def run(verifier: str) -> tuple[list[str | None], float, float, list[list[int]]]:
            params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer, max_nodes=nodes, verifier=verifier)
            outputs = llm.generate(ids, params, progress=False)
            stats = [output.stats for output in outputs]
            passes = sum(s.passes for s in stats)
            offered, kept = (sum(sum(getattr(s, name)) for s in stats) for name in ("offered", "kept"))
            texts = [output.token_ids for output in outputs]
            return [final(o.text) for o in outputs], sum(map(len, texts)) / passes, kept / max(offered, 1), texts

        exact, tau, kept, plain = run("exact")
        found: list[dict[str, Any]] = []

        def row(name: str, answers: list[str | None], mine: float, share: float, same: bool) -> None:
            right = sum(a is not None and a == true for a, (_, true) in zip(answers, lines)) / len(lines)
            agreed = sum(a == b for a, b in zip(answers, exact)) / len(lines)
            found.append({"rule": name, "tau": mine, "right": right, "agreed": agreed, "same_text": same})
            typer.echo(
                f"{name:14} tau {mine:.2f} ({mine / tau:.2f} of exact)  accepted {share:.2f}  right {right:.3f}  "
                f"final answers of exact {agreed:.3f}{'  same text' if same else ''}"
            )

        typer.echo(f"{len(lines)} questions of {data.name}, {answer} tokens, {nodes} drafted a pass")
        row("exact", exact, tau, kept, True)
        for threshold in THRESHOLDS:
            head.rule, head.threshold = "head", threshold
            answers, mine, share, texts = run("judge")
            row(f"threshold {threshold:g}", answers, mine, share, texts == plain)
        for head.top_k in TOP:
            head.rule = "top_k"
            answers, mine, share, texts = run("judge")
            row(f"top {head.top_k}", answers, mine, share, texts == plain)
    (draft / "frontier.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
