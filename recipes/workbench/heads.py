"""Every head for one target with equal data, steps and trees, and what each brings: a table of counts.

    python recipes/workbench/heads.py --target TARGET --draft DRAFT --data DATA --out OUT

`DATA` has gsm8k_train.jsonl, gsm8k_test.jsonl, humaneval.jsonl and codealpaca.json. A head that lies in OUT already is
not trained again. Nothing is timed.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.draft.grow import NODES, Chances, best
from paceline.draft.head import read_config
from paceline.train import METHODS
from paceline.train.data import Sample, answered, read_lines
from paceline.train.evaluate import engine_tau, evaluate
from paceline.train.features import FeatureSource
from paceline.train.loop import Plan, train
from paceline.train.method import HeadMethod
from paceline.train.target import Target


@dataclass(frozen=True)
class Entry:
    name: str
    method: str
    settings: dict[str, Any]


ENTRIES = [
    Entry("medusa", "medusa", {}),
    Entry("hydra", "hydra", {}),
    Entry("hydra++", "hydra", {"prefix": True, "layers": 4}),
    Entry("clover-1", "clover", {"version": 1, "layers": 1}),
    Entry("clover-2", "clover", {}),
]
RATIOS = [("hydra", "medusa", 1.16), ("hydra++", "medusa", 1.40), ("hydra++", "hydra", 1.22)]
"""A head, another, and the ratio of their taus in the paper, whose models are a hundred times larger."""


def prompts(data: Path, count: int, seed: int) -> list[dict[str, str]]:
    """As many of GSM8K as of code."""
    maths = [{"question": line["question"]} for line in read_lines(data / "gsm8k_train.jsonl")]
    code = [
        {"instruction": line["instruction"], "input": line.get("input") or ""}
        for line in read_lines(data / "codealpaca.json")
    ]
    rng = random.Random(seed)
    return [*rng.sample(maths, count // 2), *rng.sample(code, count - count // 2)]


def unseen(target: Target, data: Path, each: int, answer: int) -> list[Sample]:
    """The target's answers to prompts of both kinds that nothing was trained on."""
    maths, code = read_lines(data / "gsm8k_test.jsonl")[:each], read_lines(data / "humaneval.jsonl")[:each]
    entries = [{"prompt": line.get("question") or line["prompt"]} for line in [*maths, *code]]
    return answered(target, entries, 512, answer=answer)


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    steps: int = 160,
    count: int = 800,
    lr: float = 2e-3,
    depth: int = 4,
    nodes: int = NODES,
    each: int = 12,
    answer: int = 120,
    only: str = "",
    seed: int = 0,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    file = out / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, prompts(data, count, seed))) + "\n", encoding="utf-8")
    entries = [entry for entry in ENTRIES if not only or entry.name in only.split(",")]
    for entry in entries:
        if not (out / entry.name / "config.json").is_file():
            settings = {"depth": depth, **entry.settings}
            plan = Plan(
                method=entry.method, target=target, data=(file,), out=out / entry.name, minutes=None, steps=steps,
                settings=settings, prompts=count, lr=lr, seed=seed, cache=out / "cache",
            )  # fmt: skip
            train(plan, lambda now: typer.echo(f"step {now.step}, loss {now.loss:.3f}, simulated tau {now.tau:.2f}"))
    table(target, draft, unseen(Target(target), data, each, answer), out, entries, nodes, answer)


def table(
    target: Path, draft: Path, samples: Sequence[Sample], out: Path, entries: Sequence[Entry], nodes: int, answer: int
) -> None:
    """Print what each brings on these answers, and the ratios."""
    whole, found = Target(target), dict[str, float]()
    base = engine_tau(target, draft, samples, ["ngram", "model", "sequoia"], nodes, answer)
    typer.echo(
        f"{len(samples)} greedy answers, {sum(len(s.ids) - s.start for s in samples)} tokens, trees of {nodes} nodes"
    )
    typer.echo(f"{'drafter':12}{'trained on':>12}{'chain':>8}{'tree':>8}{'engine':>8}  text")
    for name, tau in base.tau.items():
        typer.echo(f"{name:12}{'':>12}{'':>8}{'':>8}{tau:8.2f}  {'same' if base.same[name] else 'DIFFERS'}")
    for entry in entries:
        path = out / entry.name
        method = METHODS.get(entry.method)
        assert isinstance(method, type) and issubclass(method, HeadMethod)
        made = method.of(whole, path)
        scores = evaluate(made, FeatureSource(whole, samples, made.taps), range(len(samples)), shape(path, nodes))
        measured = engine_tau(target, path, samples, [entry.method], nodes, answer)
        found[entry.name] = measured.tau[entry.method]
        tokens, same = read_config(path)["training"]["tokens"], measured.same[entry.method]
        assert scores is not None
        typer.echo(
            f"{entry.name:12}{tokens:12,}{scores.tau:8.2f}{scores.tree:8.2f}{found[entry.name]:8.2f}  "
            f"{'same' if same else 'DIFFERS'}"
        )
    for one, other, paper in RATIOS:
        if one in found and other in found:
            typer.echo(f"{one} / {other}: tau {found[one] / found[other]:.2f} (paper {paper:.2f})")


def shape(path: Path, nodes: int) -> Any:
    """The tree that the engine begins with."""
    config = read_config(path)
    return best(nodes, Chances(config["accuracy"], config["depth"]).rates)


if __name__ == "__main__":
    typer.run(main)
