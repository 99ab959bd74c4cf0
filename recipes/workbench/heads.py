"""Every drafter for one target with equal training tokens and equal trees, and what each brings: a table of counts.

    python recipes/workbench/heads.py --target TARGET --draft DRAFT --data DATA --out OUT

`DATA` has gsm8k_train.jsonl, gsm8k_test.jsonl, humaneval.jsonl and codealpaca.json. The target answers the training
prompts once and its hidden states are kept, for all methods. What lies in OUT already is not done again: trained
drafters, and lines of the table (table.jsonl). Nothing is timed; `speed.py` does that.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from entries import ENTRIES, HEAD, RATIOS, Entry

from paceline.draft.grow import HEAD_TREE_NODES
from paceline.train import TRAINERS
from paceline.train.data import Sample, answered, read_lines
from paceline.train.evaluate import engine_tau, evaluate
from paceline.train.features import FeatureSource
from paceline.train.loop import TrainingPlan, opened, texts, train
from paceline.train.target import TrainingTarget

SETS = ("gsm8k", "code")


@dataclass(frozen=True)
class Bench:
    """Where things lie, and sizes that all entries share."""

    target: Path
    draft: Path
    data: Path
    out: Path
    steps: int
    count: int
    depth: int
    nodes: int
    each: int
    answer: int
    seed: int
    answered: int
    """Prompts that the target answers, of `count`."""

    @property
    def cache(self) -> Path:
        return self.out / "cache"

    def plan(self, entry: Entry) -> TrainingPlan:
        settings = {"depth": self.depth, **entry.settings} if entry.kind == HEAD else dict(entry.settings)
        if entry.begins:
            settings["draft"] = str(self.draft if entry.begins == "draft" else self.out / entry.begins)
        files = {"answers": ["prompts"], "maths": ["maths"], "both": ["maths", "code"]}[entry.data]
        return TrainingPlan(
            method=entry.method, target=self.target, data=tuple(self.out / f"{name}.jsonl" for name in files),
            out=self.out / entry.name, minutes=None, steps=self.steps, settings=settings, prompts=self.answered,
            answers=entry.data == "answers", lr=entry.lr, seed=self.seed, cache=self.cache, cache_bytes=4 << 30,
        )  # fmt: skip

    def write(self) -> None:
        """Prompts to answer, as many of GSM8K as of code; and the texts of both as they are."""
        maths = read_lines(self.data / "gsm8k_train.jsonl")
        code = read_lines(self.data / "codealpaca.json")
        rng, half = random.Random(self.seed), self.count // 2
        asked = [{"question": line["question"]} for line in maths]
        told = [{"instruction": line["instruction"], "input": line.get("input") or ""} for line in code]
        prompts = [*rng.sample(asked, half), *rng.sample(told, self.count - half)]
        for name, lines in (("prompts", prompts), ("maths", maths), ("code", code)):
            (self.out / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")

    def warm(self, target: TrainingTarget) -> None:
        """Keep all hidden states that some entry reads, in one pass over each text."""
        taps: dict[str, None] = {}
        for entry in ENTRIES:
            if entry.kind == HEAD:
                taps |= dict.fromkeys(TRAINERS.get(entry.method)(target, self.plan(entry).settings).taps)
        plan = self.plan(ENTRIES[0])
        source = FeatureSource(target, texts(plan, target), sorted(taps), self.cache, plan.cache_bytes)
        for name in range(len(source.samples)):
            source.states(name)

    def unseen(self, target: TrainingTarget, kind: str) -> list[Sample]:
        """The target's answers to prompts that nothing was trained on."""
        file = {"gsm8k": "gsm8k_test.jsonl", "code": "humaneval.jsonl"}[kind]
        entries = [{"prompt": line.get("question") or line["prompt"]} for line in read_lines(self.data / file)]
        return answered(target, entries[: self.each], 512, answer=self.answer, cache=self.cache)


def main(
    target: Annotated[Path, typer.Option()],
    draft: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    steps: int = 160,
    count: int = 1600,
    depth: int = 4,
    nodes: int = HEAD_TREE_NODES,
    each: int = 20,
    answer: int = 120,
    only: str = "",
    seed: int = 0,
    answered: int = 1600,
    measure: bool = True,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(target, draft, data, out, steps, count, depth, nodes, each, answer, seed, answered)
    bench.write()
    entries = [entry for entry in ENTRIES if not only or entry.name in only.split(",")]
    whole = TrainingTarget(target)
    bench.warm(whole)
    for entry in entries:
        if not (out / entry.name / "config.json").is_file():
            made = train(bench.plan(entry))
            tau = "" if made.scores is None else f", simulated tau {made.scores.tau:.3f}, {made.scores.tree:.3f}"
            typer.echo(f"{entry.name}: {made.tokens:,} tokens in {made.seconds:.0f} s{tau}")
    if measure:
        samples = {kind: bench.unseen(whole, kind) for kind in SETS}
        table(list(lines(bench, whole, samples, entries)), samples)


def lines(
    bench: Bench, target: TrainingTarget, samples: dict[str, list[Sample]], entries: Sequence[Entry]
) -> Iterator[dict[str, Any]]:
    """Of each drafter {name, tokens, and of each set: chain and tree simulated, tau of the engine, its interval}."""
    file = bench.out / "table.jsonl"
    known = {line["name"]: line for line in read_lines(file)} if file.is_file() else {}
    for name, path, drafter, plan in [
        *((kind, bench.draft, kind, None) for kind in ("ngram", "model", "sequoia")),
        *((entry.name, bench.out / entry.name, entry.serves, bench.plan(entry)) for entry in entries),
    ]:
        if name not in known:
            line: dict[str, Any] = {"name": name, "of": {}}
            method = None
            if plan is not None:
                run, _ = opened(plan, target)
                method, line["tokens"] = run.method, run.tokens
            for kind, mine in samples.items():
                made = engine_tau(bench.target, path, mine, [drafter], bench.nodes, bench.answer)
                found: dict[str, Any] = {
                    "tau": made.tau[drafter], "interval": made.interval(drafter), "same": made.same[drafter],
                }  # fmt: skip
                if method is not None:
                    scores = evaluate(method, FeatureSource(target, mine, method.taps), range(len(mine)))
                    if scores is not None:
                        found |= {"chain": scores.tau, "tree": scores.tree, "rates": scores.conditional}
                line["of"][kind] = found
            known[name] = line
            with file.open("a", encoding="utf-8") as handle:
                handle.write(f"{json.dumps(line)}\n")
        yield known[name]


def table(found: Sequence[dict[str, Any]], samples: dict[str, list[Sample]]) -> None:
    sizes = ", ".join(f"{len(mine)} of {kind}" for kind, mine in samples.items())
    typer.echo(f"greedy answers: {sizes}; chain and tree are simulated, tau [95 %] is the engine's")
    typer.echo(f"{'drafter':12}{'trained on':>11}" + f"{'chain':>8}{'tree':>7}{'tau':>7}{'':14}" * len(samples))
    for line in found:
        row = f"{line['name']:12}{line.get('tokens', 0):11,}"
        for of in line["of"].values():
            low, high = of["interval"]
            row += "".join(f"{of[key]:{w}.2f}" if key in of else " " * w for key, w in (("chain", 8), ("tree", 7)))
            row += f"{of['tau']:7.2f} [{low:.2f}, {high:.2f}]" + ("" if of["same"] else " DIFFERS")
        typer.echo(row)
    taus = {line["name"]: {kind: of["tau"] for kind, of in line["of"].items()} for line in found}
    taus["draft"] = taus["model"]
    for one, other, what, paper in RATIOS:
        if one in taus and other in taus:
            kinds = ("code",) if what == "code" else tuple(samples)
            less = 1.0 if what == "code" else 0.0  # drafts alone
            ours = [(taus[one][kind] - less) / max(taus[other][kind] - less, 1e-9) for kind in kinds]
            typer.echo(f"{one} / {other}: " + ", ".join(f"{x:.3f}" for x in ours) + f" (paper {paper:.2f})")


if __name__ == "__main__":
    typer.run(main)
