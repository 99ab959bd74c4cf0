"""Acceptance of the tree methods against one another at equal node budgets, as tokens per pass of the model (tau).

    python bench/studies/acceptance.py trees --model M --draft D --prompts gsm8k_test.jsonl
    python bench/studies/acceptance.py dyspec ... | kseq ... | stand ...

tau does not depend on speed, so the machine may be busy. Requests are sampled at temperature 1 (stand: 0.6) with one
seed per prompt; every method sees the same prompts and seeds. Ratios of pooled tau come with a paired bootstrap over
prompts.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.draft import model, rsd_c, rsd_s, spectr
from paceline.verify import kseq

BUDGETS = (6, 14, 30)
SAMPLES = 10_000


@dataclass(frozen=True)
class Run:
    """Counts per prompt: tokens generated, passes of the model, nodes drafted."""

    tokens: np.ndarray
    passes: np.ndarray
    drafted: np.ndarray

    @property
    def tau(self) -> float:
        return float(self.tokens.sum() / self.passes.sum())


def ratio(a: Run, b: Run, rng: np.random.Generator) -> tuple[float, float, float]:
    """tau(a) / tau(b) and its 95 % interval, prompts drawn again in pairs."""
    pick = rng.integers(0, len(a.tokens), (SAMPLES, len(a.tokens)))

    def tau(run: Run) -> np.ndarray:
        return run.tokens[pick].sum(1) / run.passes[pick].sum(1)

    low, high = np.quantile(tau(a) / tau(b), [0.025, 0.975])
    return a.tau / b.tau, float(low), float(high)


@contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


class Study:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.llm = LLM(args.model, args.draft, drafter="model", max_requests=32, row_budget=2048, prefix_cache=False)
        prompts = read_prompts(args.prompts, args.num_prompts)
        self.prompts = [encode(self.llm.text, prompt) for prompt in prompts]
        self.rng = np.random.default_rng(0)
        self.out: dict[str, Any] = {}

    def run(self, drafter: str, verifier: str, nodes: int, prompts: Sequence[Any] | None = None, **params: Any) -> Run:
        prompts = self.prompts if prompts is None else prompts
        base = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_tokens": self.args.max_tokens, **params}
        each = [
            SamplingParams(seed=i, drafter=drafter, verifier=verifier, max_nodes=nodes, **base)
            for i in range(len(prompts))
        ]
        stats = [r.stats for r in self.llm.generate(prompts, each, progress=False)]
        assert not self.llm.engine.drafters.errors, self.llm.engine.drafters.errors
        return Run(*(np.array([getattr(s, n) for s in stats]) for n in ("generated", "passes", "drafted")))

    def show(self, what: str, run: Run, against: tuple[str, Run] | None = None) -> Run:
        line = f"{what:34} tau {run.tau:.3f}, {run.drafted.sum() / run.passes.sum():.1f} nodes"
        self.out[what] = {"tau": run.tau, "nodes": float(run.drafted.sum() / run.passes.sum())}
        if against:
            value = ratio(run, against[1], self.rng)
            line += f"; over {against[0]} {value[0]:.3f} ({value[1]:.3f} - {value[2]:.3f})"
            self.out[what]["over"] = {against[0]: value}
        print(line, flush=True)
        return run

    def chain(self, budget: int) -> Run:
        """The chain of the best depth within the budget (16 is deep enough: fewer than 1 in 100 comes to its end)."""
        with patched(model, "MIN_CHANCE", 0.0):
            depths = sorted({min(budget, 8), min(budget, 16)})
            runs = {depth: self.run("model", "chain", depth) for depth in depths}
        best = max(runs, key=lambda depth: runs[depth].tau)
        return self.show(f"chain, depth {best} of {depths}, <= {budget}", runs[best])

    def trees(self) -> None:
        for budget in self.args.budgets or BUDGETS:
            chain = self.chain(budget)
            self.run("rsd_c", "rrs", budget)  # measures its rates
            shape = rsd_c.branching(budget, self.llm.engine.drafters.drafters["rsd_c"].measured.kept[""].rates)
            fixed = self.show(f"rsd_c {shape}", self.run("rsd_c", "rrs", budget), ("chain", chain))
            for width in beams(budget):
                with patched(rsd_s, "beam", lambda nodes, width=width: width):
                    self.show(f"rsd_s {width} x {budget // width}", self.run("rsd_s", "rrs", budget), ("rsd_c", fixed))

    def dyspec(self) -> None:
        for budget in self.args.budgets or (16, 32, 64):
            chain = self.chain(budget)
            self.run("sequoia", "rrs", budget)  # measures its rates
            fixed = self.show(f"sequoia {budget}", self.run("sequoia", "rrs", budget), ("chain", chain))
            self.run("dyspec", "rrs", budget)  # measures its chances
            grown = self.run("dyspec", "rrs", budget)
            self.show(f"dyspec {budget}", grown, ("sequoia", fixed))
            self.show(f"dyspec {budget}", grown, ("chain", chain))
            self.run("dyspec_threshold", "rrs", budget)
            self.show(f"dyspec_threshold {budget}", self.run("dyspec_threshold", "rrs", budget), ("chain", chain))

    def kseq(self) -> None:
        taus = {}
        for length in (4, 8):
            for k in (1, 2, 4, 8):
                if k * length > 64:
                    continue
                recorded: list[float] = []
                with patched(spectr, "chains", lambda nodes, k=k: k), patched(kseq, "select", recording(recorded)):
                    run = self.run("spectr", "kseq", k * length)
                taus[length, k] = run
                predicted = 1 + sum(recorded) / run.passes.sum()
                self.show(f"spectr K {k}, L {length}", run, ("K 1", taus[length, 1]))
                print(f"    tau from the recorded (p, q): {predicted:.3f}, measured / it {run.tau / predicted:.3f}")

    def stand(self) -> None:
        """Sixteen samples of each of twenty questions, one after the other, with one memory."""
        runs = {}
        for name in ("stand", "stand_greedy"):
            self.llm.engine.drafters.drafters.pop(name, None)
            parts = []
            for sample in range(16):
                prompts = self.prompts[:20]
                each = [
                    SamplingParams(
                        temperature=0.6, seed=1000 * sample + i, top_k=0, top_p=1.0, drafter=name, verifier="rrs",
                        max_tokens=self.args.max_tokens, max_nodes=15,
                    )
                    for i in range(len(prompts))
                ]  # fmt: skip
                parts.append([r.stats for r in self.llm.generate(prompts, each, progress=False)])
            stats = [[getattr(s, n) for part in parts for s in part] for n in ("generated", "passes", "drafted")]
            runs[name] = Run(*(np.array(it).reshape(16, -1).sum(0) for it in stats))
            first, last = (
                sum(s.generated for part in some for s in part) / sum(s.passes for part in some for s in part)
                for some in (parts[:4], parts[-4:])
            )
            print(f"{name}: tau of the first four samples {first:.3f}, of the last four {last:.3f}")
        self.show("stand_greedy", runs["stand_greedy"])
        self.show("stand", runs["stand"], ("stand_greedy", runs["stand_greedy"]))


def beams(budget: int) -> list[int]:
    return {6: [1, 2], 14: [2, 4], 30: [3, 5]}[budget]


def recording(into: list[float]) -> Callable[..., tuple[int | None, Tensor]]:
    """`kseq.select` that notes the chance that its output is among k candidates, by p and q alone: P of verify/kseq.py
    and what the residual draw adds, where a rejected candidate has the distribution norm(q - min(q, p / rho))."""
    plain = kseq.select

    def select(p: Tensor, q: Tensor, tokens: list[int], coins: list[float]) -> tuple[int | None, Tensor]:
        k = len(tokens)
        rho = kseq.best_rho(p, q, k)
        both = torch.minimum(q, p / rho)
        beta = float(both.sum())
        accepted = 1 - (1 - beta) ** k
        chance = accepted
        if 1 - beta > 1e-9 and beta > 0:
            rest = (p - both * accepted / beta).clamp_min(0.0)
            again = 1 - (1 - (q - both) / (1 - beta)) ** k
            chance += float((rest * again).sum())
        into.append(chance)
        return plain(p, q, tokens, coins)

    return select


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["trees", "dyspec", "kseq", "stand"])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--draft", required=True, type=Path)
    parser.add_argument("--prompts", required=True, type=Path)
    parser.add_argument("--num-prompts", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--budgets", type=int, nargs="*", choices=[6, 14, 16, 30, 32, 64])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    study = Study(args)
    getattr(study, args.study)()
    if args.json:
        args.json.write_text(json.dumps(study.out, indent=1))


if __name__ == "__main__":
    main()
