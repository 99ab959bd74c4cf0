"""S2D's thresholds against each exit alone, for one draft and several targets: tokens/s over plain decoding, in turns.

    python recipes/workbench/exits.py --draft DIR --data DATA TARGET [TARGET ...]

`DIR` is what `paceline train s2d` made; all targets have its vocabulary. An exit alone: every token leaves there.
"""

import time
from pathlib import Path
from statistics import median
from typing import Annotated, cast

import typer

from paceline import LLM, SamplingParams
from paceline.draft.exits import Exits
from paceline.train.data import read_lines

PLAIN, SORTED = "plain", "s2d"
ALWAYS, NEVER = 0.0, 2.0


def main(
    targets: list[Path],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    each: int = 4,
    answer: int = 64,
    nodes: int = 5,
    repeat: int = 3,
    thresholds: Annotated[str, typer.Option(help="Values to try, of all exits but the last.")] = "0.3,0.5,0.7",
) -> None:
    lines = [*read_lines(data / "gsm8k_test.jsonl")[:each], *read_lines(data / "humaneval.jsonl")[:each]]
    prompts = [line.get("question") or line["prompt"] for line in lines]
    for target in targets:
        typer.echo(
            f"{target.name}: {len(prompts)} prompts, {answer} tokens, {nodes} drafted a pass, medians of {repeat}"
        )
        study(target, draft, prompts, answer, nodes, repeat, [float(x) for x in thresholds.split(",")])


def study(
    target: Path, draft: Path, prompts: list[str], answer: int, nodes: int, repeat: int, thresholds: list[float]
) -> None:
    with LLM(target, draft, drafter="s2d", length="fixed", max_requests=1, prefix_cache=False) as llm:
        exits = cast(Exits, llm.engine.components["exits"])
        last = len(exits.layers) - 1
        rows: dict[str, list[float]] = {PLAIN: [NEVER] * last}
        rows |= {f"exit {exits.layers[i]}": [NEVER] * i + [ALWAYS] * (last - i) for i in range(last + 1)}
        rows |= {f"{SORTED} {x:g}": [x] * last for x in thresholds}
        speeds: dict[str, list[float]] = {name: [] for name in rows}
        tau, texts = dict[str, float](), set[str]()

        def run(name: str) -> None:
            exits.thresholds = [*rows[name], 0.0]
            drafter = "none" if name == PLAIN else "s2d"
            params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer, drafter=drafter, max_nodes=nodes)
            begun = time.perf_counter()
            outputs = llm.generate(prompts, params, progress=False)
            seconds = time.perf_counter() - begun
            tokens = sum(output.stats.generated for output in outputs)
            speeds[name].append(tokens / seconds)
            tau[name] = tokens / sum(output.stats.passes for output in outputs)
            texts.add(str([output.token_ids for output in outputs]))

        names = list(rows)
        for turn in range(1 + repeat):  # the first is not counted
            for name in names[turn:] + names[:turn]:
                run(name)
    for name, mine in speeds.items():
        ratios = [x / base for x, base in zip(mine[1:], speeds[PLAIN][1:], strict=True)]
        typer.echo(
            f"  {name:9} {median(ratios):.3f}x ({min(ratios):.2f}-{max(ratios):.2f}) of plain, tau {tau[name]:.2f}"
        )
    best = {kind: max(median(speeds[n][1:]) for n in names if n.startswith(kind)) for kind in ("exit", SORTED)}
    same = "same texts" if len(texts) == 1 else "TEXTS DIFFER"
    typer.echo(f"  s2d / best exit alone: {best[SORTED] / best['exit']:.3f}; {same}")


if __name__ == "__main__":
    typer.run(main)
