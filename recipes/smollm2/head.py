"""The head in the box: a drafter for SmolLM2-135M-Instruct, trained on its own answers. See README.md.

    python recipes/smollm2/head.py --target SMOLLM2 --data DATA --docs DOCS --out OUT

The target answers the prompts first; then a head is trained, written in int8, and asked by the engine. What lies in OUT
already is not done again, and a run that was stopped goes on.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from prompts import prompts

from paceline.draft.head import CONFIG, WEIGHTS
from paceline.draft.int8 import shrink
from paceline.train import train
from paceline.train.data import answered, read_lines
from paceline.train.evaluate import engine_tau
from paceline.train.loop import TrainingPlan, texts
from paceline.train.target import TrainingTarget

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
METHOD, SETTINGS = "hydra", {"depth": 3, "layers": 2, "draft_vocab": 4096, "own_head": True}
"""Hydra trained best at equal tokens (recipes/workbench). Over 49,152 tokens an output matrix would cost a fifth of the
target at each depth, so it has 4,096."""
MOST = 12_000_000
"""Bytes of the weights."""
SEED = 0


def plan(target: Path, out: Path, count: int, **limits: Any) -> TrainingPlan:
    return TrainingPlan(
        method=METHOD, target=target, data=(out / "prompts.jsonl",), out=out / "head", settings=dict(SETTINGS),
        prompts=count, answer=128, length=384, whole=True, lr=2e-3, seed=SEED, cache=out / "cache",
        cache_bytes=4 << 30, **limits,
    )  # fmt: skip


def main(
    target: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    docs: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    minutes: float = 75,
    steps: Annotated[int | None, typer.Option(help="Number of training steps, instead of --minutes.")] = None,
    count: Annotated[int, typer.Option(help="Prompts that the target answers, of 2,200.")] = 2200,
    answers: Annotated[bool, typer.Option(help="Only let the target answer.")] = False,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    asked, held = prompts(data, docs, SEED)
    for name, lines in {"prompts": asked, **held}.items():
        content = "".join(f"{json.dumps({'prompt': text})}\n" for text in lines)
        (out / f"{name}.jsonl").write_text(content, encoding="utf-8")
    mine = plan(target, out, count, minutes=None if steps else minutes, steps=steps)
    if answers:
        samples = texts(mine, TrainingTarget(target))
        typer.echo(f"{len(samples)} answers of {sum(len(s.ids) - s.start for s in samples):,} tokens")
        return
    made = train(mine)
    size = shrink(mine.out)
    named(mine.out)
    scores = "" if made.scores is None else f", simulated tau {made.scores.tau:.3f}, {made.scores.tree:.3f}"
    typer.echo(f"{made.tokens:,} tokens in {made.seconds:.0f} s{scores}; {WEIGHTS} has {size:,} bytes")
    if size > MOST:
        typer.echo(f"That is more than {MOST:,}.")
    measured(target, mine.out, out, list(held))


def named(head: Path) -> None:
    """Write whose head it is: the model's name, not where it lay."""
    config = json.loads((head / CONFIG).read_text(encoding="utf-8"))
    config["speculators_config"]["verifier"]["name_or_path"] = MODEL
    (head / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def measured(target: Path, head: Path, out: Path, kinds: list[str]) -> None:
    """Print the engine's tau on the held-out prompts of each kind, beside prompt lookup's."""
    whole = TrainingTarget(target)
    for kind in kinds:
        samples = answered(whole, read_lines(out / f"{kind}.jsonl"), 384, answer=128, cache=out / "cache")
        found = engine_tau(target, head, samples, [METHOD, "ngram"], 8, 128)
        tau = ", ".join(f"{name} {found.tau[name]:.2f}" for name in found.tau)
        typer.echo(f"{kind}: tau {tau}; " + ("same text" if all(found.same.values()) else "TEXT DIFFERS"))


if __name__ == "__main__":
    typer.run(main)
